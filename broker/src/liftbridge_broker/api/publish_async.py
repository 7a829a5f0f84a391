"""`PublishAsync`: the hot path from HTTP/2 DATA frames to runs of messages (spec 1.7).

One call of `on_messages` carries everything one loop turn brought. Requests are decoded in one
loop and neighbours for the same partition and policy become one run, so that encoding, checksum,
append, fan-out and acks are paid once a run (bench: `tests/bench/run.py`, row PublishAsync).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from liftbridge_broker.api.context import Context
from liftbridge_broker.api.call import Call
from liftbridge_broker.errors import (
    GrpcStatus,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    ReadonlyError,
    TooLargeError,
)
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.runs import POLICY_NONE, PublishRun, Stored, Ticket
from liftbridge_proto import api_pb2

DRAIN_SECONDS: Final = 5.0
"""How long acks in flight are waited for once the client closed its side (spec 1.7)."""

AsyncError = api_pb2.PublishAsyncError


def async_code(error: LiftbridgeError) -> "AsyncError.Code":
    """Code of `PublishAsyncError` for a refusal."""
    match error:
        case NotFoundError():
            return AsyncError.NOT_FOUND
        case ReadonlyError():
            return AsyncError.READONLY
        case IncorrectOffsetError():
            return AsyncError.INCORRECT_OFFSET
        case InvalidRequestError() | TooLargeError():
            return AsyncError.BAD_REQUEST
        case OutcomeUnknownError():
            return AsyncError.UNKNOWN
        case _:
            return AsyncError.INTERNAL


@dataclass(slots=True)
class _Route:
    """Where messages for one stream and partition go; looked up again at every turn.

    Attributes:
        partition: The partition, or `None` when `error` says why there is none.
        is_bulk: Whether neighbours may share a run (no optimistic concurrency, no queue group).
    """

    partition: Partition | None
    error: LiftbridgeError | None
    is_bulk: bool


class _RunAcks:
    """Acks of one run to the call it came from."""

    __slots__ = ("correlation_ids", "owner", "partition", "policy")

    def __init__(
        self,
        owner: "PublishAsyncCall",
        partition: Partition,
        policy: int,
        correlation_ids: list[bytes],
    ) -> None:
        self.owner = owner
        self.partition = partition
        self.policy = policy
        self.correlation_ids = correlation_ids

    def acked(self, stored: Stored) -> None:
        """One response for each message, joined into one write."""
        owner = self.owner
        count = len(self.correlation_ids)
        if self.policy != POLICY_NONE and owner.is_open:
            partition = self.partition
            owner.call.send(
                partition.acks.publish_responses(
                    stored.base_offset,
                    self.correlation_ids,
                    policy=self.policy,
                    reception_ts=stored.timestamp,
                    commit_ts=stored.commit_ns,
                    msg_subject=partition.subject.encode(),
                )
            )
        owner.settle(count)

    def refused(self, error: LiftbridgeError) -> None:
        """One error response for each message."""
        owner = self.owner
        for correlation_id in self.correlation_ids:
            owner.send_error(correlation_id.decode(), error)
        owner.settle(len(self.correlation_ids))


class PublishAsyncCall:
    """One `PublishAsync` call.

    Invariant: `in_flight` is the number of messages given to partitions and not answered yet.
    """

    def __init__(self, context: Context, call: Call) -> None:
        self.call = call
        self.is_open = True
        self.in_flight = 0
        self._context = context
        self._routes: dict[tuple[str, int], _Route] = {}
        self._is_half_closed = False
        self._drain_timer: asyncio.TimerHandle | None = None
        call.on_messages = self.on_messages
        call.on_half_close = self.on_half_close
        call.on_cancel = self.on_cancel

    # -- requests -----------------------------------------------------------------------------

    def on_messages(self, messages: list[bytes]) -> None:
        """Decode one turn's requests and publish them in order."""
        context = self._context
        now, wall_ns = context.clock.now(), context.clock.wall_ns()
        self._routes.clear()
        parse = api_pb2.PublishRequest.FromString
        large = max(map(len, messages)) > context.record_bytes_max
        run: _RunDraft | None = None
        try:
            for raw in messages:
                request = parse(raw)
                stream = request.stream
                number = request.partition
                policy = request.ackPolicy
                if (
                    run is None
                    or stream != run.stream
                    or number != run.number
                    or policy != run.policy
                ):
                    if run is not None:
                        run.publish(self, now, wall_ns)
                    run = self._draft(request, stream, number, policy)
                    if run is None:
                        continue
                if large and len(raw) > context.record_bytes_max:
                    self._refuse(request, TooLargeError("message exceeds max replication size"))
                    continue
                run.values.append(request.value)
                run.correlation_ids.append(request.correlationId.encode())
                run.keys.append(request.key)
                if request.headers:
                    run.add_headers(dict(request.headers))
                if not run.is_bulk:
                    run.expected_offset = request.expectedOffset
                    run.publish(self, now, wall_ns)
                    run = None
        except DecodeError:
            if run is not None:
                run.publish(self, now, wall_ns)
            self.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")
            return
        if run is not None:
            run.publish(self, now, wall_ns)

    def _draft(
        self, request: api_pb2.PublishRequest, stream: str, number: int, policy: int
    ) -> "_RunDraft | None":
        route = self._routes.get((stream, number))
        if route is None:
            route = self._routes[stream, number] = self._route(stream, number)
        partition = route.partition
        error = route.error
        if partition is not None and not route.is_bulk and error is None:
            error = check_concurrency(partition, policy)
        if partition is None or error is not None:
            self._refuse(request, error)
            return None
        return _RunDraft(partition, stream, number, policy, is_bulk=route.is_bulk)

    def _route(self, stream: str, number: int) -> _Route:
        try:
            partition = self._context.node.find_for_publish(stream, number)
        except LiftbridgeError as error:
            return _Route(None, error, is_bulk=False)
        is_bulk = not partition.options.optimistic_concurrency and not partition.group
        error = ReadonlyError(f"readonly partition: {number}") if partition.is_readonly else None
        return _Route(partition, error, is_bulk=is_bulk)

    # -- responses ----------------------------------------------------------------------------

    def _refuse(self, request: api_pb2.PublishRequest, error: LiftbridgeError | None) -> None:
        assert error is not None
        self.send_error(request.correlationId, error)

    def send_error(self, correlation_id: str, error: LiftbridgeError) -> None:
        """Answer one message with an error; the ack beside it is empty, as in the original."""
        if not self.is_open:
            return
        response = api_pb2.PublishResponse(
            ack=api_pb2.Ack(),
            asyncError=AsyncError(code=async_code(error), message=error.text),
            correlationId=correlation_id,
        )
        self.call.send_message(response.SerializeToString())

    def settle(self, count: int) -> None:
        """Note that `count` messages are answered."""
        self.in_flight -= count
        if self._is_half_closed and self.in_flight <= 0:
            self.finish(GrpcStatus.OK, "")

    # -- end ----------------------------------------------------------------------------------

    def on_half_close(self) -> None:
        """The client sends no more: end once its acks are out, or after a while."""
        self._is_half_closed = True
        if self.in_flight <= 0:
            self.finish(GrpcStatus.OK, "")
        else:
            loop = asyncio.get_running_loop()
            self._drain_timer = loop.call_later(DRAIN_SECONDS, self.finish, GrpcStatus.OK, "")

    def on_cancel(self) -> None:
        """The client went away; what it published stays published."""
        self._close()

    def finish(self, status: GrpcStatus, text: str) -> None:
        """End the call."""
        if self.is_open:
            self._close()
            self.call.finish(status, text)

    def _close(self) -> None:
        self.is_open = False
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None


class _RunDraft:
    """A run being collected from neighbouring requests."""

    __slots__ = (
        "correlation_ids",
        "expected_offset",
        "headers",
        "is_bulk",
        "keys",
        "number",
        "partition",
        "policy",
        "stream",
        "values",
    )

    def __init__(
        self, partition: Partition, stream: str, number: int, policy: int, *, is_bulk: bool
    ) -> None:
        self.partition = partition
        self.stream = stream
        self.number = number
        self.policy = policy
        self.is_bulk = is_bulk
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.correlation_ids: list[bytes] = []
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.expected_offset = 0

    def add_headers(self, headers: Mapping[str, bytes]) -> None:
        """Give the message added last its headers."""
        if self.headers is None:
            self.headers = [None] * len(self.values)
        missing = len(self.values) - len(self.headers)
        self.headers += [None] * missing
        self.headers[-1] = headers

    def publish(self, owner: PublishAsyncCall, now: int, wall_ns: int) -> None:
        """Give the run to its partition."""
        values = self.values
        if not values:
            return
        if self.headers is not None:
            self.headers += [None] * (len(values) - len(self.headers))
        acks = _RunAcks(owner, self.partition, self.policy, self.correlation_ids)
        owner.in_flight += len(values)
        run = PublishRun(
            values,
            self.partition.subject,
            "grpc",
            (Ticket(self.policy, acks),),
            self.keys if any(self.keys) else None,
            self.headers,
            policy=self.policy,
            correlation_ids=self.correlation_ids,
            expected_offsets=None if self.is_bulk else [self.expected_offset],
        )
        owner._context.node.publish(self.partition, run, now, wall_ns)  # noqa: SLF001


def check_concurrency(partition: Partition, policy: int) -> LiftbridgeError | None:
    """Optimistic concurrency needs an ack to tell the outcome (spec 1.6)."""
    if partition.options.optimistic_concurrency and policy == POLICY_NONE:
        return InvalidRequestError("stream with concurrency control must have AckPolicy set")
    return None
