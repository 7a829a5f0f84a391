"""The one timer of a node: armed with the earliest deadline, and woken without one."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.scheduling.alarm import LOOK_NS, Alarm


class Recorder:
    """Keeps what it was armed with."""

    def __init__(self) -> None:
        self.armed: list[int] = []

    def arm(self, deadline: Instant) -> None:
        self.armed.append(deadline)


def test_timer_is_armed_only_with_what_is_earlier() -> None:
    timer = Recorder()
    alarm = Alarm(timer)
    for deadline in (9, 12, 5, 5):
        alarm.set(Instant(deadline))
    alarm.set(None)
    assert timer.armed == [9, 5]


def test_deadline_that_is_to_come_outlives_a_wake() -> None:
    timer = Recorder()
    alarm = Alarm(timer)
    alarm.set(Instant(9))
    alarm.wake(Instant(3))
    alarm.wake(Instant(3))
    assert timer.armed == [9, 3]
    assert alarm.ring(Instant(4))
    assert timer.armed == [9, 3, 9]
    assert not alarm.ring(Instant(9))


def test_deadlines_are_looked_up_soon_after_a_wake() -> None:
    """An event of the turn before may have set one that the timer is not armed with."""
    timer = Recorder()
    alarm = Alarm(timer)
    alarm.set(Instant(9 * LOOK_NS))
    alarm.wake(Instant(3))
    assert alarm.ring(Instant(4))
    assert timer.armed == [9 * LOOK_NS, 3, 9 * LOOK_NS, 4 + LOOK_NS]


def test_look_up_delays_no_deadline() -> None:
    timer = Recorder()
    alarm = Alarm(timer)
    alarm.look(Instant(1))
    alarm.set(Instant(5))
    alarm.look(Instant(2))
    assert timer.armed == [1 + LOOK_NS, 5]


def test_what_came_due_before_the_wake_was_heard_is_due() -> None:
    alarm = Alarm(Recorder())
    alarm.set(Instant(9))
    alarm.wake(Instant(3))
    assert not alarm.ring(Instant(9))


def test_wake_without_a_deadline_is_no_wake_only() -> None:
    """Nobody knows then what is due."""
    alarm = Alarm(Recorder())
    alarm.wake(Instant(3))
    assert not alarm.ring(Instant(3))
