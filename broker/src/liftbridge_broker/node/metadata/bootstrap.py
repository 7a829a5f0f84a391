"""Finds the cluster of a broker with an empty data directory, or founds one.

A second metadata history must never replace an existing one, so a broker without metadata first
asks all brokers. One that knows a cluster names its leader, and the new broker asks it to be added
as a learner, with the identity of its directory: a wiped disk is a new member. A cluster is founded
only

- by *listed peers*, when each of them announced that its directory is empty too and that it lists
  the same brokers. Each then begins with the same configuration and, because it follows from the
  identities, the same cluster id;
- by a *seed*, when no broker knew a cluster; of several seeds, the first by name founds it and the
other seeds join;
- by a broker configured as neither, when moreover no other broker looks for a cluster;
- by brokers that an operator selects (`found`), naming their directories too.

Each broker announces which cluster it is configured to found, its *claim*. While claims contradict
each other, no broker founds a cluster that another could found differently: see
`Discovery.contradictions`.

Questions are repeated: NATS may lose any of them, and a broker may start at any time.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from liftbridge_broker.errors import FailedPreconditionError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.wire.peer.bodies import Body
from liftbridge_broker.wire.peer.membership import NO_CLAIM, Claim, Discover, DiscoverReply
from liftbridge_broker.wire.peer.messages import PeerHeader

ASK_NS: Final = 100 * MILLISECOND_NS
PATIENCE_NS: Final = 300 * MILLISECOND_NS
"""Time to wait for an answer of a broker that knows a cluster, before founding one."""

CLAIM_NS: Final = 10_000 * MILLISECOND_NS
"""Time for which a claim counts, unless its broker is a required founder: it may have stopped."""

SEEKERS_MAX: Final = 1_000

Send = Callable[[BrokerId, Channel, Body], None]


class Role(StrEnum):
    """Permitted action of a broker when no broker knows a cluster."""

    ALONE = "alone"
    SEED = "seed"
    PEER = "peer"
    WAITER = "waiter"
    """Only join, or found on an operator's request."""


class Beginning(NamedTuple):
    """Initial metadata of this broker.

    Attributes:
        configuration: First configuration of the group; empty for a broker that an existing group
            added and that waits for its leader.
        cluster_id: Id of the cluster that is founded; empty when the broker joins one whose members
            do not include this directory yet.
    """

    configuration: Configuration
    cluster_id: str


def founded_by(peers: Sequence[Peer]) -> Beginning:
    """Return the beginning of a cluster founded by these brokers; equal for equal sets."""
    voters = tuple(sorted(peers))
    text = "\n".join(f"{peer.broker}\t{peer.data_dir_id}" for peer in voters)
    return Beginning(Configuration(voters), sha256(text.encode()).hexdigest()[:32])


class Discovery:
    """The search of one broker with an empty data directory.

    Args:
        me: This broker with its data directory.
        role: Its permitted action when no broker knows a cluster.
        peers: Brokers that found the cluster together, for `Role.PEER`; includes this broker.
        send: Sends a message in the name of this broker.
        now: Time of the start.

    Attributes:
        beginning: The outcome, `None` during the search.
        seekers: Other brokers that look for a cluster, by id.
    """

    def __init__(
        self, me: Peer, role: Role, peers: Sequence[BrokerId], send: Send, now: Instant
    ) -> None:
        """Start the search at `now`."""
        self._me = me
        self._role = role
        self._peers = tuple(sorted({*peers, BrokerId(me.broker)}))
        listed = self._peers if role is Role.PEER else ()
        self._claim = Claim(is_seed=role is Role.SEED, listed=listed)
        self._claims: dict[BrokerId, tuple[Claim, Instant]] = {}
        self._now = now
        self._send = send
        self._began_at = now
        self._ask_at = now
        self._is_known = False
        self.beginning: Beginning | None = None
        self.seekers: dict[BrokerId, Peer] = {}
        self._founders: dict[BrokerId, Peer] = {}

    def next_deadline(self) -> Instant | None:
        """Time of the next question, `None` after the search."""
        return None if self.beginning is not None else self._ask_at

    def on_timer(self, now: Instant) -> None:
        """Ask all brokers, or found a cluster when it is time."""
        self._now = now
        if self.beginning is not None or now < self._ask_at:
            return
        if self._may_found(now):
            self._found()
            return
        self._ask_at = Instant(now + ASK_NS)
        question = Discover(self._me.data_dir_id, is_empty=True, cluster_id="", claim=self._claim)
        self._send(EVERYONE, Channel.METADATA, question)

    def on_peer(self, header: PeerHeader) -> None:
        """Handle a message; ignore all but questions and answers of this search."""
        body = header.body
        sender = header.sender
        if isinstance(body, Discover):
            self._note(sender, body)
            if sender != self._me.broker:
                self._answer(sender)
        elif isinstance(body, DiscoverReply):
            self._note(sender, body)
            if self.beginning is None:
                self._join(body)

    def found(self, members: Sequence[Peer], cluster_id: str) -> bool:
        """Found at the request of an operator, who checked that all members' directories are empty.

        Args:
            members: All founders; this broker is one of them.
            cluster_id: Name of the cluster.

        Returns:
            Whether it begins now; false when it already began in the same way.

        Raises:
            FailedPreconditionError: It does not wait for an operator, some broker knows a cluster,
                or another beginning was chosen.
        """
        wanted = Beginning(Configuration(tuple(sorted(members))), cluster_id)
        if self._role is not Role.WAITER:
            raise FailedPreconditionError(
                f"broker {self._me.broker} does not wait for Bootstrap (role {self._role.value})"
            )
        if self.beginning is not None:
            # Another founder may have announced the members, but not the name of their cluster.
            if self.beginning not in (wanted, wanted._replace(cluster_id="")):
                raise FailedPreconditionError(
                    f"broker {self._me.broker} started with another cluster or other members"
                )
            self.beginning = wanted
            return False
        if self._is_known:
            raise FailedPreconditionError(
                f"broker {self._me.broker} has found a cluster, it can only join that one"
            )
        self.beginning = wanted
        return True

    def _join(self, reply: DiscoverReply) -> None:
        """End the search when some broker knows a cluster.

        When its members already include this directory, because listed peers founded it during the
        search, the broker begins as that member.
        """
        if self._me in reply.voters:
            self.beginning = Beginning(Configuration(tuple(sorted(reply.voters))), reply.cluster_id)
        elif reply.leader is not None:
            self.beginning = Beginning(EMPTY, "")

    def contradictions(self) -> dict[BrokerId, Claim]:
        """Claims of other brokers that prevent this one from founding now, by broker.

        The last claim of an intended founder always counts. Any other claim counts only while it is
        recent, as only then its broker could found a cluster alone. After founding, a broker is no
        longer a seeker.
        """
        contradicting: dict[BrokerId, Claim] = {}
        for broker, (claim, heard_at) in sorted(self._claims.items()):
            is_recent = self._now - heard_at < CLAIM_NS
            if self._role is Role.PEER:
                counts = broker in self._peers or (is_recent and claim != NO_CLAIM)
                contradicts = counts and claim != self._claim
            elif self._role is Role.SEED:
                is_first = claim.is_seed and self.seekers[broker] < self._me
                founds_without = bool(claim.listed) and self._me.broker not in claim.listed
                contradicts = is_first or (founds_without and is_recent)
            else:
                contradicts = False
            if contradicts:
                contradicting[broker] = claim
        return contradicting

    @property
    def claim(self) -> Claim:
        """Return the claim that this broker announces: the cluster it is configured to found."""
        return self._claim

    def _answer(self, to: BrokerId) -> None:
        answer = DiscoverReply(
            self._me.data_dir_id,
            is_empty=True,
            cluster_id="",
            leader=None,
            voters=(),
            claim=self._claim,
        )
        self._send(to, Channel.METADATA, answer)

    def _note(self, sender: BrokerId, body: Discover | DiscoverReply) -> None:
        """Record other seekers, and drop those that now have metadata."""
        if sender == self._me.broker:
            return
        if not body.is_empty:
            # It has a cluster, even if the cluster has no leader at the moment.
            self._is_known = True
            self.seekers.pop(sender, None)
            self._claims.pop(sender, None)
            self._founders.pop(sender, None)
        elif sender in self.seekers or len(self.seekers) < SEEKERS_MAX:
            self.seekers[sender] = Peer(sender, body.data_dir_id)
            self._claims[sender] = body.claim, self._now
            # A replayed question may delay a founding but never cause one. An answer comes from a
            # process that proved its identity.
            if isinstance(body, DiscoverReply):  # guard Auth.founders
                self._founders[sender] = self.seekers[sender]

    def _may_found(self, now: Instant) -> bool:
        if self._is_known or self.contradictions():
            return False
        if self._role is Role.PEER:
            return all(peer in self._founders for peer in self._peers if peer != self._me.broker)
        if now - self._began_at < PATIENCE_NS:
            return False
        return self._role is Role.SEED or (self._role is Role.ALONE and not self.seekers)

    def _found(self) -> None:
        if self._role is Role.PEER:
            others = [self._founders[peer] for peer in self._peers if peer != self._me.broker]
            # Brokers that still search must learn that this directory was empty, or they would
            # wait forever.
            for other in others:
                self._answer(BrokerId(other.broker))
            self.beginning = founded_by([self._me, *others])
        else:
            self.beginning = founded_by([self._me])
