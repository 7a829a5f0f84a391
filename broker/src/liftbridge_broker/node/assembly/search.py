"""The search for the cluster, the first step of a broker with an empty data directory."""

from collections.abc import Callable, Sequence

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.node.assembly.progress import Progress
from liftbridge_broker.node.metadata.bootstrap import Beginning, Discovery, Role
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.membership import Claim


class Search:
    """Drives `node.metadata.bootstrap.Discovery` with time and received messages.

    Args:
        me: This broker with its data directory.
        role: Role of the broker if no other broker knows a cluster.
        peers: Brokers that found the cluster together.
        link: Link to other brokers; it has no cluster yet.
        clock: Time.
        observer: Receives a message every few seconds about the cause of the wait.
        on_arrived: Called when the search may have progressed.

    Attributes:
        role: See above.
    """

    def __init__(
        self,
        me: Peer,
        role: Role,
        peers: Sequence[str],
        link: PeerLink,
        clock: Clock,
        observer: Observer,
        on_arrived: Callable[[], None],
    ) -> None:
        """Start now."""
        self._me = me
        self._link = link
        self.role = role
        self._others = tuple(BrokerId(peer) for peer in peers if peer != me.broker)
        self._clock = clock
        self._on_arrived = on_arrived
        self._progress = Progress(clock, observer)
        self._discovery = Discovery(me, role, self._others, link.send, clock.now())

    def on_payload(self, channel: Channel, payload: bytes) -> None:
        """Handle a message of another broker; ignore all but discovery queries and answers."""
        message = self._link.receive(channel, payload)
        if message is not None:
            self._discovery.on_peer(message[0])
            self._on_arrived()

    def found(self, members: Sequence[Peer], cluster_id: str) -> bool:
        """Found the cluster that an operator describes; see `Discovery.found`."""
        is_new = self._discovery.found(members, cluster_id)
        self._on_arrived()
        return is_new

    def look(self) -> Beginning | None:
        """Ask other brokers when it is time; return the outcome, `None` while there is none."""
        discovery = self._discovery
        discovery.on_timer(self._clock.now())
        if discovery.beginning is None:
            self._progress.note(self._awaited())
        return discovery.beginning

    def next_deadline(self) -> Instant | None:
        """Latest time for the next `look`, `None` after the search."""
        return self._discovery.next_deadline()

    def _awaited(self) -> str:
        """Describe the cause of the wait."""
        seekers, contradictions = self._discovery.seekers, self._discovery.contradictions()
        if contradictions:
            own = _claimed(self._me.broker, self._discovery.claim)
            others = "; ".join(_claimed(*item) for item in contradictions.items())
            return f"agreement on the founders of the cluster: {own}; {others}"
        if self.role is Role.PEER:
            missing = ", ".join(broker for broker in self._others if broker not in seekers)
            return f"an answer from {missing}, or from a cluster with a leader"
        if self.role is Role.ALONE and seekers:
            names = ", ".join(sorted(seekers))
            return (
                f"a cluster: {names} also wait for one; set clustering.raft.bootstrap.seed on one "
                "broker, or clustering.raft.bootstrap.peers"
            )
        return "a cluster with a leader"


def _claimed(broker: str, claim: Claim) -> str:
    """Describe the cluster that a broker is configured to found."""
    if claim.is_seed:
        return f"{broker} is a seed"
    return f"{broker} lists {', '.join(claim.listed) or 'no brokers'}"
