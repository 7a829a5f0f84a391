"""Bodies of messages between brokers, as values and as protobuf (`internal/v1/peer.proto`).

All input comes from another process that may be broken: every field is checked, nothing asserted.
Fetches are in `wire.peer_fetch`, heartbeats in `wire.peer_heartbeat`, the search for a cluster in
`wire.peer_membership`; commands, records and messages of the metadata group are in the tail of the
frame (`wire.peer`), and a body only names them.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.fetching import FetchBody, FetchReplyBody
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
    PublisherId,
)
from liftbridge_broker.wire.peer.fetch import (
    decode_fetch,
    decode_fetch_reply,
    encode_fetch,
    encode_fetch_reply,
)
from liftbridge_broker.wire.peer.fields import bounded, name
from liftbridge_broker.wire.peer.heartbeat import (
    Heartbeat,
    HeartbeatReply,
    decode_heartbeat,
    decode_heartbeat_reply,
    fill_heartbeat,
)
from liftbridge_broker.wire.peer.membership import (
    Discover,
    DiscoverReply,
    Hello,
    Join,
    decode_discover,
    decode_discover_reply,
    decode_hello,
    decode_join,
    fill_membership,
)
from liftbridge_proto.internal.v1 import peer_pb2 as pb

ORIGIN_SIZE: Final = 16
"""Bytes of the random id of a proposing process."""

REASON_LENGTH_MAX: Final = 4_096
CLOCK_NS_MAX: Final = 2**62
"""Maximum of a clock (146 years): clocks start at boot or later, so no honest clock reaches it."""

KEY_BYTES_MAX: Final = 2_048
"""Longest key of a cursor: its name, a stream, a number."""


class RaftBody(NamedTuple):
    """The tail is a message of the metadata group (`wire.raft`).

    Attributes:
        clock_ns: Monotonic clock of the sender; `None` from a former version.
    """

    clock_ns: int | None = None


class Propose(NamedTuple):
    """A change for the leader of the metadata group; the tail is the command.

    Attributes:
        origin: Random id of the proposing process, `ORIGIN_SIZE` bytes.
        token: Number of the proposal in that process.
        is_essential: Whether it may use the space reserved for a full disk.
        term: Term in which the receiver leads; 0 from a former version.
        deadline_ns: Time on the leader's monotonic clock at which the proposer gives up; 0 if it
            does not know that clock.
    """

    origin: bytes
    token: int
    is_essential: bool
    term: int = 0
    deadline_ns: int = 0


class ProposeRefused(NamedTuple):
    """A change that was not appended.

    Attributes:
        origin: The proposing process.
        token: Number of the proposal.
        is_definite: Whether it will certainly never be appended.
        code: Stable name of the refusal.
        reason: Its text.
        leader: Leader known to the sender.
    """

    origin: bytes
    token: int
    is_definite: bool
    code: str
    reason: str
    leader: BrokerId | None


class Silence(NamedTuple):
    """A leader that a follower cannot reach.

    Attributes:
        partition: Partition it leads.
        leader: The leader.
        leader_epoch: Epoch in which it leads.
        partition_epoch: Partition epoch known to the follower.
        silence_ns: Time since the leader was last heard.
    """

    partition: PartitionId
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: MetadataIndex
    silence_ns: int


class LeaderReport(NamedTuple):
    """Leaders that a follower cannot reach."""

    silences: tuple[Silence, ...]


class LogInfoRequest(NamedTuple):
    """Query of the metadata leader for log ends."""

    partitions: tuple[PartitionId, ...]


class LogInfo(NamedTuple):
    """End of one log.

    Attributes:
        partition: Partition of the log.
        last_epoch: Newest leader epoch that it knows, with a record or without; `None` for none.
        log_end_offset: First offset after the log.
        is_damaged: Whether it is damaged, so that its replica cannot lead.
    """

    partition: PartitionId
    last_epoch: LeaderEpoch | None
    log_end_offset: Offset
    is_damaged: bool = False


class LogInfoReply(NamedTuple):
    """Log ends; partitions without a log are omitted."""

    logs: tuple[LogInfo, ...]


class ListeningRequest(NamedTuple):
    """Query of a broker that created a stream, to the leader of some of its partitions."""

    partitions: tuple[PartitionId, ...]


class ListeningReply(NamedTuple):
    """Partitions whose leader receives from NATS; others are omitted."""

    partitions: tuple[PartitionId, ...]


class SequencesRequest(NamedTuple):
    """Query of a broker that registered an idempotent publisher, to the leader of partitions.

    Attributes:
        publisher_id: Id of the publisher.
        publisher_epoch: Its epoch; a leader that does not know the epoch yet does not answer.
        partitions: Queried partitions.
    """

    publisher_id: PublisherId
    publisher_epoch: int
    partitions: tuple[PartitionId, ...]


class SequencesReply(NamedTuple):
    """Position of a publisher in partitions that the sender leads; others are omitted.

    Attributes:
        publisher_id, publisher_epoch: As in the request.
        places: Partitions, each with the sequence expected next.
    """

    publisher_id: PublisherId
    publisher_epoch: int
    places: tuple[tuple[PartitionId, int], ...]


class CursorRequest(NamedTuple):
    """Query of the leader of a partition, to the leader of the partition that stores a cursor.

    Attributes:
        question: Number of the query, unique within a start of a broker.
        partition: Partition of `__cursors`.
        key: Key of the cursor.
    """

    question: int
    partition: PartitionId
    key: bytes


class CursorReply(NamedTuple):
    """Position of a cursor.

    Attributes:
        question: Number of the question.
        offset: Last stored value, `None` if it was never set.
        stream_id: Id of its stream at that time; 0 when unknown.
        unclean_epoch: Epoch of the last unclean election of its partition then; 0 for none.
    """

    question: int
    offset: Offset | None
    stream_id: int
    unclean_epoch: int = 0


class CoordinatorReport(NamedTuple):
    """Report of a consumer, passed on to the metadata leader.

    Attributes:
        group_id: Name of its group.
        member_id: Its name.
        coordinator: Coordinator that it cannot reach.
        coordinator_epoch: Metadata index since which that broker coordinates.
    """

    group_id: str
    member_id: str
    coordinator: BrokerId
    coordinator_epoch: int


class MessagesLost(NamedTuple):
    """Notice that messages to the sender, and acks from it, may be lost with its connection."""


Body = (
    RaftBody
    | Propose
    | ProposeRefused
    | Heartbeat
    | HeartbeatReply
    | LeaderReport
    | LogInfoRequest
    | LogInfoReply
    | Discover
    | DiscoverReply
    | Join
    | ListeningRequest
    | ListeningReply
    | SequencesRequest
    | SequencesReply
    | CursorRequest
    | CursorReply
    | CoordinatorReport
    | MessagesLost
    | FetchBody
    | FetchReplyBody
    | Hello
)


# -- writing ------------------------------------------------------------------------------------


def fill_body(target: pb.Peer, body: Body) -> None:
    """Write a body into a header."""
    match body:
        case RaftBody(clock_ns):
            target.raft.SetInParent()
            if clock_ns is not None:
                target.raft.clock_ns = clock_ns
        case FetchBody():
            encode_fetch(target.fetch, body)
        case FetchReplyBody():
            encode_fetch_reply(target.fetch_reply, body)
        case Propose() | ProposeRefused():
            _fill_proposal(target, body)
        case Heartbeat() | HeartbeatReply():
            fill_heartbeat(target, body)
        case LeaderReport() | LogInfoRequest() | LogInfoReply():
            _fill_partitions(target, body)
        case Discover() | DiscoverReply() | Join() | Hello():
            fill_membership(target, body)
        case _:
            _fill_question(target, body)


_Question = (
    ListeningRequest
    | ListeningReply
    | SequencesRequest
    | SequencesReply
    | CursorRequest
    | CursorReply
    | CoordinatorReport
    | MessagesLost
)


def _fill_question(target: pb.Peer, body: _Question) -> None:
    match body:
        case ListeningRequest() | ListeningReply():
            _fill_listening(target, body)
        case SequencesRequest() | SequencesReply():
            _fill_sequences(target, body)
        case CursorRequest() | CursorReply():
            _fill_cursor(target, body)
        case CoordinatorReport():
            target.coordinator_report.group_id = body.group_id
            target.coordinator_report.member_id = body.member_id
            target.coordinator_report.coordinator = body.coordinator
            target.coordinator_report.coordinator_epoch = body.coordinator_epoch
        case MessagesLost():
            target.messages_lost.SetInParent()


def _fill_listening(target: pb.Peer, body: ListeningRequest | ListeningReply) -> None:
    is_request = isinstance(body, ListeningRequest)
    filled = target.listening_request if is_request else target.listening_reply
    filled.SetInParent()
    filled.partition_ids.extend(body.partitions)


def _fill_sequences(target: pb.Peer, body: SequencesRequest | SequencesReply) -> None:
    if isinstance(body, SequencesRequest):
        target.sequences_request.publisher_id = body.publisher_id
        target.sequences_request.publisher_epoch = body.publisher_epoch
        target.sequences_request.partition_ids.extend(body.partitions)
        return
    target.sequences_reply.publisher_id = body.publisher_id
    target.sequences_reply.publisher_epoch = body.publisher_epoch
    for partition, sequence in body.places:
        target.sequences_reply.places.add(partition_id=partition, next_sequence=sequence)


def _fill_cursor(target: pb.Peer, body: CursorRequest | CursorReply) -> None:
    if isinstance(body, CursorRequest):
        target.cursor_request.question = body.question
        target.cursor_request.partition_id = body.partition
        target.cursor_request.key = body.key
        return
    target.cursor_reply.question = body.question
    target.cursor_reply.stream_id = body.stream_id
    target.cursor_reply.unclean_epoch = body.unclean_epoch
    if body.offset is not None:
        target.cursor_reply.offset = body.offset


def _fill_proposal(target: pb.Peer, body: Propose | ProposeRefused) -> None:
    if isinstance(body, Propose):
        target.propose.origin = body.origin
        target.propose.token = body.token
        target.propose.is_essential = body.is_essential
        target.propose.term = body.term
        target.propose.deadline_ns = body.deadline_ns
        return
    target.propose_refused.origin = body.origin
    target.propose_refused.token = body.token
    target.propose_refused.is_definite = body.is_definite
    target.propose_refused.code = body.code
    target.propose_refused.reason = body.reason[:REASON_LENGTH_MAX]
    target.propose_refused.leader = body.leader or ""


def _fill_partitions(target: pb.Peer, body: LeaderReport | LogInfoRequest | LogInfoReply) -> None:
    match body:
        case LeaderReport(silences):
            target.leader_report.SetInParent()
            for silence in silences:
                target.leader_report.silences.add(
                    partition_id=silence.partition,
                    leader=silence.leader,
                    leader_epoch=silence.leader_epoch,
                    partition_epoch=silence.partition_epoch,
                    silence_ns=silence.silence_ns,
                )
        case LogInfoRequest(partitions):
            target.log_info_request.SetInParent()
            target.log_info_request.partition_ids.extend(partitions)
        case LogInfoReply(logs):
            target.log_info_reply.SetInParent()
            for log in logs:
                target.log_info_reply.logs.add(
                    partition_id=log.partition,
                    last_epoch=log.last_epoch,
                    log_end_offset=log.log_end_offset,
                    is_damaged=log.is_damaged,
                )


# -- reading ------------------------------------------------------------------------------------


def read_body(message: pb.Peer) -> Body:
    """Decode the body of a header.

    Raises:
        WireError: This version does not know the body, or a field breaks its bounds.
    """
    kind = message.WhichOneof("body")
    if kind is None:
        raise WireError("peer message: a body that this version does not know")
    return _READERS[kind](message)


def _origin(data: bytes) -> bytes:
    if len(data) != ORIGIN_SIZE:
        raise WireError(f"peer message: origin of {len(data)} bytes")
    return data


def _propose(message: pb.Peer) -> Propose:
    body = message.propose
    return Propose(_origin(body.origin), body.token, body.is_essential, body.term, body.deadline_ns)


def _propose_refused(message: pb.Peer) -> ProposeRefused:
    body = message.propose_refused
    bounded(len(body.reason), "characters of a reason", REASON_LENGTH_MAX)
    leader = name(body.leader, "leader", may_be_empty=True)
    return ProposeRefused(
        _origin(body.origin),
        body.token,
        body.is_definite,
        name(body.code, "code", may_be_empty=True),
        body.reason,
        BrokerId(leader) if leader else None,
    )


def _leader_report(message: pb.Peer) -> LeaderReport:
    silences = message.leader_report.silences
    bounded(len(silences), "reported leaders")
    return LeaderReport(
        tuple(
            Silence(
                PartitionId(silence.partition_id),
                BrokerId(name(silence.leader, "leader")),
                LeaderEpoch(silence.leader_epoch),
                MetadataIndex(silence.partition_epoch),
                silence.silence_ns,
            )
            for silence in silences
        )
    )


def _partitions(found: Sequence[int]) -> tuple[PartitionId, ...]:
    bounded(len(found), "partitions")
    return tuple(PartitionId(one) for one in found)


def _log_info_request(message: pb.Peer) -> LogInfoRequest:
    return LogInfoRequest(_partitions(message.log_info_request.partition_ids))


def _listening_request(message: pb.Peer) -> ListeningRequest:
    return ListeningRequest(_partitions(message.listening_request.partition_ids))


def _listening_reply(message: pb.Peer) -> ListeningReply:
    return ListeningReply(_partitions(message.listening_reply.partition_ids))


def _sequences_request(message: pb.Peer) -> SequencesRequest:
    body = message.sequences_request
    partitions = _partitions(body.partition_ids)
    return SequencesRequest(PublisherId(body.publisher_id), body.publisher_epoch, partitions)


def _sequences_reply(message: pb.Peer) -> SequencesReply:
    body = message.sequences_reply
    bounded(len(body.places), "places")
    return SequencesReply(
        PublisherId(body.publisher_id),
        body.publisher_epoch,
        # Sequences have the bounds of offsets.
        tuple(
            (PartitionId(place.partition_id), offset(place.next_sequence)) for place in body.places
        ),
    )


def _cursor_request(message: pb.Peer) -> CursorRequest:
    body = message.cursor_request
    bounded(len(body.key), "bytes of a key", KEY_BYTES_MAX)
    return CursorRequest(body.question, PartitionId(body.partition_id), body.key)


def _cursor_reply(message: pb.Peer) -> CursorReply:
    body = message.cursor_reply
    found = offset(body.offset) if body.HasField("offset") else None
    return CursorReply(body.question, found, body.stream_id, body.unclean_epoch)


def _coordinator_report(message: pb.Peer) -> CoordinatorReport:
    body = message.coordinator_report
    return CoordinatorReport(
        name(body.group_id, "group"),
        name(body.member_id, "member"),
        BrokerId(name(body.coordinator, "coordinator")),
        body.coordinator_epoch,
    )


def _log_info_reply(message: pb.Peer) -> LogInfoReply:
    logs = message.log_info_reply.logs
    bounded(len(logs), "logs")
    return LogInfoReply(
        tuple(
            LogInfo(
                PartitionId(log.partition_id),
                LeaderEpoch(log.last_epoch) if log.HasField("last_epoch") else None,
                offset(log.log_end_offset),
                log.is_damaged,
            )
            for log in logs
        )
    )


def offset(value: int) -> Offset:
    """Check an offset from a peer.

    Raises:
        WireError: The offset is negative.
    """
    if value < 0:
        raise WireError(f"peer message: offset {value}")
    return Offset(value)


def _raft(message: pb.Peer) -> RaftBody:
    body = message.raft
    if not body.HasField("clock_ns"):
        return RaftBody()
    if body.clock_ns > CLOCK_NS_MAX:
        raise WireError(f"peer message: a clock of {body.clock_ns} ns")
    return RaftBody(body.clock_ns)


_READERS: Final[dict[str, Callable[[pb.Peer], Body]]] = {
    "raft": _raft,
    "propose": _propose,
    "propose_refused": _propose_refused,
    "heartbeat": decode_heartbeat,
    "heartbeat_reply": decode_heartbeat_reply,
    "leader_report": _leader_report,
    "log_info_request": _log_info_request,
    "log_info_reply": _log_info_reply,
    "discover": decode_discover,
    "discover_reply": decode_discover_reply,
    "join": decode_join,
    "listening_request": _listening_request,
    "listening_reply": _listening_reply,
    "sequences_request": _sequences_request,
    "sequences_reply": _sequences_reply,
    "cursor_request": _cursor_request,
    "cursor_reply": _cursor_reply,
    "coordinator_report": _coordinator_report,
    "messages_lost": lambda _message: MessagesLost(),
    "fetch": lambda message: decode_fetch(message.fetch),
    "fetch_reply": lambda message: decode_fetch_reply(message.fetch_reply),
    "hello": decode_hello,
}
