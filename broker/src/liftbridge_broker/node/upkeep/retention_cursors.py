"""Look-up of cursors at the brokers that keep them: of those that limit retention, and others.

Retention of a stream with `retention_cursor` removes records below that cursor. The cursor is a
record in `__cursors`, whose leader may be another broker. That leader is asked before each removal,
repeatedly for a bounded time, and answers only with certain knowledge (`node.reading.answers`),
because a cursor may move back and a stale value would remove too much. Without an answer nothing is
removed until the next round. The same holds after an unclean election since the cursor was set: the
records below it may be different ones, which the consumer has not seen. Soft state on both sides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.groups.cursors import CursorPosition, cursor_key, cursors_partition
from liftbridge_broker.model.ids import BrokerId, Instant, Offset, PartitionId, stream_of
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.reading.answers import Answers, Question, ask
from liftbridge_broker.node.reading.cursors import CursorTables
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.cleaning.retention import CursorFound, CursorUnknown
from liftbridge_broker.wire.peer.bodies import CursorReply, CursorRequest
from liftbridge_broker.wire.peer.messages import PeerHeader

WAIT_NS: Final = 2_000 * MILLISECOND_NS
"""Time after which a round of retention stops waiting for an answer."""

ASK_NS: Final = 200 * MILLISECOND_NS
"""Time between two questions for the same cursor."""

WAITS_MAX: Final = 1_000
"""Partitions that may wait for their cursors at a time; the rest wait for the next round."""

_QUESTION_BITS: Final = 31
"""Low bits of a question's number; the higher bits identify the asking process."""


PositionFound = Callable[[CursorPosition | CursorUnknown, Instant], None]
"""Called once with a cursor as it is stored, or why it is unknown, and the time."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A partition that waits for its cursor.

    Attributes:
        partition: The partition.
        key: Key of its cursor.
        found: Called with the result.
        ends_at: Latest time for `found`.
    """

    partition: PartitionId
    key: bytes
    found: PositionFound
    ends_at: Instant


class RetentionCursors:
    """Partitions that wait for their cursors; also answers other brokers' questions for cursors."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[PartitionId, Partition],
        cursors: CursorTables,
        answers: Answers | None = None,
        link: PeerLink | None = None,
    ) -> None:
        """Start without waits.

        Args:
            context: State and ports that the parts of the node share.
            partitions: Partitions of which a replica is held here.
            cursors: Finds cursors in partitions that are led here.
            answers: Questions that wait; `None` for a sole broker.
            link: Sends messages to other brokers; without it, this broker leads all partitions.
                Answers to questions of an earlier process do not match its `incarnation_id`.
        """
        start = "" if link is None else link.incarnation_id
        self._context = context
        self._partitions = partitions
        self._cursors = cursors
        self._answers = answers
        self._link = link
        self._waits: dict[int, _Wait] = {}  # in the order of their deadlines
        self._ask_at = Instant(0)
        self._question = crc32(start.encode()) << _QUESTION_BITS

    def find(self, partition_id: PartitionId, name: str, found: CursorFound, now: Instant) -> None:
        """Call `found` with the first offset that a cursor protects, or after `WAIT_NS`."""

        def judged(position: CursorPosition | CursorUnknown, now: Instant) -> None:
            found(self._protected(partition_id, position), now)

        self.find_position(partition_id, name, judged, now)

    def _protected(
        self, partition_id: PartitionId, position: CursorPosition | CursorUnknown
    ) -> Offset | CursorUnknown:
        """Return the offset of a cursor, if it belongs to the present records of its partition."""
        if isinstance(position, CursorUnknown):
            return position
        if position.stream_id != stream_of(partition_id):  # guard Retention.stream
            return CursorUnknown.FORMER
        if position.unclean_epoch != self._unclean(partition_id):  # guard Retention.unclean
            return CursorUnknown.UNCLEAN
        return Offset(position.offset)

    def find_position(
        self, partition_id: PartitionId, name: str, found: PositionFound, now: Instant
    ) -> None:
        """Call `found` with the position of a partition's cursor, or after `WAIT_NS`."""
        partition = self._partitions.get(partition_id)
        if partition is None or len(self._waits) >= WAITS_MAX:
            found(CursorUnknown.UNANSWERED, now)
            return
        key = cursor_key(partition.stream, partition.number, name)
        self._question += 1
        if not self._waits:
            self._ask_at = Instant(now + ASK_NS)
        wait = _Wait(partition_id, key, found, Instant(now + WAIT_NS))
        self._waits[self._question] = wait
        self._ask(self._question, wait)

    def on_peer(self, header: PeerHeader) -> bool:
        """Handle a message; return whether it belongs to this exchange."""
        match header.body:
            case CursorRequest(question, partition, key):
                self._answer(header.sender, question, partition, key)
            case CursorReply(question, offset, stream_id, unclean_epoch):
                position = None
                if offset is not None:
                    position = CursorPosition(offset, stream_id, unclean_epoch)
                self._on_position(question, position)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Repeat questions, and end waits that timed out."""
        for question in [number for number, wait in self._waits.items() if wait.ends_at <= now]:
            self._end(question, CursorUnknown.UNANSWERED)
        if self._waits and self._ask_at <= now:
            self._ask_at = Instant(now + ASK_NS)
            for question, wait in list(self._waits.items()):
                self._ask(question, wait)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` without waits."""
        first = next(iter(self._waits.values()), None)
        return None if first is None else min(first.ends_at, self._ask_at)

    def end(self) -> None:
        """End all waits, because the broker stops."""
        for question in list(self._waits):
            self._end(question, CursorUnknown.UNANSWERED)

    def _ask(self, question: int, wait: _Wait) -> None:
        """Ask the current leader of the partition that keeps a cursor."""
        cursors = self._context.state.stream(CURSORS_STREAM)
        if cursors is None:
            self._end(question, CursorUnknown.ABSENT)
            return
        kept = cursors.partitions[cursors_partition(wait.key, len(cursors.partitions))]
        if kept.leader == self._context.broker or self._link is None:
            self._look_up(
                kept.partition_id,
                wait.key,
                lambda position: self._found_here(question, position),
            )
        elif kept.leader is not None:
            request = CursorRequest(question, kept.partition_id, wait.key)
            self._link.send(kept.leader, Channel.METADATA, request)

    def _found_here(self, question: int, position: CursorPosition | LiftbridgeError) -> None:
        if not isinstance(position, LiftbridgeError):
            self._on_position(question, None if position.offset < 0 else position)
        elif self._link is None:
            self._end(question, CursorUnknown.UNANSWERED)  # no other broker can answer

    def _answer(self, sender: BrokerId, question: int, partition: PartitionId, key: bytes) -> None:
        """Send a cursor's position to another broker; send nothing if it is not certain."""

        def found(position: CursorPosition | LiftbridgeError) -> None:
            if not isinstance(position, LiftbridgeError) and self._link is not None:
                offset = None if position.offset < 0 else Offset(position.offset)
                reply = CursorReply(question, offset, position.stream_id, position.unclean_epoch)
                self._link.send(sender, Channel.METADATA, reply)

        self._look_up(partition, key, found)

    def _look_up(
        self,
        partition_id: PartitionId,
        key: bytes,
        found: Callable[[CursorPosition | LiftbridgeError], None],
    ) -> None:
        """Look up a cursor kept here, if this broker certainly leads."""
        answers, now = self._answers, self._context.now
        partition = self._partitions.get(partition_id)
        if partition is None or partition.stream != CURSORS_STREAM:
            return

        def may_look(error: LiftbridgeError | None) -> None:
            if error is not None:
                found(error)
            else:
                self._cursors.look_up(partition, key, found)

        ask(answers, partition, Question.END, may_look, now)  # guard Retention.certain

    def _on_position(self, question: int, position: CursorPosition | None) -> None:
        """Handle a cursor's position; ignore answers without a wait."""
        self._end(question, CursorUnknown.ABSENT if position is None else position)

    def _unclean(self, partition_id: PartitionId) -> int:
        """Return the epoch of the last election that may have replaced records at known offsets."""
        return self._context.state.unclean_epoch(partition_id)

    def _end(self, question: int, cursor: CursorPosition | CursorUnknown) -> None:
        wait = self._waits.pop(question, None)
        if wait is not None:
            wait.found(cursor, self._context.now)
