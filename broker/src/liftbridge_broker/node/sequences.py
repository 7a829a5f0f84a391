"""Where an idempotent publisher stands in each partition of its stream, as their leaders know.

`InitPublisher` answers with the next sequence of every partition. Only the leader of one knows it,
and only once its metadata hold the registration: from then on it refuses what the former life of
the publisher has under way. It tells once all that it knows of is committed, because a publisher
does not send again what it is told to be stored. So the broker that proposed the registration asks
the leaders, again and again until all have answered or the time is over. Soft state: a leader keeps
nothing of a question it cannot answer yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from liftbridge_broker.controller.state import ClusterState, PublisherState
from liftbridge_broker.errors import LiftbridgeError, NotFoundError, UnavailableError
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    PartitionId,
    PartitionNumber,
    PublisherId,
    StreamName,
)
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.replica_host import Speaker
from liftbridge_broker.node.roles import Role
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_bodies import SequencesReply, SequencesRequest

WAIT_NS: Final = 3_000 * MILLISECOND_NS
"""Time after which a publisher is refused; a dead leader is replaced sooner."""

ASK_NS: Final = 50 * MILLISECOND_NS
"""Time between two questions."""

WAITS_MAX: Final = 256
"""Publishers that may wait at the same time: each of them asks every leader of its stream."""

_SILENT: Final = "it is away, or messages of the publisher are not committed yet"

Sequences = Mapping[PartitionNumber, int]
Done = Callable[[Sequences | LiftbridgeError], None]
"""Gets the next sequence of each partition, or why one is not known; once."""


class SequencesHost(Protocol):
    """What is asked of the node."""

    partitions: dict[PartitionId, Partition]

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        ...

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        ...


@dataclass(slots=True, eq=False)
class _Wait:
    """A publisher that waits.

    Attributes:
        stream: Name of its stream.
        publisher: What was registered.
        unknown: Partitions that were not told of yet, by id.
        done: What to call in the end.
        ends_at: When it is refused.
        found: Sequences told so far.
    """

    stream: StreamName
    publisher: PublisherState
    unknown: dict[PartitionId, PartitionNumber]
    done: Done
    ends_at: Instant
    found: dict[PartitionNumber, int] = field(default_factory=dict)


class PublisherSequences:
    """Publishers that wait, and answers to the same question of others."""

    def __init__(self, host: SequencesHost, speaker: Speaker | None) -> None:
        """Begin with nobody who waits; without `speaker` this broker leads everything."""
        self._host = host
        self._speaker = speaker
        self._waits: dict[_Wait, None] = {}  # in the order in which their time is over
        self._ask_at = Instant(0)

    def find(self, stream: StreamName, publisher: PublisherState, done: Done, now: Instant) -> None:
        """Call `done` once all partitions of a stream are known, or after `WAIT_NS`.

        Args:
            stream: Name of the stream.
            publisher: A publisher whose registration was applied here.
            done: Gets `UnavailableError` when a leader does not tell or `WAITS_MAX` wait already,
                `NotFoundError` when the stream goes meanwhile.
            now: Present time.
        """
        found = self._host.state.stream(stream)
        if found is None:
            done(_gone(stream))
            return
        if len(self._waits) >= WAITS_MAX:
            text = f"{WAITS_MAX} publishers wait already to be told where they stand"
            done(UnavailableError(text))
            return
        unknown = {state.partition_id: state.number for state in found.partitions}
        wait = _Wait(stream, publisher, unknown, done, Instant(now + WAIT_NS))
        if not self._waits:
            self._ask_at = Instant(now + ASK_NS)
        self._waits[wait] = None
        self._ask(wait)
        if self._speaker is None and wait in self._waits:
            self._give_up(wait)  # nobody else can tell

    def on_peer(self, header: PeerHeader) -> bool:
        """Take a message of another broker; returns whether it was one of these."""
        match header.body:
            case SequencesRequest(publisher_id, publisher_epoch, partitions):
                places = self._known(publisher_id, publisher_epoch, partitions)
                if places and self._speaker is not None:
                    reply = SequencesReply(publisher_id, publisher_epoch, places)
                    self._speaker.send(header.sender, Channel.METADATA, reply)
            case SequencesReply(publisher_id, publisher_epoch, places):
                for wait in list(self._waits):
                    if wait.publisher == (publisher_id, publisher_epoch):
                        self._told(wait, header.sender, places)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Ask again, and refuse those whose time is over."""
        for wait in [wait for wait in self._waits if wait.ends_at <= now]:
            self._give_up(wait)
        if self._waits and self._ask_at <= now:
            self._ask_at = Instant(now + ASK_NS)
            for wait in list(self._waits):
                self._ask(wait)

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` while nobody waits."""
        first = next(iter(self._waits), None)
        return None if first is None else min(first.ends_at, self._ask_at)

    def end(self) -> None:
        """Refuse everybody; the broker stops."""
        for wait in list(self._waits):
            self._end(wait, UnavailableError("broker is stopping"))

    def _ask(self, wait: _Wait) -> None:
        """Ask the present leaders of what is not known yet, this broker first."""
        asked: dict[BrokerId, list[PartitionId]] = {}
        for partition_id in wait.unknown:
            state = self._host.state.partition(partition_id)
            if state is None:
                self._end(wait, _gone(wait.stream))
                return
            if state.leader is not None:
                asked.setdefault(state.leader, []).append(partition_id)
        own = asked.pop(self._host.broker, [])
        if own:
            self._told(wait, self._host.broker, self._known(*wait.publisher, own))
        if self._speaker is not None:
            for leader, led in asked.items():
                question = SequencesRequest(*wait.publisher, tuple(led))
                self._speaker.send(leader, Channel.METADATA, question)

    def _known(
        self,
        publisher_id: PublisherId,
        publisher_epoch: int,
        partitions: Sequence[PartitionId],
    ) -> tuple[tuple[PartitionId, int], ...]:
        """What this broker knows as a leader that fences former epochs."""
        if self._host.state.publisher_epochs.get(publisher_id, -1) < publisher_epoch:
            return ()
        places: list[tuple[PartitionId, int]] = []
        for partition_id in partitions:
            partition = self._host.partitions.get(partition_id)
            if partition is None or partition.offline_reason or partition.role is not Role.LEADER:
                continue
            publishers = partition.publishers
            # What is told counts as stored, and a leader to come may lack what is not committed.
            if publishers.end_of(publisher_id) > partition.log.high_watermark:  # guard L2.told
                continue
            places.append((partition_id, publishers.next_sequence(publisher_id)))
        return tuple(places)

    def _told(
        self, wait: _Wait, leader: BrokerId, places: Sequence[tuple[PartitionId, int]]
    ) -> None:
        """A broker told; one that led before does not count."""
        for partition_id, sequence in places:
            state = self._host.state.partition(partition_id)
            if state is not None and state.leader == leader and partition_id in wait.unknown:
                wait.found[wait.unknown.pop(partition_id)] = sequence
        if not wait.unknown:
            self._end(wait, wait.found)

    def _give_up(self, wait: _Wait) -> None:
        partition_id, number = next(iter(wait.unknown.items()))
        state = self._host.state.partition(partition_id)
        leader = None if state is None else state.leader
        what = "has no leader" if leader is None else f"waits for its leader, {leader}: {_SILENT}"
        self._end(wait, UnavailableError(f"partition {number} of stream {wait.stream} {what}"))

    def _end(self, wait: _Wait, outcome: Sequences | LiftbridgeError) -> None:
        if wait in self._waits:
            del self._waits[wait]
            wait.done(outcome)


def _gone(stream: StreamName) -> NotFoundError:
    return NotFoundError(f"no such stream: {stream}")
