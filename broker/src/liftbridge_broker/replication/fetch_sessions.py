"""Fetch sessions: one incremental fetch per pair of brokers (KIP-227), both ends of it.

A broker that follows partitions of another broker almost always has one fetch waiting there. Its
`FollowerSession` sends only changed positions. The other broker's `LeaderSession` remembers the
rest, checks only partitions with events, and holds the fetch until it has news (records, a high
watermark, a refusal) or has held it long enough. So an idle pair of brokers costs one small message
each way per hold, for any number of partitions. Both are free of I/O; the owner sends and delivers.

A fetch or an answer that is lost ends the session: the next fetch is a full one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from liftbridge_broker.model.fetching import (
    Accepted,
    Diverging,
    FetchBody,
    FetchedHead,
    FetchError,
    FetchOutcome,
    FetchPosition,
    FetchReplyBody,
    Refused,
    SessionClock,
)
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.units import KIB, MILLISECOND_NS
from liftbridge_broker.ports.led_partition import LedPartition
from liftbridge_broker.replication.isr import NEVER

SESSION_EPOCH_MAX: Final = 2**31 - 1
FULL: Final = 0
"""Number of a full fetch in its session."""

EVERY_FETCH: Final = 0
"""Correlation id of an answer to whatever was fetched: that the leader lost its connection."""

_UNSENT: Final = -1


class SessionLimits(NamedTuple):
    """Times of a follower's session, in nanoseconds.

    Attributes:
        timeout_ns: Time without an answer after which a fetch counts as lost.
        lost_ns: Pause after the leader lost the session.
        retry_ns: Pause before a refused position is sent again.
    """

    timeout_ns: int = 1_500 * MILLISECOND_NS
    lost_ns: int = 50 * MILLISECOND_NS
    retry_ns: int = 50 * MILLISECOND_NS


class FetchRequest(NamedTuple):
    """A fetch to be sent; the answer has the same correlation id."""

    correlation_id: int
    body: FetchBody


class _Waiting(NamedTuple):
    """A fetch whose answer is pending."""

    session_epoch: int
    sent_at: Instant


class FollowerSession:
    """All partitions of one follower that one broker leads.

    Attributes:
        leader: The broker that leads them.
        leader_broker_epoch: Its registration; another one ends the session.
        heard_at: Time of its last answer; initially the time of creation.
    """

    __slots__ = (
        "_correlation_id",
        "_dirty",
        "_forgotten",
        "_limits",
        "_not_before",
        "_positions",
        "_retries",
        "_session_epoch",
        "_session_id",
        "_waiting",
        "heard_at",
        "leader",
        "leader_broker_epoch",
    )

    def __init__(
        self,
        leader: BrokerId,
        *,
        leader_broker_epoch: int,
        first_correlation_id: int,
        limits: SessionLimits,
        now: Instant,
    ) -> None:
        """Start without partitions.

        Args:
            leader: The broker that leads them.
            leader_broker_epoch: Its registration by the metadata here.
            first_correlation_id: Random, so that no answer to an earlier process matches.
            limits: Times.
            now: Current time.
        """
        self.leader = leader
        self.leader_broker_epoch = leader_broker_epoch
        self.heard_at = now
        self._limits = limits
        self._correlation_id = first_correlation_id
        self._positions: dict[PartitionId, FetchPosition] = {}
        self._dirty: dict[PartitionId, None] = {}
        self._forgotten: dict[PartitionId, None] = {}
        self._retries: dict[PartitionId, Instant] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._session_id = 0
        self._session_epoch = FULL
        self._not_before = NEVER

    @property
    def partition_count(self) -> int:
        """Partitions in the session."""
        return len(self._positions)

    def put(self, position: FetchPosition) -> None:
        """Follow a partition, or update its position; no-op when the position is known."""
        partition = position.partition
        if self._positions.get(partition) == position:
            return
        self._positions[partition] = position
        self._dirty[partition] = None
        self._forgotten.pop(partition, None)
        self._retries.pop(partition, None)

    def retry(self, partition: PartitionId, now: Instant) -> None:
        """Send an unchanged position again after a pause, because it was refused."""
        if partition in self._positions and partition not in self._dirty:
            self._retries[partition] = Instant(now + self._limits.retry_ns)

    def drop(self, partition: PartitionId) -> None:
        """Stop following a partition at this leader."""
        if self._positions.pop(partition, None) is not None:
            self._dirty.pop(partition, None)
            self._retries.pop(partition, None)
            if self._session_epoch != FULL:
                self._forgotten[partition] = None

    def set_leader_broker_epoch(self, broker_epoch: int) -> None:
        """Handle a new registration of the leader, which lost the session."""
        if broker_epoch != self.leader_broker_epoch:
            self.leader_broker_epoch = broker_epoch
            self.reset()

    def reset(self) -> None:
        """Begin a new session with the next fetch.

        Call it also after a new registration of this broker.
        """
        self._session_id = 0
        self._session_epoch = FULL
        self._waiting.clear()
        self._forgotten.clear()
        self._retries.clear()
        self._dirty = dict.fromkeys(self._positions)

    def next_request(self, now: Instant) -> FetchRequest | None:
        """Return the fetch to send now, if any; the owner calls it after every session event.

        The leader holds one fetch. If a position changes meanwhile, a newer fetch is sent
        immediately, and the leader then answers the held fetch.
        """
        if not self._positions:
            if self._session_epoch != FULL:
                self.reset()
            return None
        oldest = next(iter(self._waiting.values()), None)
        if oldest is not None and now - oldest.sent_at >= self._limits.timeout_ns:
            self.reset()  # guard F2.timeout
        self._take_retries(now)
        if self._waiting and (
            # The id of a new session is known only with its first answer.
            next(reversed(self._waiting.values())).session_epoch == FULL  # guard F2.first
            or not (self._dirty or self._forgotten)
        ):
            return None
        if now < self._not_before:
            return None
        return self._request(now)

    def _take_retries(self, now: Instant) -> None:
        if self._retries:
            due = [partition for partition, at in self._retries.items() if at <= now]
            for partition in due:
                del self._retries[partition]
                self._dirty[partition] = None

    def _request(self, now: Instant) -> FetchRequest:
        if self._session_epoch >= SESSION_EPOCH_MAX:
            self.reset()
        positions = self._positions
        body = FetchBody(
            self._session_id,
            self._session_epoch,
            self.leader_broker_epoch,
            tuple([positions[partition] for partition in self._dirty]),
            tuple(self._forgotten),
        )
        self._dirty.clear()
        self._forgotten.clear()
        self._correlation_id += 1
        self._waiting[self._correlation_id] = _Waiting(self._session_epoch, now)
        self._session_epoch += 1
        return FetchRequest(self._correlation_id, body)

    def on_reply(self, correlation_id: int, body: FetchReplyBody, now: Instant) -> bool:
        """Handle an answer.

        Returns:
            Whether the answer is valid. If so, the owner passes each partition's part to its core,
            updates positions (`put`, `retry`), and takes the next fetch. If not, it drops the
            answer.
        """
        if correlation_id == EVERY_FETCH and body.is_session_lost:
            self.reset()  # guard Session.unheard
            return False
        waiting = self._waiting.get(correlation_id)
        if waiting is None:  # guard F3.correlates
            return False
        if body.session_epoch != waiting.session_epoch:  # guard Session.number
            return False
        if body.is_session_lost:
            self.heard_at = now
            self.reset()
            self._not_before = Instant(now + self._limits.lost_ns)
            return False
        if waiting.session_epoch == FULL:
            self._session_id = body.session_id
        elif body.session_id != self._session_id:  # guard Session.reply
            return False
        self.heard_at = now
        if next(iter(self._waiting)) == correlation_id:
            del self._waiting[correlation_id]
        else:
            # The leader answers in order, so an answer was lost, and the leader will not repeat it.
            self.reset()  # guard Session.order
        return True

    def next_deadline(self) -> Instant | None:
        """Return the time to call `next_request` if no event comes first; may be in the past."""
        if not self._positions:
            return None
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None:
            return self._not_before
        timeout = Instant(oldest.sent_at + self._limits.timeout_ns)
        return min(timeout, *self._retries.values()) if self._retries else timeout


class LeaderSessionLimits(NamedTuple):
    """Bounds of a leader's session; times in nanoseconds.

    Attributes:
        hold_ns: Time for which a fetch is held without news. At most 0.5 s, and well
            below the silence after which the follower reports this leader.
        quiet_ns: Time for which a high watermark may wait to be sent together with records.
        resend_ns: Time for which sent records are not sent again, even if a fetch does not cover
            them: the answer may still be in flight.
        reply_bytes_max: Bytes of records in one answer; the last partition may exceed it.
        partition_bytes_max: Bytes of records of one partition in one answer; at least one batch is
            sent.
        partitions_max: Partitions with records in one answer: the follower appends to each log by
            itself, in one turn.
    """

    hold_ns: int = 300 * MILLISECOND_NS
    quiet_ns: int = 5 * MILLISECOND_NS
    resend_ns: int = 200 * MILLISECOND_NS
    reply_bytes_max: int = 1024 * KIB
    partition_bytes_max: int = 256 * KIB
    partitions_max: int = 32


class Answer(NamedTuple):
    """An answer to be sent.

    Attributes:
        correlation_id: Correlation id of the fetch.
        body: Heads of the partitions with news.
        pieces: Records of the partitions in the same order, for the tail of the frame.
    """

    correlation_id: int
    body: FetchReplyBody
    pieces: Sequence[bytes | memoryview]


@dataclass(slots=True, eq=False)
class _Member:
    """A partition of the session.

    Attributes:
        position: The follower's last position.
        outcome: Result of the leader's check of the position.
        is_answered: Whether a refusal or divergence was sent.
        answered_offset: Offset that was last answered.
        high_watermark: High watermark sent last, `_UNSENT` for none.
        log_start: Log start offset sent last.
        compacted: Least compacted offset sent last.
        sent_offset: Offset of the records sent last; `_UNSENT` for none.
        resend_at: Earliest time to send these records again.
    """

    position: FetchPosition
    outcome: FetchOutcome
    is_answered: bool = False
    answered_offset: int = _UNSENT
    high_watermark: int = _UNSENT
    log_start: int = _UNSENT
    compacted: int = 0
    sent_offset: int = _UNSENT
    resend_at: Instant = NEVER

    def has_taken(self, fetch_offset: Offset) -> bool:
        """Return whether a position shows that the follower applied the last answer.

        Other answers, or the same records twice, may have been in flight. The follower applies the
        first answer and drops later answers for the same position.
        """
        is_beside_records = self.sent_offset == self.answered_offset
        return fetch_offset == self.answered_offset and not is_beside_records


class _Parked(NamedTuple):
    """The held fetch."""

    correlation_id: int
    session_epoch: int
    since: Instant


class _Gathered(NamedTuple):
    """Parts of an answer, filled partition by partition."""

    heads: list[FetchedHead]
    pieces: list[bytes | memoryview]


class LeaderSession:
    """Fetch session of one follower broker at this broker.

    Attributes:
        follower: The follower.
    """

    __slots__ = (
        "_clock",
        "_follower_broker_epoch",
        "_later",
        "_later_at",
        "_limits",
        "_members",
        "_parked",
        "_quiet",
        "_quiet_until",
        "_ready",
        "_resolve",
        "_session_epoch",
        "_session_id",
        "follower",
    )

    def __init__(
        self,
        follower: BrokerId,
        resolve: Callable[[PartitionId], LedPartition | None],
        *,
        first_session_id: int,
        limits: LeaderSessionLimits,
    ) -> None:
        """Create the state without a session.

        Args:
            follower: The follower.
            resolve: Finds a partition that this broker leads.
            first_session_id: Random, so that no fetch in a session of an earlier process matches.
            limits: Bounds.
        """
        assert first_session_id > 0
        self.follower = follower
        self._resolve = resolve
        self._limits = limits
        self._session_id = first_session_id
        self._session_epoch = -1
        self._follower_broker_epoch = 0
        self._members: dict[PartitionId, _Member] = {}
        self._clock = SessionClock(NEVER)
        self._parked: _Parked | None = None
        # Ordered sets of partitions with news, in the order in which they are served.
        self._ready: dict[PartitionId, None] = {}
        self._quiet: dict[PartitionId, None] = {}
        self._quiet_until: Instant | None = None
        self._later: dict[PartitionId, Instant] = {}
        self._later_at: Instant | None = None  # no entry of it is due earlier

    @property
    def partition_count(self) -> int:
        """Partitions in the session."""
        return len(self._members)

    # Fetches.

    def on_request(
        self,
        correlation_id: int,
        body: FetchBody,
        *,
        own_broker_epoch: int,
        follower_broker_epoch: int,
        now: Instant,
    ) -> list[Answer]:
        """Accept a fetch and hold it; afterwards the owner calls `take_answer`.

        Args:
            correlation_id: Id for its answer.
            body: The fetch.
            own_broker_epoch: Registration of this broker.
            follower_broker_epoch: Registration of the sender, from the head of the message.
            now: Current time.

        Returns:
            Answers to send immediately: to the fetch held before, or that the session is lost. A
            duplicate of an earlier fetch gets no answer.
        """
        if follower_broker_epoch < self._follower_broker_epoch:  # guard Session.follower
            return []
        if body.session_epoch == FULL and body.leader_broker_epoch == own_broker_epoch:
            self._begin(follower_broker_epoch)
            answers: list[Answer] = []
        else:
            is_ours = (
                body.session_id == self._session_id
                and follower_broker_epoch == self._follower_broker_epoch
            )
            if is_ours and body.session_epoch <= self._session_epoch:  # guard Session.copy
                return []
            if (
                not is_ours  # guard Session.id
                or body.session_epoch != self._session_epoch + 1  # guard Session.gap
                or body.leader_broker_epoch != own_broker_epoch  # guard Session.leader
            ):
                return [_lost(correlation_id, body.session_epoch)]
            answers = self._answer_parked(now)
        self._session_epoch = body.session_epoch
        self._clock.last_fetch = now
        for partition in body.forgotten:
            self._forget(partition)
        for position in body.partitions:
            self._put(position, now)
        self._parked = _Parked(correlation_id, body.session_epoch, now)
        return answers

    def _begin(self, follower_broker_epoch: int) -> None:
        """Start a session for a full fetch; drop the former session."""
        self._session_id += 1
        self._follower_broker_epoch = follower_broker_epoch
        # Partitions of the former session keep its clock, which no longer advances.
        self._clock = SessionClock(NEVER)
        self._members.clear()
        self._ready.clear()
        self._clear_quiet()
        self._later.clear()
        self._later_at = None
        self._parked = None

    def _answer_parked(self, now: Instant) -> list[Answer]:
        """Answer the held fetch with the current news, because a newer fetch arrived."""
        if self._parked is None:
            return []
        answer = self.take_answer(now)
        if answer is None:
            answer = self._answer(self._parked, _Gathered([], []))
        return [answer]

    def _forget(self, partition: PartitionId) -> None:
        if self._members.pop(partition, None) is not None:
            self._ready.pop(partition, None)
            self._quiet.pop(partition, None)
            self._later.pop(partition, None)
            led = self._resolve(partition)
            if led is not None:
                led.on_forgotten(self.follower)

    def _put(self, position: FetchPosition, now: Instant) -> None:
        partition = position.partition
        member = self._members.get(partition)
        outcome = self._judge(position, now)
        if member is None:
            member = self._members[partition] = _Member(position, outcome)
        else:
            member.position = position
            member.outcome = outcome
            member.is_answered = False
        if not isinstance(outcome, Accepted) or not member.has_taken(position.fetch_offset):
            # The next answer is news, even if no offset changes.
            member.high_watermark = member.log_start = _UNSENT
        if position.fetch_offset != member.sent_offset:
            self._later.pop(partition, None)
        self._ready[partition] = None

    def _judge(self, position: FetchPosition, now: Instant) -> FetchOutcome:
        led = self._resolve(position.partition)
        if led is None:
            return Refused(FetchError.NOT_LEADER)
        return led.on_fetch(self.follower, position, self._clock, now)

    # Events of the partitions.

    def notify(self, partition: PartitionId) -> None:
        """Handle news.

        Records were appended or read from disk, or the high watermark or log start moved.
        """
        if partition in self._members:
            self._ready[partition] = None

    def on_leadership(self, partition: PartitionId, now: Instant) -> None:
        """Handle a change of this broker's leadership of a partition, or of its metadata.

        Earlier positions are checked again, so that a follower that learned of the new leader
        before the leader did gets records without another fetch.
        """
        member = self._members.get(partition)
        if member is not None:
            self._put(member.position, now)

    # Answers.

    def take_answer(self, now: Instant) -> Answer | None:
        """Return the answer that is due now, `None` without news or without a held fetch."""
        parked = self._parked
        if parked is None:
            return None
        self._take_later(now)
        gathered = _Gathered([], [])
        if self._ready:
            self._gather_ready(gathered, now)
        if not self._quiet:
            self._quiet_until = None  # sent with records, or the partition was forgotten
        is_held_long = now - parked.since >= self._limits.hold_ns
        is_quiet_due = self._quiet_until is not None and now >= self._quiet_until
        if not (gathered.heads or is_held_long or is_quiet_due):
            return None
        if self._quiet:
            self._gather_quiet(gathered)
        return self._answer(parked, gathered)

    def _answer(self, parked: _Parked, gathered: _Gathered) -> Answer:
        self._parked = None
        body = FetchReplyBody(
            self._session_id,
            parked.session_epoch,
            is_session_lost=False,
            partitions=tuple(gathered.heads),
        )
        return Answer(parked.correlation_id, body, gathered.pieces)

    def next_deadline(self) -> Instant | None:
        """Return the time to call `take_answer` if no event comes first."""
        parked = self._parked
        if parked is None:
            return None
        due = Instant(parked.since + self._limits.hold_ns)
        if self._quiet_until is not None:
            due = min(due, self._quiet_until)
        return due if self._later_at is None else min(due, self._later_at)

    def _take_later(self, now: Instant) -> None:
        if self._later_at is None or now < self._later_at:
            return
        due = [partition for partition, at in self._later.items() if at <= now]
        for partition in due:
            del self._later[partition]
            self._ready[partition] = None
        self._later_at = min(self._later.values(), default=None)

    def _put_later(self, partition: PartitionId, at: Instant) -> None:
        """Serve a partition again at a time, unless a fetch shows that this is not necessary."""
        self._later[partition] = at
        self._later_at = at if self._later_at is None else min(self._later_at, at)

    def _gather_ready(self, gathered: _Gathered, now: Instant) -> None:
        """Gather partitions with news until the answer is full.

        The remaining partitions are first in the next answer.
        """
        budget, count = self._limits.reply_bytes_max, 0
        ready = self._ready
        for partition in list(ready):
            if budget <= 0 or count >= self._limits.partitions_max:
                break
            del ready[partition]
            size = self._gather(partition, self._members[partition], gathered, budget, now)
            budget -= size
            count += size > 0

    def _gather(
        self,
        partition: PartitionId,
        member: _Member,
        gathered: _Gathered,
        budget: int,
        now: Instant,
    ) -> int:
        """Add urgent news of one partition to the answer; return its bytes."""
        led = self._led(partition, member, now)
        if not isinstance(member.outcome, Accepted) or led is None:
            if not member.is_answered:
                member.is_answered = True
                gathered.heads.append(_refusal(member, led))
            return 0
        offset = member.position.fetch_offset
        if offset < led.log_end_offset and not self._is_on_its_way(partition, member, now):
            bytes_max = min(budget, self._limits.partition_bytes_max)
            pieces = led.read(self.follower, offset, bytes_max)
            if pieces is None:
                member.outcome = Refused(FetchError.CORRUPT)
                member.is_answered = True
                gathered.heads.append(_refusal(member, led))
                return 0
            if pieces:
                size = sum([len(piece) for piece in pieces])
                gathered.pieces.extend(pieces)
                gathered.heads.append(_head(member, led, size))
                self._quiet.pop(partition, None)
                member.sent_offset = offset
                member.resend_at = Instant(now + self._limits.resend_ns)
                self._put_later(partition, member.resend_at)
                led.on_answered(self.follower, self._clock.last_fetch)
                return size
        if (
            member.high_watermark != led.high_watermark
            or member.log_start != led.log_start_offset
            or member.compacted != led.compacted_everywhere
        ):
            self._quiet[partition] = None
            if self._quiet_until is None:
                self._quiet_until = Instant(now + self._limits.quiet_ns)
        return 0

    def _led(self, partition: PartitionId, member: _Member, now: Instant) -> LedPartition | None:
        """Return the partition; check its position again if the last check no longer holds."""
        led = self._resolve(partition)
        position = member.position
        if isinstance(member.outcome, Accepted) and (
            led is None
            or position.leader_epoch != led.leader_epoch
            or position.fetch_offset < led.log_start_offset
        ):
            member.outcome = self._judge(position, now)
            member.high_watermark = member.log_start = _UNSENT
        return led

    def _is_on_its_way(self, partition: PartitionId, member: _Member, now: Instant) -> bool:
        """Return whether these records were sent recently and may be in flight."""
        if member.position.fetch_offset != member.sent_offset or now >= member.resend_at:
            return False
        self._put_later(partition, member.resend_at)
        return True

    def _gather_quiet(self, gathered: _Gathered) -> None:
        """Add news that was postponed."""
        for partition in self._quiet:
            led = self._resolve(partition)
            member = self._members[partition]
            if led is not None and isinstance(member.outcome, Accepted):
                gathered.heads.append(_head(member, led, 0))
        self._clear_quiet()

    def _clear_quiet(self) -> None:
        self._quiet.clear()
        self._quiet_until = None


def connection_lost() -> FetchReplyBody:
    """Return the answer to `EVERY_FETCH` after the loss of the leader's connection.

    The fetch that it held, or its answer, may be lost: without this the follower would wait until
    its fetch times out, and suspect the leader before.
    """
    return _lost(EVERY_FETCH, FULL).body


def _lost(correlation_id: int, session_epoch: int) -> Answer:
    """Return an answer that makes the follower begin a new session."""
    body = FetchReplyBody(0, session_epoch, is_session_lost=True, partitions=())
    return Answer(correlation_id, body, ())


def _head(member: _Member, led: LedPartition, size: int) -> FetchedHead:
    """Return the head for an accepted position; record the values sent."""
    position = member.position
    member.answered_offset = position.fetch_offset
    member.high_watermark = high_watermark = led.high_watermark
    member.log_start = log_start = led.log_start_offset
    member.compacted = compacted = led.compacted_everywhere
    return FetchedHead(
        position.partition,
        position.fetch_offset,
        led.leader_epoch,
        high_watermark,
        log_start,
        None,
        None,
        size,
        compacted,
        led.dropped_offset,
    )


def _refusal(member: _Member, led: LedPartition | None) -> FetchedHead:
    """Return the head for a refused position."""
    outcome = member.outcome
    position = member.position
    return FetchedHead(
        position.partition,
        position.fetch_offset,
        LeaderEpoch(0) if led is None else led.leader_epoch,
        Offset(0) if led is None else led.high_watermark,
        Offset(0) if led is None else led.log_start_offset,
        outcome.error if isinstance(outcome, Refused) else None,
        (outcome.leader_epoch, outcome.end_offset) if isinstance(outcome, Diverging) else None,
        0,
    )
