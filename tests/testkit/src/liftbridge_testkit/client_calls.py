"""Calls of clients to members of a `ClusterWorld`: the shipped services without a network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message

from liftbridge_broker.api.batches import FetchBatchesCall
from liftbridge_broker.api.bounds import BoundsService
from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.cursors import CursorService
from liftbridge_broker.api.groups.classic import GroupService
from liftbridge_broker.api.groups.lag import GroupLagService
from liftbridge_broker.api.groups.members import GroupMemberService
from liftbridge_broker.api.groups.positions import PositionService
from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.api.grpc.turns import Turns
from liftbridge_broker.api.metadata import MetadataService
from liftbridge_broker.api.subscribe import SubscribeCall
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2
from liftbridge_testkit.cluster_world import ClusterWorld, Member

ROOM: Final = 1 << 20
FRAME_PREFIX: Final = 5
API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
GROUPS: Final = "/liftbridge.ext.v1.Groups/"

RESPONSES: Final[Mapping[str, type[Message]]] = {
    API + "FetchMetadata": api_pb2.FetchMetadataResponse,
    API + "FetchPartitionMetadata": api_pb2.FetchPartitionMetadataResponse,
    API + "Subscribe": api_pb2.Message,
    DATA + "PartitionBounds": data_pb2.PartitionBoundsResponse,
    DATA + "FetchBatches": data_pb2.FetchBatchesResponse,
}
"""Methods that tell offsets of logs, with what they answer."""

GROUP_RESPONSES: Final[Mapping[str, type[Message]]] = {
    API + "JoinConsumerGroup": api_pb2.JoinConsumerGroupResponse,
    API + "LeaveConsumerGroup": api_pb2.LeaveConsumerGroupResponse,
    API + "FetchConsumerGroupAssignments": api_pb2.FetchConsumerGroupAssignmentsResponse,
    API + "ReportConsumerGroupCoordinator": api_pb2.ReportConsumerGroupCoordinatorResponse,
    API + "SetCursor": api_pb2.SetCursorResponse,
    API + "FetchCursor": api_pb2.FetchCursorResponse,
    GROUPS + "Heartbeat": groups_pb2.HeartbeatResponse,
    GROUPS + "Leave": groups_pb2.LeaveResponse,
    GROUPS + "CommitPositions": groups_pb2.CommitPositionsResponse,
    GROUPS + "ListGroups": groups_pb2.ListGroupsResponse,
    GROUPS + "DescribeGroup": groups_pb2.DescribeGroupResponse,
    GROUPS + "DeleteGroup": groups_pb2.DeleteGroupResponse,
    GROUPS + "EvictMember": groups_pb2.EvictMemberResponse,
    GROUPS + "GroupLag": groups_pb2.GroupLagResponse,
    GROUPS + "ResetPositions": groups_pb2.ResetPositionsResponse,
}
"""Methods of members of consumer groups, and of people who look after them."""


@dataclass(slots=True)
class Outcome:
    """Outcome of a call.

    Attributes:
        messages: Responses so far, the empty handshake of `Subscribe` among them.
        code: gRPC status, `None` while the call is open.
        text: Its message.
        headers: Response headers beyond those of gRPC.
    """

    kind: type[Message]
    data: bytearray = field(default_factory=bytearray)
    code: int | None = None
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> Sequence[Message]:
        """Responses so far."""
        found, position = [], 0
        while position < len(self.data):
            size = int.from_bytes(self.data[position + 1 : position + FRAME_PREFIX])
            start = position + FRAME_PREFIX
            found.append(self.kind.FromString(bytes(self.data[start : start + size])))
            position = start + size
        return found


class _Port:
    """The connection of one call."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def room(self, stream_id: int) -> int:
        """Return a positive number: there is always room."""
        del stream_id
        return ROOM

    def begin(self, stream_id: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep the headers."""
        del stream_id
        self._outcome.headers.update((name.decode(), value.decode()) for name, value in fields)

    def queue(self, stream_id: int, frames: bytes | Sequence[bytes | memoryview]) -> bool:
        """Keep what was sent."""
        del stream_id
        self._outcome.data += frames if isinstance(frames, bytes) else b"".join(frames)
        return True

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run all steps at once: no other caller waits."""
        do_steps(call, steps)

    def finish(self, call: Call, code: int, text: str, error_code: str) -> None:
        """Keep how it ended."""
        del call, error_code
        self._outcome.code, self._outcome.text = code, text

    def expect_request(self, stream_id: int) -> None:
        """No-op: no request is late here."""

    def keep(self, stream_id: int, size: int) -> None:
        """Requests are whole at once."""

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        """No-op: these calls read no further messages."""

    def peer_certificate(self) -> None:
        """Return no certificate: there is no TLS."""


class WorldClock:
    """The clock of a world."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    def now(self) -> Instant:
        """Return the monotonic time in nanoseconds."""
        return self._world.now

    def wall_ns(self) -> int:
        """Return Unix nanoseconds."""
        return self._world.wall_ns


class ClientCalls:
    """Clients of one member in its present life."""

    def __init__(self, member: Member) -> None:
        self._world = member.world
        self.context = Context(member.node, WorldClock(member.world), 1 << 20, 100, 100)
        metadata = MetadataService(self.context, host="localhost")
        bounds = BoundsService(self.context)
        groups, members = GroupService(self.context), GroupMemberService(self.context)
        cursors, positions = CursorService(self.context), PositionService(self.context)
        self._unary: Mapping[str, Callable[[Call, bytes], Iterator[None] | None]] = {
            API + "FetchMetadata": metadata.fetch,
            API + "FetchPartitionMetadata": metadata.fetch_partition,
            DATA + "PartitionBounds": bounds.bounds,
            API + "JoinConsumerGroup": groups.join,
            API + "LeaveConsumerGroup": groups.leave,
            API + "FetchConsumerGroupAssignments": groups.fetch_assignments,
            API + "ReportConsumerGroupCoordinator": groups.report_coordinator,
            API + "SetCursor": cursors.set,
            API + "FetchCursor": cursors.fetch,
            GROUPS + "Heartbeat": members.heartbeat,
            GROUPS + "Leave": members.leave,
            GROUPS + "CommitPositions": positions.commit,
            GROUPS + "ResetPositions": positions.reset,
            GROUPS + "GroupLag": GroupLagService(self.context).lag,
            GROUPS + "ListGroups": members.list_groups,
            GROUPS + "DescribeGroup": members.describe,
            GROUPS + "DeleteGroup": members.delete,
            GROUPS + "EvictMember": members.evict,
        }
        self._streaming: Mapping[str, Callable[[Context, Call, Turns], object]] = {
            API + "Subscribe": SubscribeCall,
            DATA + "FetchBatches": FetchBatchesCall,
        }

    def begin(self, method: str, request: Message) -> Outcome:
        """Make a call; what comes of it later is added to the outcome."""
        outcome = Outcome({**RESPONSES, **GROUP_RESPONSES}[method])
        # Without a deadline, calls that wait for replicas would set a timer of the event loop.
        deadline = 1e9 if method in GROUP_RESPONSES else None
        call = Call(_Port(outcome), 1, method=method, peer="", deadline=deadline)
        raw = request.SerializeToString()
        try:
            unary = self._unary.get(method)
            if unary is not None:
                do_steps(call, unary(call, raw) or iter(()))
            else:
                self._streaming[method](self.context, call, Turns())
                call.on_messages([raw])
        except LiftbridgeError as error:
            refuse(call, error)
        self._world.settle()
        return outcome

    def call(self, method: str, request: Message, *, milliseconds: int = 5_000) -> Outcome:
        """Make a call and wait for its end."""
        outcome = self.begin(method, request)
        self._world.until(lambda: outcome.code is not None, milliseconds=milliseconds)
        return outcome


def end_requests(*, as_replica: bool) -> list[tuple[str, Message]]:
    """Every question about the end of `s/0` that a method can be asked; see `told_end`."""
    subscribe = [
        api_pb2.SubscribeRequest(startPosition=start, stopPosition="STOP_LATEST")
        for start in ("EARLIEST", "LATEST")
    ]
    subscribe += [
        api_pb2.SubscribeRequest(startPosition=start, startOffset=5, reverse=True)
        for start in ("NEW_ONLY", "LATEST", "OFFSET")
    ]
    for request in subscribe:
        request.stream, request.readISRReplica = "s", as_replica
    found: list[tuple[str, Message]] = [(API + "Subscribe", request) for request in subscribe]
    bounds = data_pb2.PartitionBoundsRequest(stream="s", partitions=[0], read_replica=as_replica)
    found.append((DATA + "PartitionBounds", bounds))
    fetch = data_pb2.FetchBatchesRequest(stream="s", read_replica=as_replica)
    found.append((DATA + "FetchBatches", fetch))
    if not as_replica:
        newest = api_pb2.FetchPartitionMetadataRequest(stream="s")
        found.append((API + "FetchPartitionMetadata", newest))
    return found


def told_end(request: Message, outcome: Outcome) -> int:
    """Return the log end in an answer to one of `end_requests`."""
    last = outcome.messages[-1]
    match last:
        case api_pb2.FetchPartitionMetadataResponse():
            return last.metadata.highWatermark + 1
        case data_pb2.PartitionBoundsResponse():
            return last.partitions[0].high_watermark
        case data_pb2.FetchBatchesResponse():
            return last.next_offset
        case _:
            is_reverse = isinstance(request, api_pb2.SubscribeRequest) and request.reverse
            told = outcome.messages[1 if is_reverse else -1]
            assert isinstance(told, api_pb2.Message)
            return told.offset + 1
