"""Joins the metadata group, and answers brokers that look for a cluster.

A broker that joins an existing cluster starts with an empty log. It belongs to the group only once
the leader has added it, so it repeats its request until its configuration includes it. The leader
may change meanwhile: each time it asks all brokers for the leader, and sends the next request to
the leader named last. Its own configuration may be outdated: an uncommitted addition is lost with
the leader that made it, and a removed member does not receive its removal. So a member that has
heard no leader for a while asks as well.

Two clusters in the same namespace ignore each other's messages. It is still an operator error: two
seeds that could not reach each other, or a disk of another cluster. So a broker that may have
founded its cluster alone asks all brokers from time to time, and a broker that finds another
cluster reports it.
"""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.metadata import MetadataConsensus
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.wire.peer.membership import Discover, DiscoverReply, Join
from liftbridge_broker.wire.peer.messages import PeerHeader

ASK_NS: Final = 250 * MILLISECOND_NS
UNHEARD_NS: Final = 500 * MILLISECOND_NS
"""Time without a leader after which a member assumes that it was removed; elections take less.

A removed member goes on by old access rules, and revocations must count within two seconds.
"""

CALL_NS: Final = 10_000 * MILLISECOND_NS
"""Time between two searches for other clusters, as in the original, and between two log events."""


class Joining:
    """Joins this broker to the metadata group, and answers brokers that look for a cluster.

    Args:
        me: This broker with its data directory.
        group: The metadata group.
        link: Sends messages to other brokers.
        now: Time of the start.
        is_founder: Whether it may have founded its cluster alone.
        on_stranger: Called with the name and cluster of a broker of another cluster.

    Attributes:
        leader: Leader of the cluster to join, as last reported.
    """

    def __init__(
        self,
        me: Peer,
        group: MetadataConsensus,
        link: PeerLink,
        now: Instant,
        *,
        is_founder: bool = False,
        on_stranger: Callable[[BrokerId, str], None] | None = None,
    ) -> None:
        """Start to ask at `now` unless this broker is a member."""
        self._me = me
        self._group = group
        self._link = link
        self._ask_at = now
        self._heard_at = now
        self._due = now
        self._is_founder = is_founder
        self._on_stranger = on_stranger
        self._call_at = now
        self._tell_at = now
        self.leader: Peer | None = None

    @property
    def is_member(self) -> bool:
        """Return whether this broker is a voter or learner of the group."""
        return self._me in self._group.voters or self._me in self._group.learners

    @property
    def asks(self) -> bool:
        """Return whether it is not, or no longer, a member, or does not know its cluster's id."""
        return (
            not self.is_member
            or not self._link.cluster_id
            or self._ask_at > self._heard_at + UNHEARD_NS
        )

    def next_deadline(self) -> Instant:
        """Time of the next question or leader check; cheap, called every turn."""
        return min(self._due, self._call_at) if self._is_founder else self._due

    def on_timer(self, now: Instant) -> None:
        """Ask for the leader, ask it to add this broker, and ask for other clusters."""
        if self._is_founder and now >= self._call_at:
            self._call_at = Instant(now + CALL_NS)
            if self._link.cluster_id:
                self._ask()
        is_member = self.is_member
        if is_member and self._group.leader is not None:
            self._heard_at = now
        is_settled = is_member and self._link.cluster_id
        earliest = self._heard_at + UNHEARD_NS if is_settled else 0
        self._due = Instant(max(self._ask_at, earliest))
        if now < self._due:
            return
        self._ask_at = self._due = Instant(now + ASK_NS)
        if self.leader is not None:
            wish = Join(self._me.data_dir_id, as_voter=True)
            self._link.send(BrokerId(self.leader.broker), Channel.METADATA, wish)
        self._ask()

    def on_peer(self, header: PeerHeader, now: Instant) -> None:
        """Answer a broker that looks for a cluster; handle answers to this broker's questions."""
        body = header.body
        if not self._link.is_ours(header):
            self._meet(header, now)
            return
        if header.sender == self._me.broker:
            return
        if isinstance(body, Discover):
            self._link.send(header.sender, Channel.METADATA, self._answer())
        elif isinstance(body, DiscoverReply) and self.asks:
            if body.leader is not None:
                if self.leader is None:
                    # Only then: contradictory answers would cause an endless series of questions.
                    self._ask_at = self._due = now
                self.leader = body.leader
            if body.leader is not None or self._me in body.voters:
                # From now on its messages carry the cluster id, and reach its members.
                self._link.cluster_id = self._link.cluster_id or body.cluster_id

    def _ask(self) -> None:
        question = Discover(self._me.data_dir_id, is_empty=False, cluster_id=self._link.cluster_id)
        self._link.send(EVERYONE, Channel.METADATA, question)

    def _meet(self, header: PeerHeader, now: Instant) -> None:
        """Report a broker of another cluster in the same namespace, and notify that broker."""
        is_question = isinstance(header.body, Discover)
        if not (is_question or isinstance(header.body, DiscoverReply)):
            return
        if is_question:
            self._link.send(header.sender, Channel.METADATA, self._answer())
        if self._on_stranger is not None and now >= self._tell_at:
            self._tell_at = Instant(now + CALL_NS)
            self._on_stranger(header.sender, header.cluster_id)

    def _answer(self) -> DiscoverReply:
        return DiscoverReply(
            self._me.data_dir_id,
            is_empty=False,
            cluster_id=self._link.cluster_id,
            leader=self._group.leader,
            voters=tuple(self._group.voters),
        )
