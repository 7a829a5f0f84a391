"""What a restore takes, and how it is cut into requests."""

import pyarrow as pa
import pytest

from liftbridge_client import UsageError
from liftbridge_client.aio.restoring import (
    REQUEST_BYTES_MAX,
    REQUEST_RECORDS_MAX,
    Restorer,
    _pieces,
)
from liftbridge_client.columns import FIELDS


def records(offsets, **columns):
    """A record batch; values are empty unless they are given."""
    columns = {"offset": offsets, "value": [b""] * len(offsets), **columns}
    return pa.record_batch(
        [pa.array(values, FIELDS[name].type) for name, values in columns.items()],
        names=list(columns),
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (records([1]).select(["offset"]), "columns of a restore are offset, value and any of"),
        (records([1], leader_epoch=[1]), "not leader_epoch, offset, value"),
        (records([1, 1]), "offsets of a restore must increase, from 0 on"),
        (records([-1]), "offsets of a restore must increase, from 0 on"),
        (records([1], value=[None]), "columns of a restore have no nulls: value"),
        (records([1], subject=[None]), "columns of a restore have no nulls: subject"),
    ],
)
async def test_columns_of_no_use_are_refused_before_anything_is_asked(given, text):
    with pytest.raises(UsageError, match=text):
        await Restorer(None, "s", 0).put(given)


def test_requests_hold_a_bounded_number_of_records_and_bytes():
    many = records(list(range(REQUEST_RECORDS_MAX * 2 + 1)))
    assert [one.num_rows for one in _pieces(many)] == [REQUEST_RECORDS_MAX] * 2 + [1]
    third = REQUEST_BYTES_MAX // 3
    large = records([1, 2, 3, 4], value=[bytes(third)] * 3 + [bytes(REQUEST_BYTES_MAX * 2)])
    assert [one.num_rows for one in _pieces(large)] == [3, 1]


@pytest.mark.parametrize("is_cut", [False, True])
def test_keys_headers_and_subjects_count_as_well(is_cut):
    half = REQUEST_BYTES_MAX // 2 + 1
    columns = {
        "key": [None, None, bytes(half), None],
        "headers": [[], [("h", bytes(half))], [], [("a", b""), ("b", bytes(half))]],
        "subject": ["s"] * 4,
        "reply_subject": [""] * 4,
    }
    given = records([3, 5, 6, 9], **columns)
    pieces = list(_pieces(given.slice(1) if is_cut else given))
    assert [one.column("offset").to_pylist() for one in pieces] == (
        [[5], [6], [9]] if is_cut else [[3, 5], [6], [9]]
    )
