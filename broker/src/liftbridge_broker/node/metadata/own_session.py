"""This broker's own session with the metadata leader: sends heartbeats, handles the answers.

A broker without an answer for a session cannot know whether its roles still hold: it *fences
itself* and stops giving guarantees that only the leader of a partition may give. The session is
counted from when the last answered heartbeat was sent, so it ends here no later than at the
metadata leader. See "Self-fencing" in docs/spec/replication.md.
"""

from collections import OrderedDict
from typing import Final

from liftbridge_broker.model.ids import Instant, MetadataIndex
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.broker_sessions import SESSION_NS
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply

HEARTBEAT_NS: Final = 150 * MILLISECOND_NS
OPEN_MAX: Final = 64
"""Heartbeats awaiting an answer; older ones count as lost."""


class OwnSession:
    """Schedule of heartbeats, and the state that their answers report.

    Args:
        heartbeat_ns: Time between two heartbeats.
        session_ns: Time without an answered heartbeat after which the broker fences itself.

    Attributes:
        broker_epoch: Registration of this broker; 0 before it is registered.
        want_fence: Whether the broker asks to stay fenced, until its replicas are in place.
        want_shutdown: Whether it requests a controlled shutdown.
        is_fenced: Whether the metadata leader reported it as fenced.
        may_stop: Whether the metadata leader confirmed that all leaderships were transferred.
        answered_at: Send time of the last heartbeat that was answered; `None` before the first.
    """

    def __init__(self, *, heartbeat_ns: int = HEARTBEAT_NS, session_ns: int = SESSION_NS) -> None:
        """Begin unregistered."""
        self._heartbeat_ns = heartbeat_ns
        self._session_ns = session_ns
        self._due: Instant | None = None
        self._last_id = 0
        self._open: OrderedDict[int, Instant] = OrderedDict()
        self.broker_epoch = MetadataIndex(0)
        self.want_fence = True
        self.want_shutdown = False
        self.is_fenced = True
        self.may_stop = False
        self.answered_at: Instant | None = None

    def begin(self, broker_epoch: MetadataIndex, now: Instant) -> None:
        """Start heartbeats and the session, after a registration was applied."""
        self.broker_epoch = broker_epoch
        self.is_fenced = True
        self.may_stop = False
        self.answered_at = now
        self._open.clear()
        self._due = now

    def hurry(self, now: Instant) -> None:
        """Send the next heartbeat at once, because of a change or a new metadata leader."""
        if self._due is not None:
            self._due = now

    def next_deadline(self) -> Instant | None:
        """Time of the next heartbeat, `None` before the registration."""
        return self._due

    def beat(
        self, applied_index: MetadataIndex, applied_hash: bytes, now: Instant, wall_ns: int
    ) -> tuple[int, Heartbeat] | None:
        """Return the heartbeat that is due, with its correlation id, or `None`."""
        if self._due is None or now < self._due:
            return None
        self._due = Instant(now + self._heartbeat_ns)
        self._last_id += 1
        self._open[self._last_id] = now
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        heartbeat = Heartbeat(
            applied_index, applied_hash, self.want_fence, self.want_shutdown, wall_ns
        )
        return self._last_id, heartbeat

    def on_reply(self, correlation_id: int, reply: HeartbeatReply) -> Instant | None:
        """Handle an answer.

        Returns:
            Send time of the heartbeat that it answers; `None` if of another registration.
        """
        sent_at = self._open.pop(correlation_id, None)
        if sent_at is None or reply.broker_epoch != self.broker_epoch:  # guard Self.session
            return None
        if self.answered_at is None or sent_at > self.answered_at:
            self.answered_at = sent_at
        self.is_fenced = reply.is_fenced
        self.may_stop = self.may_stop or (self.want_shutdown and reply.should_shutdown)
        return sent_at

    def is_self_fenced(self, now: Instant) -> bool:
        """Return whether no heartbeat was answered for a session: other brokers may lead."""
        return (
            self.answered_at is None
            or now - self.answered_at >= self._session_ns  # guard Self.silence
        )
