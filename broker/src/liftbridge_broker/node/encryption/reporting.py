"""Reports the master keys of this broker to the cluster, whenever they differ from its report."""

from typing import Final

from liftbridge_broker.controller.commands import ENCRYPTION_LEVEL, ReportMasterKeys
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.context import NodeContext

REPEAT_NS: Final = 1 * SECOND_NS
"""Time after which a report that does not show in the metadata is repeated."""


class MasterKeyReports:
    """Reports of one broker."""

    def __init__(self, context: NodeContext) -> None:
        """Start with nothing reported."""
        self._context = context
        self._next_at: Instant | None = None

    def look(self, now: Instant) -> None:
        """Report if this broker is registered, and its report differs from its keys."""
        context = self._context
        own = context.state.brokers.get(context.broker)
        known = context.data_keys.masters.known
        if (
            own is None
            or own.removed
            or own.master_keys == known
            or not context.is_caught_up
            or context.is_stopping
            or context.state.feature_level < ENCRYPTION_LEVEL
        ):
            self._next_at = None
            return
        if self._next_at is not None and now < self._next_at:
            return
        self._next_at = Instant(now + REPEAT_NS)
        command = ReportMasterKeys(broker=own.broker, broker_epoch=own.broker_epoch, keys=known)
        context.propose(command, now, _ignore)

    def next_deadline(self) -> Instant | None:
        """Time of the next `look`, `None` for never."""
        return self._next_at


def _ignore(_outcome: object) -> None:
    """Ignore the answer: the metadata show what is reported."""
