"""Next sequences of an idempotent publisher in each partition, as known to the leaders.

`InitPublisher` answers with the next sequence of every partition. Only the partition's leader knows
it, and only once its metadata hold the registration: from then on it refuses messages in flight
from the publisher's earlier epoch. It answers once all records it knows of are committed, because a
publisher does not resend records reported as stored. So the broker that proposed the registration
asks the leaders repeatedly, until all have answered or the time is over. Soft state: a leader keeps
nothing of a question it cannot answer yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import LiftbridgeError, NotFoundError, UnavailableError
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    PartitionId,
    PartitionNumber,
    PublisherId,
    StreamName,
)
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import SequencesReply, SequencesRequest
from liftbridge_broker.wire.peer.messages import PeerHeader

WAIT_NS: Final = 3_000 * MILLISECOND_NS
"""Time after which a publisher is refused; a dead leader is replaced sooner."""

ASK_NS: Final = 50 * MILLISECOND_NS
"""Time between two questions."""

WAITS_MAX: Final = 256
"""Publishers that may wait at the same time; for each, the broker asks all leaders of a stream."""

_SILENT: Final = "it does not answer, or messages of the publisher are not committed yet"

Sequences = Mapping[PartitionNumber, int]
Done = Callable[[Sequences | LiftbridgeError], None]
"""Called once with the next sequence of each partition, or the error."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A publisher that waits.

    Attributes:
        stream: Name of its stream.
        publisher: The registration.
        unknown: Partitions without an answer yet, by id.
        done: Called at the end.
        ends_at: Time at which it is refused.
        found: Sequences received so far.
    """

    stream: StreamName
    publisher: PublisherState
    unknown: dict[PartitionId, PartitionNumber]
    done: Done
    ends_at: Instant
    found: dict[PartitionNumber, int] = field(default_factory=dict)


class PublisherSequences:
    """Publishers that wait for their sequences; also answers other brokers' questions for them."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[PartitionId, Partition],
        link: PeerLink | None,
    ) -> None:
        """Start without waits; without `link`, this broker leads all partitions."""
        self._context = context
        self._partitions = partitions
        self._link = link
        self._waits: dict[_Wait, None] = {}  # in the order of their deadlines
        self._ask_at = Instant(0)

    def find(self, stream: StreamName, publisher: PublisherState, done: Done, now: Instant) -> None:
        """Call `done` once all partitions of a stream are known, or after `WAIT_NS`.

        Args:
            stream: Name of the stream.
            publisher: A publisher whose registration was applied here.
            done: Gets `UnavailableError` when a leader does not answer or `WAITS_MAX` wait already,
                `NotFoundError` when the stream is deleted meanwhile.
            now: Present time.
        """
        stream_state = self._context.state.stream(stream)
        if stream_state is None:
            done(_gone(stream))
            return
        if len(self._waits) >= WAITS_MAX:
            text = f"{WAITS_MAX} publishers already wait for their next sequences"
            done(UnavailableError(text))
            return
        unknown = {state.partition_id: state.number for state in stream_state.partitions}
        wait = _Wait(stream, publisher, unknown, done, Instant(now + WAIT_NS))
        if not self._waits:
            self._ask_at = Instant(now + ASK_NS)
        self._waits[wait] = None
        self._ask(wait)
        if self._link is None and wait in self._waits:
            self._give_up(wait)  # no other broker can answer

    def on_peer(self, header: PeerHeader) -> bool:
        """Handle a message; return whether it belongs to this exchange."""
        match header.body:
            case SequencesRequest(publisher_id, publisher_epoch, partitions):
                places = self._known(publisher_id, publisher_epoch, partitions)
                if places and self._link is not None:
                    reply = SequencesReply(publisher_id, publisher_epoch, places)
                    self._link.send(header.sender, Channel.METADATA, reply)
            case SequencesReply(publisher_id, publisher_epoch, places):
                for wait in list(self._waits):
                    if wait.publisher == (publisher_id, publisher_epoch):
                        self._on_sequences(wait, header.sender, places)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Repeat questions, and refuse publishers that timed out."""
        for wait in [wait for wait in self._waits if wait.ends_at <= now]:
            self._give_up(wait)
        if self._waits and self._ask_at <= now:
            self._ask_at = Instant(now + ASK_NS)
            for wait in list(self._waits):
                self._ask(wait)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` without waits."""
        first = next(iter(self._waits), None)
        return None if first is None else min(first.ends_at, self._ask_at)

    def end(self) -> None:
        """Refuse all waiting publishers, because the broker stops."""
        for wait in list(self._waits):
            self._end(wait, UnavailableError("broker is stopping"))

    def _ask(self, wait: _Wait) -> None:
        """Ask the leaders of the partitions still unknown, this broker first."""
        asked: dict[BrokerId, list[PartitionId]] = {}
        for partition_id in wait.unknown:
            state = self._context.state.partition(partition_id)
            if state is None:
                self._end(wait, _gone(wait.stream))
                return
            if state.leader is not None:
                asked.setdefault(state.leader, []).append(partition_id)
        own = asked.pop(self._context.broker, [])
        if own:
            self._on_sequences(wait, self._context.broker, self._known(*wait.publisher, own))
        if self._link is not None:
            for leader, led in asked.items():
                question = SequencesRequest(*wait.publisher, tuple(led))
                self._link.send(leader, Channel.METADATA, question)

    def _known(
        self,
        publisher_id: PublisherId,
        publisher_epoch: int,
        partitions: Sequence[PartitionId],
    ) -> tuple[tuple[PartitionId, int], ...]:
        """Return the sequences known to this broker as a leader that fences earlier epochs."""
        if self._context.state.publisher_epochs.get(publisher_id, -1) < publisher_epoch:
            return ()
        places: list[tuple[PartitionId, int]] = []
        for partition_id in partitions:
            partition = self._partitions.get(partition_id)
            if partition is None or partition.offline_reason or partition.role is not Role.LEADER:
                continue
            publishers = partition.writer.publishers
            # The publisher treats the answer as stored, and a later leader may lack uncommitted
            # records.
            if publishers.end_of(publisher_id) > partition.log.high_watermark:  # guard L2.told
                continue
            places.append((partition_id, publishers.next_sequence(publisher_id)))
        return tuple(places)

    def _on_sequences(
        self, wait: _Wait, leader: BrokerId, places: Sequence[tuple[PartitionId, int]]
    ) -> None:
        """Handle an answer; ignore former leaders."""
        for partition_id, sequence in places:
            state = self._context.state.partition(partition_id)
            if state is not None and state.leader == leader and partition_id in wait.unknown:
                wait.found[wait.unknown.pop(partition_id)] = sequence
        if not wait.unknown:
            self._end(wait, wait.found)

    def _give_up(self, wait: _Wait) -> None:
        partition_id, number = next(iter(wait.unknown.items()))
        state = self._context.state.partition(partition_id)
        leader = None if state is None else state.leader
        what = "has no leader" if leader is None else f"waits for its leader, {leader}: {_SILENT}"
        self._end(wait, UnavailableError(f"partition {number} of stream {wait.stream} {what}"))

    def _end(self, wait: _Wait, outcome: Sequences | LiftbridgeError) -> None:
        if wait in self._waits:
            del self._waits[wait]
            wait.done(outcome)


def _gone(stream: StreamName) -> NotFoundError:
    return NotFoundError(f"no such stream: {stream}")
