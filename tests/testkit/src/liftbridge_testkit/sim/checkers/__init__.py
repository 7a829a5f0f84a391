"""Checkers of client histories, one promise each, in near-linear time."""

from liftbridge_testkit.sim.checkers.acked import AckedIsStored
from liftbridge_testkit.sim.checkers.deleted import DeletedStaysDeleted
from liftbridge_testkit.sim.checkers.expected import ExpectedOffsets
from liftbridge_testkit.sim.checkers.offsets import OneWriteAtAnOffset
from liftbridge_testkit.sim.checkers.order import PublisherOrder
from liftbridge_testkit.sim.checkers.published import OnlyWhatWasPublished
from liftbridge_testkit.sim.checkers.reads import ConsistentReads
from liftbridge_testkit.sim.checkers.realtime import RealTimeOrder
from liftbridge_testkit.sim.history import Checker, History


def all_checkers(history: History) -> list[Checker]:
    """Return one checker of each kind."""
    return [
        OneWriteAtAnOffset(),
        RealTimeOrder(),
        ExpectedOffsets(),
        ConsistentReads(history),
        AckedIsStored(history),
        DeletedStaysDeleted(),
        OnlyWhatWasPublished(history),
        PublisherOrder(history),
    ]
