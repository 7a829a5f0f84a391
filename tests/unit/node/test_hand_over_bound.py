"""A broker that stops waits for others to lead as long as it was told, and no longer."""

from types import SimpleNamespace

import pytest

from liftbridge_broker.model.steps import finish
from liftbridge_broker.node.assembly.session import hand_over

SECOND_NS = 1_000_000_000
STEP_NS = SECOND_NS // 2


class Clock:
    """Half a second passes between two looks."""

    def __init__(self):
        self.now_ns = 0

    def now(self):
        self.now_ns += STEP_NS
        return self.now_ns

    def wall_ns(self):
        return 0


class Session:
    """Others take over after so many looks; never with None."""

    def __init__(self, looks):
        self.looks = looks
        self.want_shutdown = False

    def hurry(self, _now):
        assert self.want_shutdown

    @property
    def may_stop(self):
        if self.looks is None:
            return False
        self.looks -= 1
        return self.looks < 0


def core_of(looks):
    return SimpleNamespace(
        clock=Clock(),
        is_connected=True,
        consensus=SimpleNamespace(leader="b", voters=(), is_leader=False),
        node=SimpleNamespace(
            cluster=SimpleNamespace(session=Session(looks)),
            state=SimpleNamespace(brokers={}),
            broker="a",
            on_timer=lambda _now, _wall: None,
        ),
    )


@pytest.mark.parametrize("seconds", [1, 10, 300])
def test_waiting_ends_at_the_bound(seconds):
    core = core_of(looks=None)
    assert not finish(hand_over(core, seconds * SECOND_NS))
    waited_ns = core.clock.now_ns - STEP_NS
    assert seconds * SECOND_NS <= waited_ns <= seconds * SECOND_NS + 2 * STEP_NS


def test_waiting_ends_when_others_lead():
    core = core_of(looks=3)
    assert finish(hand_over(core, 300 * SECOND_NS))
    assert core.clock.now_ns < 10 * SECOND_NS
