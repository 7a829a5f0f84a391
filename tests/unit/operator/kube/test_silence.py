"""What has hung is not asked for again for a while, and nothing else is held back."""

import pytest

from liftbridge_operator.kube.errors import UnansweredError
from liftbridge_operator.kube.silence import Silence, written

CONFIGS = "/api/v1/namespaces/n/configmaps"
SETS = "/apis/apps/v1/namespaces/n/statefulsets"


def test_write_is_held_back_for_its_time_alone():
    silence = Silence(60.0)
    silence.note(CONFIGS, "PATCH c: TimeoutError", 100.0)
    silence.note(SETS, "PATCH c: TimeoutError", 130.0)
    for now_s in (100.0, 159.9):
        with pytest.raises(UnansweredError, match="PATCH c: TimeoutError"):
            silence.check(CONFIGS, now_s)
    silence.check(f"{CONFIGS}/status", 130.0)
    silence.check(CONFIGS.replace("/n/", "/m/"), 130.0)
    silence.check(CONFIGS, 160.0)
    with pytest.raises(UnansweredError):
        silence.check(SETS, 160.0)


def test_what_is_over_is_dropped():
    silence = Silence(60.0)
    for second in range(1_000):
        silence.note(f"{CONFIGS}{second}", "", float(second))
    assert len(silence._until) == 60


@pytest.mark.parametrize(
    ("path", "subject", "kind"),
    [
        (CONFIGS, f"{CONFIGS}/c", CONFIGS),
        (f"{CONFIGS}/c", f"{CONFIGS}/c", CONFIGS),
        (f"{SETS}/c/status", f"{SETS}/c", f"{SETS}/status"),
    ],
)
def test_writes_are_told_apart_by_kind_and_subresource(path, subject, kind):
    assert written(path, subject) == kind
