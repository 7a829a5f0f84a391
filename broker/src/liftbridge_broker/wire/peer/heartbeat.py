"""Heartbeats of brokers and the answers of the metadata leader, as values and as protobuf.

Part of `wire.peer_bodies`: input from another process is checked, never asserted.
"""

from typing import Final, NamedTuple

from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.wire.peer.fields import bounded, name
from liftbridge_proto.internal.v1 import peer_pb2 as pb

HASH_BYTES_MAX: Final = 64
WALL_NS_MAX: Final = 2**63 - 1
"""Maximum of a date: the year 2262, as for timestamps of records."""


class Heartbeat(NamedTuple):
    """Heartbeat of a broker to the metadata leader; the header identifies the broker.

    Attributes:
        applied_index: Last metadata index it applied.
        applied_hash: Hash of its state after that index.
        want_fence: Whether the broker requests to stay fenced.
        want_shutdown: Whether the broker requests a controlled shutdown.
        wall_ns: Its wall clock, Unix nanoseconds; 0 from a former version.
    """

    applied_index: MetadataIndex
    applied_hash: bytes
    want_fence: bool
    want_shutdown: bool
    wall_ns: int = 0


class HeartbeatReply(NamedTuple):
    """Answer of the metadata leader.

    Attributes:
        broker_epoch: Registration being answered; other registrations ignore the answer.
        incarnation_id: Start being answered.
        is_fenced: Whether the broker is fenced.
        should_shutdown: Whether all leaderships were transferred.
        term: Term in which the sender leads.
        cluster_time_ns: Date known to the sender, Unix nanoseconds; 0 when unknown.
        is_upper_bound: Whether a majority of three or more voters has no later clock.
        is_believed: Whether the sender trusts it, so that it is cluster time.
    """

    broker_epoch: int
    incarnation_id: str
    is_fenced: bool
    should_shutdown: bool
    term: int
    cluster_time_ns: int = 0
    is_upper_bound: bool = False
    is_believed: bool = False


def fill_heartbeat(target: pb.Peer, body: Heartbeat | HeartbeatReply) -> None:
    """Write a body into its message."""
    if isinstance(body, Heartbeat):
        target.heartbeat.SetInParent()
        target.heartbeat.applied_index = body.applied_index
        target.heartbeat.applied_hash = body.applied_hash
        target.heartbeat.want_fence = body.want_fence
        target.heartbeat.want_shutdown = body.want_shutdown
        target.heartbeat.wall_ns = body.wall_ns
        return
    target.heartbeat_reply.SetInParent()
    target.heartbeat_reply.broker_epoch = body.broker_epoch
    target.heartbeat_reply.incarnation_id = body.incarnation_id
    target.heartbeat_reply.is_fenced = body.is_fenced
    target.heartbeat_reply.should_shutdown = body.should_shutdown
    target.heartbeat_reply.term = body.term
    target.heartbeat_reply.cluster_time_ns = body.cluster_time_ns
    target.heartbeat_reply.is_upper_bound = body.is_upper_bound
    target.heartbeat_reply.is_believed = body.is_believed


def decode_heartbeat(message: pb.Peer) -> Heartbeat:
    """Read a heartbeat.

    Raises:
        WireError: A field breaks its bounds.
    """
    body = message.heartbeat
    bounded(len(body.applied_hash), "bytes of a hash", HASH_BYTES_MAX)
    bounded(body.wall_ns, "nanoseconds of a clock", WALL_NS_MAX)
    return Heartbeat(
        MetadataIndex(body.applied_index),
        body.applied_hash,
        body.want_fence,
        body.want_shutdown,
        body.wall_ns,
    )


def decode_heartbeat_reply(message: pb.Peer) -> HeartbeatReply:
    """Read an answer of the metadata leader.

    Raises:
        WireError: A field breaks its bounds.
    """
    body = message.heartbeat_reply
    bounded(body.cluster_time_ns, "nanoseconds of a clock", WALL_NS_MAX)
    return HeartbeatReply(
        body.broker_epoch,
        name(body.incarnation_id, "incarnation", may_be_empty=True),
        body.is_fenced,
        body.should_shutdown,
        body.term,
        body.cluster_time_ns,
        body.is_upper_bound,
        body.is_believed,
    )
