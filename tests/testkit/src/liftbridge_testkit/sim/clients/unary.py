"""Unary calls from the simulator to the services of the API, behind HTTP/2.

The code that makes the answers is the same as for clients on a network.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from liftbridge_broker.api.bounds import BoundsService
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.metadata import MetadataService
from liftbridge_broker.errors import LiftbridgeError, UnavailableError
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.node import Node
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.sim.clients.client_end import PREFIX_SIZE, ClientEnd

Done = Callable[[bytes | LiftbridgeError], None]
"""Receives the message of an answer, or a refusal; once."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """The clocks at the time of a call."""

    time: Instant
    wall: int

    def now(self) -> Instant:
        """Return the monotonic time in nanoseconds."""
        return self.time

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch."""
        return self.wall


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds received for one partition.

    Attributes:
        stream_id: Id of the stream.
        start: First offset kept.
        end: Committed end.
        place: Offset for the requested time, `None` without one.
    """

    stream_id: int
    start: int
    end: int
    place: int | None


@dataclass(frozen=True, slots=True)
class Unary:
    """One call that a broker has just received.

    Attributes:
        node: The broker.
        now: Its monotonic clock.
        wall_ns: Its wall clock.
    """

    node: Node
    now: Instant
    wall_ns: int

    def context(self) -> Context:
        """Return the context of a service that answers it."""
        clock = _Clock(self.now, self.wall_ns)
        return Context(self.node, clock, 1 << 20, streams_max=1 << 20, partitions_max=1 << 20)

    def call(self, done: Done, *, deadline: float | None = None) -> Call:
        """Return a call that `done` gets the answer of."""
        sent: list[bytes] = []

        def finished(code: int, text: str, _error_code: str) -> None:
            answer = b"".join(sent)[PREFIX_SIZE:]
            done(UnavailableError(f"status {code}: {text}") if code else answer)

        return Call(ClientEnd(sent.append, finished), 1, method="", peer="sim", deadline=deadline)

    def bounds(
        self,
        stream: str,
        number: int,
        timestamp: int | None,
        done: Callable[[Bounds | LiftbridgeError], None],
        *,
        reads_replica: bool,
    ) -> None:
        """Call `PartitionBounds` for one partition.

        Raises:
            LiftbridgeError: A refusal at once.
        """
        request = data_pb2.PartitionBoundsRequest(
            stream=stream, partitions=[number], timestamp=timestamp, read_replica=reads_replica
        )

        def answered(answer: bytes | LiftbridgeError) -> None:
            if isinstance(answer, LiftbridgeError):
                done(answer)
                return
            (found,) = data_pb2.PartitionBoundsResponse.FromString(answer).partitions
            place = found.timestamp_offset if timestamp is not None else None
            done(Bounds(found.stream_id, found.log_start, found.high_watermark, place))

        service = BoundsService(self.context())
        steps = service.bounds(self.call(answered), request.SerializeToString())
        deque(steps, maxlen=0)

    def newest(
        self, stream: str, number: int, done: Callable[[Offset | LiftbridgeError], None]
    ) -> None:
        """Call `FetchPartitionMetadata`: `done` gets the committed end.

        Raises:
            LiftbridgeError: A refusal at once.
        """
        request = api_pb2.FetchPartitionMetadataRequest(stream=stream, partition=number)

        def answered(answer: bytes | LiftbridgeError) -> None:
            if isinstance(answer, LiftbridgeError):
                done(answer)
                return
            told = api_pb2.FetchPartitionMetadataResponse.FromString(answer).metadata
            done(Offset(told.highWatermark + 1))

        service = MetadataService(self.context(), host="")
        service.fetch_partition(self.call(answered), request.SerializeToString())
