"""The comparison of an archive with a log tells what is lost, twice or changed."""

import pytest

from liftbridge_testkit.kube.archives import differences

LOG = [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (LOG[:2], "orders/0: 1 records are not archived, the first is 2"),
        ([*LOG, LOG[1]], "orders/0: 1 records are archived twice"),
        ([*LOG[:2], (2, b"x")], "orders/0: 1 archived records are not those of the log"),
        ([*LOG, (3, b"d")], "orders/0: 1 archived records are not those of the log"),
    ],
)
def test_what_differs_is_told(kept, text):
    assert differences("orders/0", kept, LOG) == [text]


def test_equal_ones_do_not_differ():
    assert differences("orders/0", LOG, LOG) == []
