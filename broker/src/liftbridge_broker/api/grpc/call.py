"""Interface of an RPC for services: callbacks as input, framed bytes as output.

There is no task and no coroutine per call. A service installs callbacks when it accepts the call;
they run on the event loop, inside the turn that received the bytes, and their output leaves as
one write with all other output of that turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, cast

from liftbridge_broker.access.identities import NOBODY, Identity
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.http2.stream import Buffer

MAIN_LISTENER: Final = ""
"""The listener that every broker has; other listeners have names."""

PeerCertificate = Mapping[str, object]

Authorize = Callable[["Call", object], None]
"""Refuses a call with a request, or returns; see `Call.authorize`."""


class CallPort(Protocol):
    """Interface of the connection for a call; implemented by the transport."""

    def room(self, stream_id: int) -> int:
        """Return the bytes that a stream may queue before it must wait."""
        ...

    def begin(self, stream_id: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the response headers with further fields, before anything is queued."""
        ...

    def queue(self, stream_id: int, frames: bytes | Sequence[Buffer]) -> bool:
        """Queue framed bytes, the response headers before the first; return whether to continue."""
        ...

    def go_on(self, call: "Call", steps: Iterator[None]) -> None:
        """Run the steps of a call, interleaved with the turns of other connections."""
        ...

    def finish(self, call: "Call", code: int, text: str, error_code: str) -> None:
        """Queue the trailers and forget the call, which was closed just before."""
        ...

    def expect_request(self, stream_id: int) -> None:
        """Bound the time in which the whole request must arrive."""
        ...

    def keep(self, stream_id: int, size: int) -> None:
        """Count request bytes that are retained until the request ends."""
        ...

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        """Withhold or give the flow-control credit of a stream."""
        ...

    def peer_certificate(self) -> PeerCertificate | None:
        """Return the certificate of the peer in the form of `ssl.SSLSocket.getpeercert`."""
        ...


def _ignore_messages(_messages: list[bytes]) -> None:
    """Drop unexpected messages."""


def _ignore() -> None:
    """Ignore the event."""


def allow(_call: "Call", _request: object) -> None:
    """Allow every call."""


def attributes_of(certificate: PeerCertificate) -> Iterator[tuple[str, str]]:
    """Yield the attributes of the subject, flattened: it is a sequence of sets (RFC 5280)."""
    parts = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return (attribute for part in parts for attribute in part)


class Call:
    """One RPC, owned by the transport and used by a service; everything on one event loop.

    After `finish`, and after `on_cancel`, no callback runs any more and all output is dropped
    silently, because answers may come late from replication.

    Attributes:
        method: Path of the request, `/package.Service/Method`.
        peer: Address of the client, `host:port`.
        listener: Listener through which it came.
        identity: Who calls, and what proved it.
        deadline: Event loop time in seconds at which `grpc-timeout` ends, None without one. The
            transport then ends the call with DEADLINE_EXCEEDED and calls `on_cancel`.
        writable: False while more bytes are queued for the stream than the high mark, because the
            client's flow-control window or the socket is full. Nothing is dropped; a producer of a
            long stream stops reading its log until `on_writable`.
        is_open: Whether neither `finish` nor `on_cancel` has happened.
        on_messages: Receives all request messages of one loop turn, in order, without prefixes. The
            list belongs to the receiver.
        on_half_close: The client sends no more messages. It may return steps that answer the call:
            each is short, and other connections get turns between them.
        on_cancel: The client reset the stream, the connection is lost, the deadline has passed or
            the request was refused; called at most once, never after `finish`.
        on_writable: Called when the queue fell below the low mark after `writable` was False.
        on_end: Called once with the gRPC status and the code of the refusal, however the call ends;
            without a status if it ended from outside, where its work may be done.
    """

    __slots__ = (
        "_authorize",
        "_port",
        "_stream_id",
        "deadline",
        "identity",
        "is_open",
        "listener",
        "method",
        "on_cancel",
        "on_end",
        "on_half_close",
        "on_messages",
        "on_writable",
        "peer",
        "writable",
    )

    def __init__(
        self,
        port: CallPort,
        stream_id: int,
        *,
        method: str,
        peer: str,
        deadline: float | None,
        listener: str = MAIN_LISTENER,
        authorize: "Authorize" = allow,
    ) -> None:
        self._authorize = authorize
        self._port = port
        self._stream_id = stream_id
        self.method = method
        self.peer = peer
        self.deadline = deadline
        self.listener = listener
        self.identity: Identity = NOBODY
        self.writable = True
        self.is_open = True
        self.on_messages: Callable[[list[bytes]], None] = _ignore_messages
        self.on_half_close: Callable[[], Iterator[None] | None] = _ignore
        self.on_cancel: Callable[[], None] = _ignore
        self.on_writable: Callable[[], None] | None = None
        self.on_end: Callable[[int | None, str], None] | None = None

    @property
    def stream_id(self) -> int:
        """Number of the HTTP/2 stream, unique within its connection."""
        return self._stream_id

    @property
    def principal(self) -> Principal:
        """Whom the call acts for."""
        return self.identity.principal

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The client's verified certificate in the form of `ssl.SSLSocket.getpeercert`.

        None without TLS and when the client presented none.
        """
        return self._port.peer_certificate()

    def authorize(self, request: object) -> None:
        """Refuse what the caller may not do; services call it before anything else.

        Args:
            request: The decoded request.

        Raises:
            PermissionDeniedError: The access rules forbid it.
        """
        self._authorize(self, request)

    @property
    def room(self) -> int:
        """Bytes a producer may send now before `writable` becomes False; 0 when it is.

        It shrinks as more bytes wait on the connection, so a producer that sizes its reads by it
        bounds the memory of many slow readers.
        """
        return self._port.room(self._stream_id) if self.writable else 0

    def begin(self, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send own response metadata; before the first message, which must follow."""
        if self.is_open:
            self._port.begin(self._stream_id, fields)

    def send(self, frames: bytes | Sequence[Buffer]) -> None:
        """Queue bytes that are already gRPC-framed: any number of prefixed messages, cut anywhere.

        The response headers go out before the first. All bytes of one loop turn leave together, so
        many small calls cost little. The bytes are not copied and must not change afterwards.

        Args:
            frames: Each message after its 5-byte prefix (0, length as 4 bytes big-endian); several
                pieces are joined without inspection.
        """
        if self.is_open:
            self.writable = self._port.queue(self._stream_id, frames)

    def send_message(self, message: bytes) -> None:
        """Queue one message; adds the 5-byte prefix."""
        if self.is_open:
            prefix = len(message).to_bytes(5, "big")  # the flag byte is 0 below 4 GiB
            self.writable = self._port.queue(self._stream_id, [prefix, message])

    def reply(self, message: bytes) -> None:
        """Answer a unary call: send one message and finish with OK."""
        self.send_message(message)
        self.finish()

    def go_on(self, steps: Iterator[None]) -> None:
        """Run steps that answer the call, like those of `on_half_close`; called from a callback.

        They end with the call. An exception from them refuses it.
        """
        if self.is_open:
            self._port.go_on(self, steps)

    def refuse(self, error: LiftbridgeError) -> None:
        """End the call with the status, text and code of a refusal."""
        self.finish(error.status, error.text, error.code)

    def finish(self, code: int = 0, text: str = "", error_code: str = "") -> None:
        """End the call: trailers after everything queued, trailers-only when nothing was sent.

        Args:
            code: gRPC status, 0 for OK.
            text: Becomes `grpc-message`, percent-encoded; any Unicode text.
            error_code: Becomes `liftbridge-error`, which programs evaluate.
        """
        if self.is_open:
            self.is_open = False
            self.writable = False
            self._port.finish(self, code, text, error_code)
            if self.on_end is not None:
                self.on_end(code, error_code)
            self._drop_callbacks()

    def expect_request(self) -> None:
        """Bound the time in which the whole request must arrive by `Limits.message_ns`.

        On by default for unary methods; a method that streams answers to one request may call it.
        """
        if self.is_open:
            self._port.expect_request(self._stream_id)

    def keep(self, size: int) -> None:
        """Count request bytes retained until `on_half_close`, like those of a started message.

        The call ends with RESOURCE_EXHAUSTED when the connection holds too many.
        """
        if self.is_open:
            self._port.keep(self._stream_id, size)

    def cancel(self) -> None:
        """End the call from outside; for the transport."""
        if self.is_open:
            self.is_open = False
            self.writable = False
            self.on_cancel()
            if self.on_end is not None:
                self.on_end(None, "")
            self._drop_callbacks()

    def _drop_callbacks(self) -> None:
        """Release the callbacks of the service, so that no reference cycle remains."""
        self.on_messages, self.on_half_close = _ignore_messages, _ignore
        self.on_cancel, self.on_writable, self.on_end = _ignore, None, None

    def pause_reading(self) -> None:
        """Grant the client no further flow-control window on this stream.

        Messages within the window already granted still arrive.
        """
        if self.is_open:
            self._port.set_reading(self._stream_id, is_reading=False)

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self.is_open:
            self._port.set_reading(self._stream_id, is_reading=True)


def do_steps(call: Call, steps: Iterator[None]) -> None:
    """Run all steps of a call at once, for a port without other waiting connections."""
    try:
        deque(steps, maxlen=0)
    except LiftbridgeError as error:
        call.refuse(error)
