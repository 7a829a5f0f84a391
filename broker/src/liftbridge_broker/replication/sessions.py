"""The follower's side of fetch sessions: one incremental fetch per pair of brokers (KIP-227).

A broker that follows partitions of another broker almost always has one fetch waiting there. It
sends only changed positions. The leader remembers the rest and holds the fetch until it has news.
So an idle pair of brokers costs one small message each way per hold, for any number of partitions.
The leader's side is `leader_session.py`. Both are free of I/O; the owner sends and delivers.

A fetch or an answer that is lost ends the session: the next fetch is a full one.
"""

from typing import Final, NamedTuple

from liftbridge_broker.model.fetching import FetchBody, FetchPosition, FetchReplyBody
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.replication.isr import MS, NEVER

SESSION_EPOCH_MAX: Final = 2**31 - 1
FULL: Final = 0
"""Number of a full fetch in its session."""


class SessionLimits(NamedTuple):
    """Times of a follower's session, in nanoseconds.

    Attributes:
        timeout_ns: Time without an answer after which a fetch counts as lost.
        lost_ns: Pause after the leader lost the session.
        retry_ns: Pause before a refused position is sent again.
    """

    timeout_ns: int = 1_500 * MS
    lost_ns: int = 50 * MS
    retry_ns: int = 50 * MS


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
