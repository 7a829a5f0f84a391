"""`PublishAsync`: the hot path from HTTP/2 DATA frames to runs of messages.

A call of `on_messages` has everything that a turn of the loop received. One loop decodes the
requests. Consecutive requests for the same partition and policy become one run, so that encoding,
checksum, append, fan-out and acks are paid once per run (bench: `tests/bench/run.py`, row
PublishAsync).
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

from google.protobuf.message import DecodeError

from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.controller.checks import check_not_reserved
from liftbridge_broker.errors import (
    GrpcStatus,
    IncorrectOffsetError,
    InvalidRequestError,
    KeyUnavailableError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ReadonlyError,
    TooLargeError,
)
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.partition.intake import check_headers, stamp_of
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_NONE, PendingAck, PublishRun, Stored
from liftbridge_broker.node.publishing.remote_partition import RemotePartition
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.wire.listed import mapping, with_lists, without_maps
from liftbridge_proto import api_pb2

DRAIN_SECONDS: Final = 5.0
"""Seconds to wait for acks in flight after the client closed its side."""

PIECE_BYTES: Final = 32 * 1024
"""Bytes of messages with headers published at once: at most about 5,000 headers."""

PIECE_RUNS: Final = 16
"""Runs published at once: the first record of a partition creates a file, up to 1 ms of work."""

AsyncError = api_pb2.PublishAsyncError


_CODES: Final[tuple[tuple[type[LiftbridgeError], "AsyncError.Code"], ...]] = (
    (NotFoundError, AsyncError.NOT_FOUND),
    (ReadonlyError, AsyncError.READONLY),
    (IncorrectOffsetError, AsyncError.INCORRECT_OFFSET),
    (PermissionDeniedError, AsyncError.PERMISSION_DENIED),
    (InvalidRequestError, AsyncError.BAD_REQUEST),
    (TooLargeError, AsyncError.BAD_REQUEST),
    (OutcomeUnknownError, AsyncError.UNKNOWN),
    (KeyUnavailableError, AsyncError.ENCRYPTION_FAILED),
)


def async_code(error: LiftbridgeError) -> "AsyncError.Code":
    """Return the code of `PublishAsyncError` for a refusal."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), AsyncError.INTERNAL)


_PARSE: Final = with_lists(api_pb2.PublishRequest).FromString
_PARSE_LARGE: Final = without_maps(api_pb2.PublishRequest).FromString
_ROUTE: Final = attrgetter("stream", "partition", "ackPolicy")
_Route = tuple[str, int, int]
_Run = tuple[_Route, list[api_pb2.PublishRequest]]


class _RunAcks:
    """Sends the acks of one run to its call."""

    __slots__ = ("correlation_ids", "owner", "partition", "policy", "received")

    def __init__(
        self,
        owner: "PublishAsyncCall",
        partition: Partition | RemotePartition,
        policy: int,
        correlation_ids: list[bytes],
        received: Instant,
    ) -> None:
        self.received = received
        self.owner = owner
        self.partition = partition
        self.policy = policy
        self.correlation_ids = correlation_ids

    def acked(self, stored: Stored) -> None:
        """Send one response for each message, joined into one write."""
        owner = self.owner
        count = len(self.correlation_ids)
        if self.policy != POLICY_NONE and owner.is_open:
            partition = self.partition
            acks = stored.acks or partition.acks
            owner.call.send(
                acks.publish_responses(
                    stored.base_offset,
                    self.correlation_ids,
                    policy=self.policy,
                    reception_ts=stored.timestamp,
                    commit_ts=stored.commit_ns,
                    msg_subject=partition.subject.encode(),
                    leader_epoch=stored.leader_epoch,
                )
            )
            owner.context.note_acked(self.policy, self.received, count)
        owner.settle(count)

    def refused(self, error: LiftbridgeError) -> None:
        """Send one error response for each message."""
        owner = self.owner
        for correlation_id in self.correlation_ids:
            owner.send_error(correlation_id.decode(), error)
        owner.settle(len(self.correlation_ids))


class PublishAsyncCall:
    """One `PublishAsync` call.

    Invariant: `in_flight` is the number of messages passed to partitions and not answered yet.
    """

    def __init__(self, context: Context, call: Call) -> None:
        self.call = call
        self.is_open = True
        self.in_flight = 0
        self.context = context
        self._is_half_closed = False
        self._drain_timer: asyncio.TimerHandle | None = None
        call.on_messages = self.on_messages
        call.on_half_close = self.on_half_close
        call.on_cancel = self.on_cancel

    # -- requests -----------------------------------------------------------------------------

    def on_messages(self, messages: list[bytes]) -> None:
        """Decode one turn's requests and publish them in order."""
        if max(map(len, messages)) > self.context.record_bytes_max:
            messages = self._without_large(messages)
        requests, is_damaged = _decode(messages)
        runs = _runs_of(requests)
        # Without headers a message costs about as much as any other, and there are few enough.
        has_much = sum(map(len, messages)) > PIECE_BYTES and any(one.headers for one in requests)
        if has_much or len(runs) > PIECE_RUNS:
            self.call.go_on(self._publish_pieces(requests, messages, is_damaged=is_damaged))
        else:
            self._publish_all(runs, messages, is_damaged=is_damaged)

    def _publish_pieces(
        self, requests: list[api_pb2.PublishRequest], messages: list[bytes], *, is_damaged: bool
    ) -> Iterator[None]:
        """Publish requests in steps, between the turns of other connections."""
        start = size = run_count = 0
        route = None
        for end, (request, raw) in enumerate(zip(requests, messages, strict=False), start=1):
            size += len(raw)
            before, route = route, _ROUTE(request)
            run_count += route != before
            if size >= PIECE_BYTES or run_count >= PIECE_RUNS:
                piece = _runs_of(requests[start:end])
                self._publish_all(piece, messages[start:end], is_damaged=False)
                start, size, run_count, route = end, 0, 0, None
                yield
        self._publish_all(_runs_of(requests[start:]), messages[start:], is_damaged=is_damaged)

    def _publish_all(self, runs: list[_Run], messages: list[bytes], *, is_damaged: bool) -> None:
        """Publish decoded requests in order.

        Args:
            runs: They, with their routes.
            messages: Their bytes as received, perhaps followed by those of others.
            is_damaged: Whether an invalid request followed, which ends the call.
        """
        clock = self.context.clock
        now, wall_ns = clock.now(), clock.wall_ns()
        start = delay_ns = 0
        slowest = ""
        for route, run in runs:
            end = start + len(run)
            owed_ns = self._publish(route, run, map(len, messages[start:end]), now, wall_ns)
            start = end
            if owed_ns > delay_ns:
                delay_ns, slowest = owed_ns, route[0]
        self.context.hold_back(self.call, slowest, delay_ns)
        if is_damaged:
            self.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")

    def _publish(
        self,
        route: _Route,
        requests: list[api_pb2.PublishRequest],
        sizes: Iterable[int],
        now: Instant,
        wall_ns: int,
    ) -> int:
        """Publish consecutive messages for a partition and policy, as one run if allowed.

        Returns:
            Time for which their quota allows no further ones, nanoseconds.
        """
        stream, number, policy = route
        try:
            self.context.access.check(self.call, Operation.PUBLISH, ResourceKind.STREAM, stream)
            partition = self.context.node.find_for_publish(stream, number)
            check_publish(partition, policy)
            delay_ns = self.context.quotas.publish(
                self.call.principal.name,
                stream,
                messages=len(requests),
                sizes=sizes,
            )
        except LiftbridgeError as error:
            self.context.count_refused(error, len(requests))
            for request in requests:
                self.send_error(request.correlationId, error)
            return 0
        headers = [request.headers for request in requests]
        if partition.takes_runs and not any(headers):
            self._publish_run(partition, policy, requests, now, wall_ns)
            return delay_ns
        for run, stamp in self._split(requests, takes_runs=partition.takes_runs):
            self._publish_run(partition, policy, run, now, wall_ns, _headers_of(run), stamp)
        return delay_ns

    def _split(
        self, requests: list[api_pb2.PublishRequest], *, takes_runs: bool
    ) -> list[tuple[list[api_pb2.PublishRequest], PublisherStamp | None]]:
        """Return runs in order; a message with an idempotent publisher's stamp is its own run."""
        runs: list[tuple[list[api_pb2.PublishRequest], PublisherStamp | None]] = []
        is_shared = False
        for request in requests:
            try:
                check_headers(request.headers)
                stamp = stamp_of(mapping(request.headers))
            except LiftbridgeError as error:
                self.context.count_refused(error)
                self.send_error(request.correlationId, error)
                continue
            if is_shared and stamp is None:
                runs[-1][0].append(request)
            else:
                runs.append(([request], stamp))
            is_shared = takes_runs and stamp is None
        return runs

    def _publish_run(
        self,
        partition: Partition | RemotePartition,
        policy: int,
        requests: list[api_pb2.PublishRequest],
        now: Instant,
        wall_ns: int,
        headers: list[Mapping[str, bytes] | None] | None = None,
        stamp: PublisherStamp | None = None,
    ) -> None:
        keys = [request.key for request in requests]
        correlation_ids = [request.correlationId.encode() for request in requests]
        self.in_flight += len(requests)
        acks = _RunAcks(self, partition, policy, correlation_ids, now)
        run = PublishRun(
            [request.value for request in requests],
            partition.subject,
            "grpc",
            (PendingAck(policy, acks),),
            keys if any(keys) else None,
            headers,
            policy=policy,
            correlation_ids=correlation_ids,
            expected_offsets=None if partition.takes_runs else [requests[0].expectedOffset],
            publisher=stamp,
        )
        self.context.node.publish(partition, run, now, wall_ns)

    def _without_large(self, messages: list[bytes]) -> list[bytes]:
        """Refuse the messages that are too large for a record, and return the others."""
        limit = self.context.record_bytes_max
        kept: list[bytes] = []
        for raw in messages:
            if len(raw) <= limit:
                kept.append(raw)
                continue
            try:
                correlation_id = _PARSE_LARGE(raw).correlationId
            except DecodeError:
                return [*kept, raw]  # ends the call
            error = TooLargeError("message exceeds max replication size")
            self.context.count_refused(error)
            self.send_error(correlation_id, error)
        return kept

    # -- responses ----------------------------------------------------------------------------

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
        """Record that `count` messages are answered."""
        self.in_flight -= count
        if self._is_half_closed and self.in_flight <= 0:
            self.finish(GrpcStatus.OK, "")

    # -- end ----------------------------------------------------------------------------------

    def on_half_close(self) -> None:
        """Handle the end of input: end once the acks are sent, or after a while."""
        self._is_half_closed = True
        if self.in_flight <= 0:
            self.finish(GrpcStatus.OK, "")
        else:
            loop = asyncio.get_running_loop()
            end = self.context.in_turn(self.call, partial(self.finish, GrpcStatus.OK, ""))
            self._drain_timer = loop.call_later(DRAIN_SECONDS, end)

    def on_cancel(self) -> None:
        """Handle the disconnection of a client; its published messages stay."""
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


def _runs_of(requests: list[api_pb2.PublishRequest]) -> list[_Run]:
    """Return consecutive messages for the same partition and policy together."""
    return [(route, list(group)) for route, group in groupby(requests, _ROUTE)]


def _decode(messages: list[bytes]) -> tuple[list[api_pb2.PublishRequest], bool]:
    """Decode requests up to the first invalid request; return whether there was one."""
    try:
        return list(map(_PARSE, messages)), False
    except DecodeError:
        pass
    requests: list[api_pb2.PublishRequest] = []
    for raw in messages:
        try:
            requests.append(_PARSE(raw))
        except DecodeError:
            break
    return requests, True


def _headers_of(
    requests: list[api_pb2.PublishRequest],
) -> list[Mapping[str, bytes] | None] | None:
    headers = [mapping(request.headers) or None for request in requests]
    return list(headers) if any(headers) else None


def check_publish(partition: Partition | RemotePartition, policy: int) -> None:
    """Refuse a message that its policy or the partition forbids, in the order of the original.

    Raises:
        ReadonlyError: The partition is read-only.
        InvalidRequestError: Only brokers may write to the stream, or optimistic concurrency needs
            an ack to report the outcome.
    """
    check_not_reserved(partition.stream, is_internal=False)  # guard Publish.own
    if partition.is_readonly:
        raise ReadonlyError(f"readonly partition: {partition.number}")
    if partition.options.optimistic_concurrency and policy == POLICY_NONE:
        raise InvalidRequestError("stream with concurrency control must have AckPolicy set")
