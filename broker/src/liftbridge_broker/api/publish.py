"""`Publish` and `PublishToSubject`: one message, one answer."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.publish_async import check_publish
from liftbridge_broker.api.streams import REQUEST_BYTES_MAX
from liftbridge_broker.errors import (
    GrpcStatus,
    InvalidRequestError,
    LiftbridgeError,
    TooLargeError,
)
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.partition.intake import check_headers, stamp_of
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_NONE, PendingAck, PublishRun, Stored
from liftbridge_broker.node.publishing.remote_partition import RemotePartition
from liftbridge_broker.node.publishing.subjects import SubjectPublish, Waiter
from liftbridge_broker.wire.acks import inbox_frame
from liftbridge_broker.wire.listed import mapping, with_lists
from liftbridge_proto import api_pb2

_PARSE: Final = with_lists(api_pb2.PublishRequest).FromString
_PARSE_TO_SUBJECT: Final = with_lists(api_pb2.PublishToSubjectRequest).FromString

NO_ACK = api_pb2.PublishResponse().SerializeToString()
NO_SUBJECT_ACK = api_pb2.PublishToSubjectResponse().SerializeToString()


class _UnaryAck:
    """Answers a `Publish` call with its ack; sends nothing for fire and forget."""

    __slots__ = (
        "call",
        "context",
        "delay_ns",
        "error",
        "partition",
        "received",
        "request",
        "waits",
    )

    def __init__(
        self,
        context: Context,
        call: Call,
        partition: Partition | RemotePartition,
        request: api_pb2.PublishRequest,
        *,
        waits: bool,
        delay_ns: int,
    ) -> None:
        self.context = context
        self.delay_ns = delay_ns
        self.received = context.clock.now()
        self.call = call
        self.partition = partition
        self.request = request
        self.waits = waits
        self.error: LiftbridgeError | None = None

    def acked(self, stored: Stored) -> None:
        if self.waits:
            request = self.request
            acks = stored.acks or self.partition.acks
            framed = acks.publish_responses(
                stored.base_offset,
                [request.correlationId.encode()],
                policy=request.ackPolicy,
                reception_ts=stored.timestamp,
                commit_ts=stored.commit_ns,
                msg_subject=self.partition.subject.encode(),
                ack_inbox=request.ackInbox.encode(),
                leader_epoch=stored.leader_epoch,
            )
            self.context.note_acked(request.ackPolicy, self.received, 1)
            _answer_after(self.context, self.call, self.delay_ns, partial(self._answer, framed))

    def _answer(self, framed: list[bytes]) -> None:
        self.call.send(framed)
        self.call.finish()

    def refused(self, error: LiftbridgeError) -> None:
        self.error = error
        if self.waits:
            refuse(self.call, error)


class PublishService:
    """Serves the calls that publish a single message."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _check_inbox(self, inbox: str) -> None:
        """Refuse an inbox for acks that is not allowed, before anything is published.

        Raises:
            InvalidRequestError: The inbox is not a subject, has wildcards or is reserved.
        """
        if inbox:
            self._context.reserved.check_ack_inbox(inbox)

    @staticmethod
    def _check_size(raw: bytes, bytes_max: int) -> None:
        """Refuse a large request before it is decoded.

        Raises:
            TooLargeError: The request has more than `bytes_max` bytes.
        """
        if len(raw) > bytes_max:
            raise TooLargeError("message exceeds max replication size")

    def publish(self, call: Call, raw: bytes) -> None:
        """Serve `Publish`; the order of checks is the original's, except for the size."""
        self._check_size(raw, self._context.record_bytes_max)
        try:
            request = _PARSE(raw)
        except DecodeError:
            call.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")
            return
        call.authorize(request)
        partition = self._find(request)
        self._check_inbox(request.ackInbox)
        check_headers(request.headers)
        headers = mapping(request.headers)
        stamp = stamp_of(headers) if headers else None
        waits = request.ackPolicy != POLICY_NONE and call.deadline is not None
        delay_ns = self._context.quotas.publish(
            call.principal.name,
            request.stream,
            messages=1,
            sizes=(len(raw),),
        )
        sink = _UnaryAck(self._context, call, partition, request, waits=waits, delay_ns=delay_ns)
        pending_acks = [PendingAck(request.ackPolicy, sink)]
        node = self._context.node
        if request.ackInbox and request.ackPolicy != POLICY_NONE:
            inbox = partition.acks_for(partition.subject)
            inbox.entries.append(
                (0, request.ackInbox, request.correlationId.encode(), request.ackPolicy)
            )
            pending_acks.append(PendingAck(request.ackPolicy, inbox))
        run = PublishRun(
            [request.value],
            partition.subject,
            "grpc",
            pending_acks,
            [request.key] if request.key else None,
            [headers] if headers else None,
            policy=request.ackPolicy,
            correlation_ids=[request.correlationId.encode()],
            ack_inbox=request.ackInbox,
            expected_offsets=[request.expectedOffset],
            publisher=stamp,
        )
        clock = self._context.clock
        node.publish(partition, run, clock.now(), clock.wall_ns())
        if not waits:
            if sink.error is not None:
                raise sink.error
            _answer_after(self._context, call, delay_ns, partial(call.reply, NO_ACK))

    def _find(self, request: api_pb2.PublishRequest) -> Partition | RemotePartition:
        if not request.stream:
            raise InvalidRequestError("no stream provided")
        partition = self._context.node.find_for_publish(request.stream, request.partition)
        check_publish(partition, request.ackPolicy)
        return partition

    def publish_to_subject(self, call: Call, raw: bytes) -> None:
        """Serve `PublishToSubject`: publish over NATS, and answer with the first ack."""
        self._check_size(raw, max(self._context.record_bytes_max, REQUEST_BYTES_MAX))
        try:
            request = _PARSE_TO_SUBJECT(raw)
        except DecodeError:
            call.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")
            return
        call.authorize(request)
        waits = request.ackPolicy != POLICY_NONE and call.deadline is not None

        self._context.reserved.check_publish(request.subject)
        self._check_inbox(request.ackInbox)
        check_headers(request.headers)
        node = self._context.node
        delay_ns = self._context.quotas.publish(
            call.principal.name, "", messages=1, sizes=(len(raw),)
        )

        def acked(ack: api_pb2.Ack) -> None:
            ack.correlationId = request.correlationId
            if request.ackInbox:
                ack.ackInbox = request.ackInbox
                inbox = request.ackInbox.encode()
                node.context.send_acks([inbox_frame(inbox, ack.SerializeToString())])
            answer = api_pb2.PublishToSubjectResponse(ack=ack).SerializeToString()
            _answer_after(self._context, call, delay_ns, partial(call.reply, answer))

        publish = SubjectPublish(
            subject=request.subject,
            value=request.value,
            key=request.key,
            headers=mapping(request.headers),
            policy=request.ackPolicy,
            correlation_id=request.correlationId,
            ack_inbox=request.ackInbox,
        )
        now = self._context.clock.now()
        forget = node.publish_to_subject(publish, now, Waiter(acked) if waits else None)
        if waits:
            call.on_cancel = forget
        else:
            _answer_after(self._context, call, delay_ns, partial(call.reply, NO_SUBJECT_ACK))


def _answer_after(context: Context, call: Call, delay_ns: int, answer: Callable[[], None]) -> None:
    """Answer a call once its quota allows more, in time for its deadline."""
    if not delay_ns:
        answer()
        return
    loop, seconds = asyncio.get_running_loop(), delay_ns / SECOND_NS
    if call.deadline is not None:
        seconds = min(seconds, max(0.0, call.deadline - loop.time()) / 2)
    loop.call_later(seconds, context.in_turn(call, partial(_answer_open, call, answer)))


def _answer_open(call: Call, answer: Callable[[], None]) -> None:
    if call.is_open:
        answer()
