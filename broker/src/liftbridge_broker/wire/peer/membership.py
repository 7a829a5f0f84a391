"""Messages by which brokers search for a cluster and request admission, as values and protobuf.

Part of `wire.peer_bodies`: input from another process is checked, never asserted.
"""

from typing import Final, NamedTuple

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.wire.peer.fields import bounded, name
from liftbridge_proto.internal.v1 import peer_pb2 as pb

PEERS_MAX: Final = 1_000


class Claim(NamedTuple):
    """Cluster that a broker without metadata is configured to found if no broker knows a cluster.

    Attributes:
        is_seed: A cluster of this broker alone.
        listed: A cluster of these brokers, itself among them, in order; empty for none.
    """

    is_seed: bool = False
    listed: tuple[BrokerId, ...] = ()


NO_CLAIM: Final = Claim()


class Discover(NamedTuple):
    """Query of a broker that searches for its cluster.

    Attributes:
        data_dir_id: Its data directory.
        is_empty: Whether that directory holds no metadata.
        cluster_id: Cluster it would found or knows; empty for neither.
        claim: Cluster it is configured to found, while it has no metadata.
    """

    data_dir_id: str
    is_empty: bool
    cluster_id: str
    claim: Claim = NO_CLAIM


class DiscoverReply(NamedTuple):
    """A broker's knowledge of its cluster.

    Attributes:
        data_dir_id: Its data directory.
        is_empty: Whether that directory holds no metadata.
        cluster_id: Cluster it belongs to or would found; empty for neither.
        leader: Leader of the metadata group, `None` if unknown.
        voters: Voters it knows.
        claim: Cluster it is configured to found, while it has no metadata.
    """

    data_dir_id: str
    is_empty: bool
    cluster_id: str
    leader: Peer | None
    voters: tuple[Peer, ...]
    claim: Claim = NO_CLAIM


class Join(NamedTuple):
    """Request to be added to the metadata group as a learner.

    Attributes:
        data_dir_id: The sender's data directory.
        as_voter: Whether to make it a voter once it has caught up.
    """

    data_dir_id: str
    as_voter: bool


class Hello(NamedTuple):
    """One of three messages by which two processes prove to each other that both are live.

    Attributes:
        challenge: Random number for the receiver to repeat; 0 for none.
        answer: Challenge being answered; 0 for none.
    """

    challenge: int
    answer: int


def fill_membership(target: pb.Peer, body: Discover | DiscoverReply | Join | Hello) -> None:
    """Write a body into its message."""
    match body:
        case Hello(challenge, answer):
            target.hello.SetInParent()
            target.hello.challenge = challenge
            target.hello.answer = answer
        case Discover(data_dir_id, is_empty, cluster_id, claim):
            target.discover.SetInParent()
            target.discover.data_dir_id = data_dir_id
            target.discover.is_empty = is_empty
            target.discover.cluster_id = cluster_id
            target.discover.is_seed = claim.is_seed
            target.discover.listed.extend(claim.listed)
        case DiscoverReply():
            reply = target.discover_reply
            reply.SetInParent()
            reply.data_dir_id = body.data_dir_id
            reply.is_empty = body.is_empty
            reply.cluster_id = body.cluster_id
            reply.is_seed = body.claim.is_seed
            reply.listed.extend(body.claim.listed)
            if body.leader is not None:
                reply.leader.broker = body.leader.broker
                reply.leader.data_dir_id = body.leader.data_dir_id
            for voter in body.voters:
                reply.voters.add(broker=voter.broker, data_dir_id=voter.data_dir_id)
        case Join(data_dir_id, as_voter):
            target.join.SetInParent()
            target.join.data_dir_id = data_dir_id
            target.join.as_voter = as_voter


def _peer(message: pb.RaftPeer) -> Peer:
    return Peer(
        BrokerId(name(message.broker, "broker")), name(message.data_dir_id, "data directory")
    )


def _claim(body: pb.Discover | pb.DiscoverReply) -> Claim:
    bounded(len(body.listed), "listed brokers", PEERS_MAX)
    return Claim(body.is_seed, tuple(BrokerId(name(one, "listed broker")) for one in body.listed))


def decode_discover(message: pb.Peer) -> Discover:
    """Read a query of a broker that searches for its cluster.

    Raises:
        WireError: A field breaks its bounds.
    """
    body = message.discover
    return Discover(
        name(body.data_dir_id, "data directory"),
        body.is_empty,
        name(body.cluster_id, "cluster", may_be_empty=True),
        _claim(body),
    )


def decode_discover_reply(message: pb.Peer) -> DiscoverReply:
    """Read a broker's knowledge of its cluster.

    Raises:
        WireError: A field breaks its bounds.
    """
    body = message.discover_reply
    bounded(len(body.voters), "voters", PEERS_MAX)
    return DiscoverReply(
        name(body.data_dir_id, "data directory"),
        body.is_empty,
        name(body.cluster_id, "cluster", may_be_empty=True),
        _peer(body.leader) if body.HasField("leader") else None,
        tuple(_peer(voter) for voter in body.voters),
        _claim(body),
    )


def decode_join(message: pb.Peer) -> Join:
    """Read a request for admission.

    Raises:
        WireError: A field breaks its bounds.
    """
    return Join(name(message.join.data_dir_id, "data directory"), message.join.as_voter)


def decode_hello(message: pb.Peer) -> Hello:
    """Read a challenge or its answer."""
    return Hello(message.hello.challenge, message.hello.answer)
