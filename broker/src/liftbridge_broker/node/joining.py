"""A broker with metadata and those without: who looks is answered, and who is no member asks.

A broker that was let in elsewhere begins with an empty log. It belongs to the group only once the
leader has added it, so it repeats its request until its own configuration holds it. The leader may
have changed by then: each time it asks everybody anew who leads, and who was told last gets the
next request. What its own configuration says
may be void: an addition that was not committed goes with the leader that made it, and a removal is
not sent to who was removed. So one that has heard no leader for a while asks as well.

Another cluster of the same namespace ignores what this one says, and the other way round. It is an
error of operators all the same: two seeds that could not hear each other, a disk of another
cluster. So who may have founded its cluster alone asks everybody now and then, and who hears of
another cluster tells it.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.peer_link import PeerLink
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.raft.types import Peer
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_membership import Discover, DiscoverReply, Join

ASK_NS: Final = 250 * MILLISECOND_NS
UNHEARD_NS: Final = 3_000 * MILLISECOND_NS
"""Time without a leader after which a member takes itself for one that was left out."""

CALL_NS: Final = 10_000 * MILLISECOND_NS
"""Time between two questions for other clusters, as in the original, and between two events."""


class Group(Protocol):
    """The metadata group as this broker knows it (`ports.metadata.MetadataConsensus`)."""

    @property
    def leader(self) -> Peer | None:
        """Who leads the group as far as this broker knows."""
        ...

    @property
    def voters(self) -> Sequence[Peer]:
        """Members with a vote."""
        ...

    @property
    def learners(self) -> Sequence[Peer]:
        """Members without a vote."""
        ...


class Joining:
    """See the module.

    Args:
        me: This broker with its data directory.
        group: The metadata group.
        link: How it speaks to others.
        now: Time of the start.
        is_founder: Whether it may have founded its cluster alone.
        on_stranger: Told the name and the cluster of a broker of another cluster.

    Attributes:
        leader: Who leads the cluster that is to be joined, as far as somebody told.
    """

    def __init__(
        self,
        me: Peer,
        group: Group,
        link: PeerLink,
        now: Instant,
        *,
        is_founder: bool = False,
        on_stranger: Callable[[BrokerId, str], None] | None = None,
    ) -> None:
        """Begin to ask at `now` unless this broker is a member."""
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
        """Whether the group has this broker, with a vote or without."""
        return self._me in self._group.voters or self._me in self._group.learners

    @property
    def asks(self) -> bool:
        """Whether it is no member, may be none any more, or does not know its cluster's id."""
        return (
            not self.is_member
            or not self._link.cluster_id
            or self._ask_at > self._heard_at + UNHEARD_NS
        )

    def next_deadline(self) -> Instant:
        """When to ask again, or to look whether a leader is heard; cheap, asked for every turn."""
        return min(self._due, self._call_at) if self._is_founder else self._due

    def on_timer(self, now: Instant) -> None:
        """Ask who leads, and the leader to be let in; ask for other clusters."""
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
        """Answer a broker that looks for a cluster; take the answers to this one's questions."""
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
                    # Only then: where answers disagree, each would bring the next question.
                    self._ask_at = self._due = now
                self.leader = body.leader
            if body.leader is not None or self._me in body.voters:
                # From now on it is told apart from other clusters, and may speak to its members.
                self._link.cluster_id = self._link.cluster_id or body.cluster_id

    def _ask(self) -> None:
        question = Discover(self._me.data_dir_id, is_empty=False, cluster_id=self._link.cluster_id)
        self._link.send(EVERYONE, Channel.METADATA, question)

    def _meet(self, header: PeerHeader, now: Instant) -> None:
        """Somebody of another cluster uses the same namespace: tell it, and let it know too."""
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
