"""The calls of one client connection: events of the HTTP/2 core in, callbacks of services out.

Work is done in slices (`turns`), which the connection runs: pass events to services, build long
answers. Output sent between slices requests a slice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Never, cast

from liftbridge_broker.access.identities import NOBODY, Identity
from liftbridge_broker.api.grpc.call import Call, PeerCertificate
from liftbridge_broker.api.grpc.held import HeldBytes
from liftbridge_broker.api.grpc.identities import CallerIdentity, WaitingCall
from liftbridge_broker.api.grpc.owner import ConnectionOwner
from liftbridge_broker.api.grpc.turns import SLICE_NS
from liftbridge_broker.errors import GrpcStatus, IdentityEndedError, LiftbridgeError
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    DeadlineExpired,
    Event,
    MessageRefused,
    MessagesReceived,
    RequestEnded,
    RequestHead,
    RequestReceived,
    StreamCancelled,
    StreamWritable,
)
from liftbridge_broker.http2.stream import Buffer
from liftbridge_broker.model.units import SECOND_NS

MESSAGES_MAX: Final = 2_048
"""Maximum number of messages passed to a call at once."""

QUEUED_NS: Final = 20_000
"""Approximate cost of queueing output of a call, plus about 1 ns for each byte."""

OUTLIVED_STEP: Final = 64
"""Calls whose identity is checked in a step; to end one takes some 20 us."""

UNKNOWN_METHOD: Final = "unknown"
_ROOT_TEXT: Final = b"liftbridge: gRPC over HTTP/2\n"


def _ignore() -> None:
    """No slice is needed: without a connection nothing can be sent."""


class _StepsBegun(NamedTuple):
    """An internal event: a call has a long answer to build."""

    call: Call
    steps: Iterator[None]


class _Identified(NamedTuple):
    """An internal event: the identity of a call was verified, or refused."""

    waiting: WaitingCall
    outcome: Identity | LiftbridgeError
    call: Call


class Calls:
    """Open calls of one connection, and the work that waits for them; the port of each call.

    Attributes:
        events: Events of the core, in order; calls may add their own.
        steps: The long answer that is being built; later events wait for its end.
        ended: The last event of the connection, None before.
        may_be_outlived: Whether a call got an identity that can end.
    """

    def __init__(
        self, owner: ConnectionOwner[Never], core: Connection, held: HeldBytes, listener: str
    ) -> None:
        self._owner = owner
        self._core = core
        self._held = held
        self._listener = listener
        self._turns = owner.turns
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._schedule: Callable[[], None] = _ignore
        self._caller = CallerIdentity(owner.authenticator, listener)
        self._calls: dict[int, Call] = {}
        self._root_requests: set[int] = set()
        self.events: deque[Event | _StepsBegun | _Identified] = deque()
        self.steps: tuple[Call, Iterator[None]] | None = None
        self.ended: ConnectionEnded | None = None
        self.may_be_outlived = False
        self._is_in_turn = False

    # Calls of `Call`.

    def room(self, stream_id: int) -> int:
        """Return the bytes that a stream may queue before it must wait."""
        return self._core.room(stream_id)

    def begin(self, stream_id: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the response headers with further fields."""
        self._core.begin(stream_id, fields)

    def queue(self, stream_id: int, frames: bytes | Sequence[Buffer]) -> bool:
        """Queue framed bytes; return whether to continue writing."""
        core = self._core
        if self._is_in_turn:
            return core.send(stream_id, frames)
        before = core.queued_bytes
        is_writable = core.send(stream_id, frames)
        self._turns.spend(QUEUED_NS + core.queued_bytes - before)
        self._held.count()
        self._schedule()
        if is_writable and not self._turns.is_free:
            # Other connections run before this connection builds more.
            self.events.append(StreamWritable(stream_id))
            return False
        return is_writable

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run the steps of a call in the turns of this connection.

        Steps started by an event run before later input of the client.
        """
        if self._is_in_turn and self.steps is None:
            self.steps = call, steps
            return
        self.events.append(_StepsBegun(call, steps))
        if not self._is_in_turn:
            self._schedule()

    def finish(self, call: Call, code: int, text: str, error_code: str) -> None:
        """Queue the trailers and forget the call."""
        del self._calls[call.stream_id]
        self._owner.on_call_ended(self._label(call.method), code)
        self._core.finish(call.stream_id, code, text, error_code)
        if not self._is_in_turn:
            self._schedule()

    def expect_request(self, stream_id: int) -> None:
        """Bound the time in which the whole request must arrive."""
        self._core.expect_request(stream_id)
        if not self._is_in_turn:
            self._schedule()

    def keep(self, stream_id: int, size: int) -> None:
        """Count request bytes that are retained until the request ends."""
        self._core.keep(stream_id, size)
        if not self._is_in_turn:
            self._schedule()

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        """Withhold or give the flow-control credit of a stream."""
        self._core.set_reading(stream_id, is_reading=is_reading)
        if not self._is_in_turn:
            self._schedule()

    def peer_certificate(self) -> PeerCertificate | None:
        """Return the verified certificate of the client."""
        if self._transport is None:
            return None
        return cast("PeerCertificate | None", self._transport.get_extra_info("peercert")) or None

    # Calls of the connection.

    def connect(
        self, transport: asyncio.Transport, peer: str, schedule: Callable[[], None]
    ) -> None:
        """Begin to serve; `schedule` asks for a slice."""
        self._transport = transport
        self._peer = peer
        self._schedule = schedule
        self._caller.connect(transport, peer)

    def disconnect(self) -> None:
        """Forget what leads back to the connection; it would be left to the garbage collector."""
        self._transport = None
        self._schedule = _ignore

    def handle(self) -> None:
        """Pass events to their methods for a slice; their output leaves with the next flush."""
        handlers, events, now = self._HANDLERS, self.events, self._turns.now
        end = now() + SLICE_NS
        self._is_in_turn = True
        try:
            while True:
                if self.steps is not None:
                    self._step(end)
                if not events or self.steps is not None:
                    return
                event = events.popleft()
                handlers[type(event)](self, event)
                if now() >= end:
                    return
        finally:
            self._is_in_turn = False

    def _step(self, end: int) -> None:
        """Continue a long answer until the slice is over."""
        assert self.steps is not None
        call, steps = self.steps
        now = self._turns.now
        try:
            while call.is_open:
                next(steps)
                if now() >= end:
                    return
        except StopIteration:
            pass
        except LiftbridgeError as error:
            call.refuse(error)
        self.steps = None

    def end_streams(self, text: str) -> None:
        """End streaming calls with UNAVAILABLE, after their queued bytes."""
        for stream_id, call in list(self._calls.items()):
            if not self._owner.is_unary(call.method):
                self._end_call(stream_id, GrpcStatus.UNAVAILABLE, text)

    def end_outlived(self) -> Iterator[None]:
        """End streaming calls whose identity no longer holds, with UNAUTHENTICATED, in steps.

        Unary calls end by themselves, soon: whether they did their work must not become unknown.
        """
        faults: dict[Identity, str] = {}
        for count, (stream_id, call) in enumerate(list(self._calls.items())):
            if count % OUTLIVED_STEP == 0:
                yield
            if self._owner.is_unary(call.method):
                continue
            identity = call.identity
            if identity not in faults:
                faults[identity] = self._caller.fault_of(identity)
            if fault := faults[identity]:
                error = IdentityEndedError(fault)
                self._end_call(stream_id, error.status, error.text, error.code)

    @property
    def must_reconnect(self) -> bool:
        """Return whether the certificate of the client has expired, so that no call can follow."""
        return self._caller.has_outlived_certificate

    def end_all(self, text: str) -> None:
        """End every call with UNAVAILABLE."""
        for stream_id in list(self._calls):
            self._end_call(stream_id, GrpcStatus.UNAVAILABLE, text)

    def cancel_all(self) -> None:
        """Cancel every call, in order of arrival."""
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            self._owner.on_call_ended(self._label(call.method), GrpcStatus.CANCELLED)
            call.cancel()

    def forget_work(self) -> None:
        """Drop the waiting work."""
        self.events.clear()
        self.steps = None

    # Events of the core.

    def _on_request(self, event: RequestReceived) -> None:
        """Open a call, or answer a request that is not one."""
        stream_id, head = event
        if not head.is_grpc or head.verb != "POST":
            self._answer_plain(stream_id, head)
            return
        deadline = None
        if head.timeout_ns is not None:
            deadline = self._loop.time() + head.timeout_ns / SECOND_NS
        call = Call(
            self,
            stream_id,
            method=head.path,
            peer=self._peer,
            deadline=deadline,
            listener=self._listener,
            authorize=self._owner.authorize,
        )
        self._calls[stream_id] = call
        self._owner.on_call_opened()
        handler = self._owner.method(head.path)
        if head.refusal is not None:
            call.finish(*head.refusal)
        elif handler is None:
            call.finish(GrpcStatus.UNIMPLEMENTED, self._owner.unknown_method_text(head.path))
        else:
            try:
                if self._identify(call, handler, head):
                    handler(call)
            except LiftbridgeError as error:
                call.refuse(error)

    def _identify(self, call: Call, handler: Callable[[Call], None], head: RequestHead) -> bool:
        """Give a call its identity; return false if that takes a while, in which the call waits.

        Raises:
            LiftbridgeError: The call is refused.
        """
        if not self._owner.needs_identity(head.path):
            return True
        waiting: list[WaitingCall] = []

        def verified(outcome: Identity | LiftbridgeError) -> None:
            if call.is_open:
                self.events.append(_Identified(waiting[0], outcome, call))
                self._schedule()

        identity = self._caller.find(head.authorization, verified)
        if identity is None:
            waiting.append(WaitingCall(call, handler))
            return False
        self._begin(call, identity)
        return True

    def _begin(self, call: Call, identity: Identity) -> None:
        call.identity = identity
        self.may_be_outlived |= identity is not NOBODY

    def _on_identified(self, event: _Identified) -> None:
        """Begin a call that waited for its identity."""
        call, outcome = event.call, event.outcome
        if not call.is_open:
            return
        if isinstance(outcome, LiftbridgeError):
            call.refuse(outcome)
            return
        self._begin(call, outcome)
        try:
            steps = event.waiting.go_on()
        except LiftbridgeError as error:
            call.refuse(error)
            return
        if steps is not None:
            self.steps = call, steps

    def _answer_plain(self, stream_id: int, head: RequestHead) -> None:
        """Answer HTTP that is not gRPC, perhaps at its end."""
        if (answer := head.plain_answer()) is not None:
            self._core.respond_plain(stream_id, *answer)
        else:
            self._root_requests.add(stream_id)
            self._core.expect_request(stream_id)

    def _on_messages(self, event: MessagesReceived) -> None:
        """Pass on all messages of a turn."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            messages = event.messages
            if len(messages) > MESSAGES_MAX:
                rest = MessagesReceived(event.stream_id, messages[MESSAGES_MAX:])
                self.events.appendleft(rest)
                messages = messages[:MESSAGES_MAX]
            try:
                call.on_messages(messages)
            except LiftbridgeError as error:
                call.refuse(error)

    def _on_request_end(self, event: RequestEnded) -> None:
        """Notify the service that the client sends no more."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            try:
                steps = call.on_half_close()
            except LiftbridgeError as error:
                call.refuse(error)
                return
            if steps is not None:
                self.steps = call, steps
        elif event.stream_id in self._root_requests:
            self._root_requests.remove(event.stream_id)
            self._core.respond_plain(event.stream_id, 200, _ROOT_TEXT)

    def _on_steps(self, event: _StepsBegun) -> None:
        """Start a long answer; other input waits until it is complete."""
        self.steps = event.call, event.steps

    def _on_stream_cancelled(self, event: StreamCancelled) -> None:
        """Notify the service that the stream was reset; nothing is sent."""
        call = self._calls.pop(event.stream_id, None)
        if call is not None:
            self._owner.on_call_ended(self._label(call.method), GrpcStatus.CANCELLED)
            call.cancel()
        self._root_requests.discard(event.stream_id)

    def _on_refused(self, event: MessageRefused) -> None:
        """Answer a message that is refused."""
        if event.stream_id in self._root_requests:
            self._root_requests.remove(event.stream_id)
            self._core.respond_plain(event.stream_id, 408, event.text.encode() + b"\n")
        self._end_call(event.stream_id, event.status, event.text)

    def _on_deadline(self, event: DeadlineExpired) -> None:
        """End a call whose deadline has passed."""
        self._end_call(event.stream_id, GrpcStatus.DEADLINE_EXCEEDED, "deadline exceeded")

    def _on_writable(self, event: StreamWritable) -> None:
        """Let the producer of a stream continue."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.writable = True
            if call.on_writable is not None:
                try:
                    call.on_writable()
                except LiftbridgeError as error:
                    call.refuse(error)

    def _on_ended(self, event: ConnectionEnded) -> None:
        """Cancel the calls; the connection sends the remaining bytes."""
        self._owner.on_ended(self._peer, event)
        self.ended = event
        self.forget_work()
        self.cancel_all()

    # Helpers.

    def _end_call(self, stream_id: int, code: int, text: str, error_code: str = "") -> None:
        """End a call from outside: trailers to the client, a cancellation to the service."""
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._owner.on_call_ended(self._label(call.method), code)
            self._core.finish(stream_id, code, text, error_code)
            call.cancel()

    def _label(self, path: str) -> str:
        """Return the path for the counters: invented paths must not add counters."""
        return UNKNOWN_METHOD if self._owner.method(path) is None else path

    # Not of each connection: bound methods would leave a closed one to the garbage collector.
    _HANDLERS: ClassVar[Mapping[type[Event | _StepsBegun | _Identified], Callable[..., None]]] = {
        _StepsBegun: _on_steps,
        _Identified: _on_identified,
        RequestReceived: _on_request,
        MessagesReceived: _on_messages,
        RequestEnded: _on_request_end,
        StreamCancelled: _on_stream_cancelled,
        MessageRefused: _on_refused,
        DeadlineExpired: _on_deadline,
        StreamWritable: _on_writable,
        ConnectionEnded: _on_ended,
    }
