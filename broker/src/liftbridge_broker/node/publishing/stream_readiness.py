"""Delays the report of a new stream until its partition leaders listen on their subjects.

A non-leader forwards published messages over NATS, and NATS drops messages without a listener. So
the broker that proposed the stream asks each leader repeatedly until it answers, and only then
answers its client. Soft state: a leader keeps nothing of a question it cannot answer yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.listening import Listening
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import ListeningReply, ListeningRequest
from liftbridge_broker.wire.peer.messages import PeerHeader

READINESS_NS: Final = 1_000 * MILLISECOND_NS
"""Time after which the client is answered anyway; a leader may be dead."""

PARTITION_NS: Final = 2 * MILLISECOND_NS
"""Extra time per partition: leaders open many partitions one after another."""

ASK_FIRST_NS: Final = 5 * MILLISECOND_NS
ASK_NS: Final = 50 * MILLISECOND_NS
"""Longest interval between questions; the interval doubles from `ASK_FIRST_NS`."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A caller that waits for leaders to listen.

    Attributes:
        unheard: Partitions whose leaders have not answered yet.
        done: Called at the end.
        ends_at: Latest time for `done`.
    """

    unheard: set[PartitionId]
    done: Callable[[], None]
    ends_at: Instant


class StreamReadiness:
    """Callers that wait for leaders to listen; also answers other brokers that ask the same."""

    def __init__(self, context: NodeContext, listening: Listening, link: PeerLink) -> None:
        """Start without callers."""
        self._context = context
        self._listening = listening
        self._link = link
        self._waits: dict[_Wait, None] = {}  # in order of arrival; checked every `ASK_NS`
        self._unheard: dict[PartitionId, list[_Wait]] = {}
        self._ask_at = Instant(0)
        self._pause_ns = ASK_FIRST_NS

    def wait(
        self, partitions: Sequence[PartitionId], done: Callable[[], None], now: Instant
    ) -> None:
        """Call `done` once the leaders of all given partitions listen, or after a timeout."""
        if not partitions:
            done()
            return
        time_ns = READINESS_NS + PARTITION_NS * len(partitions)
        wait = _Wait(set(partitions), done, Instant(now + time_ns))
        self._waits[wait] = None
        for partition_id in partitions:
            self._unheard.setdefault(partition_id, []).append(wait)
        self._pause_ns = ASK_FIRST_NS
        self._ask_at = Instant(now + ASK_FIRST_NS)
        self._ask(partitions)

    def on_peer(self, header: PeerHeader) -> bool:
        """Handle a message; return whether it belongs to this exchange."""
        match header.body:
            case ListeningRequest(partitions):
                self._answer(
                    partitions,
                    lambda found: self._link.send(
                        header.sender, Channel.METADATA, ListeningReply(found)
                    ),
                )
            case ListeningReply(partitions):
                self._heard(header.sender, partitions)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Repeat questions, and end waits that timed out."""
        for wait in [wait for wait in self._waits if wait.ends_at <= now]:
            self._let_go(wait)
        if self._waits and self._ask_at <= now:
            self._pause_ns = min(2 * self._pause_ns, ASK_NS)
            self._ask_at = Instant(now + self._pause_ns)
            self._ask(list(self._unheard))

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` without waits."""
        first = next(iter(self._waits), None)
        return None if first is None else min(first.ends_at, self._ask_at)

    def end(self) -> None:
        """End all waits, because the broker stops."""
        for wait in list(self._waits):
            self._let_go(wait)

    def _ask(self, partitions: Sequence[PartitionId]) -> None:
        asked: dict[BrokerId, list[PartitionId]] = {}
        for partition_id in partitions:
            state = self._context.state.partition(partition_id)
            if state is None:
                self._settle(partition_id)  # deleted meanwhile: no leader will listen
            elif state.leader is not None:
                asked.setdefault(state.leader, []).append(partition_id)
        for leader, led in asked.items():
            if leader == self._context.broker:
                self._answer(tuple(led), lambda found: self._heard(self._context.broker, found))
            else:
                self._link.send(leader, Channel.METADATA, ListeningRequest(tuple(led)))

    def _answer(
        self,
        partitions: tuple[PartitionId, ...],
        reply: Callable[[tuple[PartitionId, ...]], None],
    ) -> None:
        """Reply with the partitions that listen here, once the NATS server has subscribed them."""
        listening = tuple(
            partition for partition in partitions if self._listening.is_listening(partition)
        )
        if listening:
            self._context.messaging.when_subscribed(lambda: reply(listening))

    def _heard(self, leader: BrokerId, partitions: tuple[PartitionId, ...]) -> None:
        """Record that a leader listens; ignore former leaders."""
        for partition_id in partitions:
            state = self._context.state.partition(partition_id)
            if state is not None and state.leader == leader:
                self._settle(partition_id)

    def _settle(self, partition_id: PartitionId) -> None:
        """End the waits for a partition."""
        for wait in self._unheard.pop(partition_id, ()):
            wait.unheard.discard(partition_id)
            if not wait.unheard:
                self._let_go(wait)

    def _let_go(self, wait: _Wait) -> None:
        """End a wait; its callback may start further waits."""
        del self._waits[wait]
        for partition_id in wait.unheard:
            others = [other for other in self._unheard[partition_id] if other is not wait]
            if others:
                self._unheard[partition_id] = others
            else:
                del self._unheard[partition_id]
        wait.done()


def once_ready(
    context: NodeContext,
    readiness: StreamReadiness | None,
    name: StreamName,
    reply: Callable[[object], None],
) -> Callable[[object], None]:
    """Delay the outcome until the new stream listens; otherwise the first messages would be lost.

    Args:
        context: State and ports that the parts of the node share.
        readiness: Asks the leaders; `None` for a sole broker.
        name: Name of the stream.
        reply: Gets the outcome of the command that creates it.

    Returns:
        The callback that gets the outcome.
    """

    def answered(outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            reply(outcome)
        elif readiness is None:
            context.openings.when_open(
                lambda: context.messaging.when_subscribed(lambda: reply(outcome))
            )
        else:
            stream = context.state.stream(name)  # perhaps deleted meanwhile: no leader will listen
            partitions = () if stream is None else stream.partitions
            partition_ids = [partition.partition_id for partition in partitions]
            readiness.wait(partition_ids, lambda: reply(outcome), context.now)

    return answered
