"""Gives leaderships of locked streams to in-sync replicas on brokers that have the master key."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from liftbridge_broker.controller.commands import Leadership, Resign
from liftbridge_broker.model.ids import BrokerId, Instant, stream_of
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.context import NodeContext

LOOK_NS: Final = 1 * SECOND_NS
"""Time between two looks while a stream is locked; a refused proposal is made again."""
GIVEN_UP_MAX: Final = 1_000
"""Partitions in one look."""


class LockedLeaderships:
    """Leaderships of one broker that it cannot fill for lack of a key."""

    def __init__(self, context: NodeContext) -> None:
        """Start with nothing to give up."""
        self._context = context
        self._next_at: Instant | None = None

    def look(self, now: Instant) -> None:
        """Give up what another broker can serve, if that is due."""
        context = self._context
        if not context.data_keys.locked_count or context.is_stopping or not context.is_caught_up:
            self._next_at = None
            return
        if self._next_at is not None and now < self._next_at:
            return
        self._next_at = Instant(now + LOOK_NS)
        own = context.state.brokers.get(context.broker)
        if own is None:
            return
        given_up: dict[BrokerId, list[Leadership]] = {}
        for leadership, successor in islice(self._able(), GIVEN_UP_MAX):
            given_up.setdefault(successor, []).append(leadership)
        for successor, leaderships in given_up.items():
            command = Resign(
                broker=own.broker,
                broker_epoch=own.broker_epoch,
                partitions=tuple(leaderships),
                successor=successor,
                reason="stream locked: no master key",
            )
            context.propose(command, now, _ignore)

    def _able(self) -> Iterator[tuple[Leadership, BrokerId]]:
        """Yield the leaderships that another broker can fill, with that broker."""
        state = self._context.state
        for number in self._context.data_keys.locked_partitions():
            partition, stream = state.partition(number), state.streams.get(stream_of(number))
            if partition is None or stream is None or partition.leader != self._context.broker:
                continue
            for replica in partition.isr:
                broker = state.brokers[replica]
                is_other = replica != self._context.broker
                if is_other and broker.can_lead and broker.can_unwrap(stream.data_key):
                    yield Leadership(number, partition.leader_epoch), replica
                    break

    def next_deadline(self) -> Instant | None:
        """Time of the next `look`, `None` for never."""
        return self._next_at


def _ignore(_outcome: object) -> None:
    """Ignore the answer: the metadata show who leads."""
