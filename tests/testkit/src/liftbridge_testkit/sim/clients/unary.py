"""Unary calls from the simulator to the services of the API, behind HTTP/2.

The code that makes the answers is the same as for clients on a network.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from liftbridge_broker.api.bounds import BoundsService
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.api.metadata import MetadataService
from liftbridge_broker.errors import LiftbridgeError, UnavailableError
from liftbridge_broker.http2.stream import Buffer
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.node import Node
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

PREFIX_SIZE = 5
"""Bytes of the prefix of each gRPC message."""

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


class _Port:
    """The connection of one call."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._sent: list[bytes] = []

    def room(self, _stream_id: int) -> int:
        """Return a positive number: the client accepts everything."""
        return 1 << 20

    def begin(self, _stream_id: int, _fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Ignore the headers."""

    def queue(self, _stream_id: int, frames: bytes | Sequence[Buffer]) -> bool:
        """Keep sent data until the end."""
        self._sent.append(frames if isinstance(frames, bytes) else b"".join(frames))
        return True

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run all steps at once: no other caller waits."""
        do_steps(call, steps)

    def finish(self, _call: Call, code: int, text: str, _error_code: str) -> None:
        """Deliver the answer."""
        sent = b"".join(self._sent)[PREFIX_SIZE:]
        self._done(UnavailableError(f"status {code}: {text}") if code else sent)

    def expect_request(self, _stream_id: int) -> None:
        """No-op: the request is already here."""

    def keep(self, _stream_id: int, _size: int) -> None:
        """No-op: the whole request is already here."""

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None:
        """No-op: no further messages are read."""

    def peer_certificate(self) -> None:
        """Return no certificate: there is no TLS."""


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
        return Call(_Port(done), 1, method="", peer="sim", deadline=deadline)

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
