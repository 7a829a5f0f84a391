"""Events that an HTTP/2 connection reports to its owner, in order.

`Connection.receive` and `Connection.on_time` return lists of these. A stream is named by its
HTTP/2 number. For each stream the order is: one `RequestReceived`, any number of
`MessagesReceived`, at most one `RequestEnded`; then, unless the owner finished the stream first,
at most one of `StreamCancelled`, `MessageRefused` and `DeadlineExpired`.
"""

from typing import NamedTuple

from liftbridge_broker.errors import GrpcStatus


class RequestHead(NamedTuple):
    """A request's header list, checked; shared between requests with equal headers.

    Attributes:
        verb: Value of `:method`, `POST` for every gRPC call.
        path: Value of `:path`; for gRPC `/package.Service/Method`.
        is_grpc: Whether the content type is `application/grpc`, alone or with `+proto`.
        timeout_ns: Value of `grpc-timeout` in nanoseconds; None for no deadline.
        encoding: Value of `grpc-encoding`, `identity` when absent.
        content_length: Value of `content-length`, None when absent.
        refusal: Reason why the call is refused (bad timeout, header list too large) as gRPC status
            and text; None for a good head.
        text_bytes: Size of the texts, which the client chose, without the next one.
        authorization: Value of `authorization`, empty when absent: a secret.
    """

    verb: str
    path: str
    is_grpc: bool
    timeout_ns: int | None
    encoding: str
    content_length: int | None
    refusal: tuple[int, str] | None
    text_bytes: int
    authorization: bytes = b""

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"RequestHead({self.verb!r}, {self.path!r})"

    def plain_answer(self) -> tuple[int, bytes] | None:
        """Return HTTP status and body for a request that is no gRPC call, 405, 415 and the like.

        A good GET of `/` is answered at its end: only then is it known to be well-formed.
        """
        if self.is_grpc:
            return 405, b"gRPC calls are POST requests\n"
        if self.refusal is not None:
            status = 431 if self.refusal[0] == GrpcStatus.RESOURCE_EXHAUSTED else 400
            return status, self.refusal[1].encode() + b"\n"
        if self.path != "/":
            return 415, b"content-type must be application/grpc\n"
        return (200, b"") if self.verb == "HEAD" else None


class RequestReceived(NamedTuple):
    """A client opened a stream."""

    stream_id: int
    head: RequestHead


class MessagesReceived(NamedTuple):
    """All request messages of one stream that one call of `receive` completed, without prefixes."""

    stream_id: int
    messages: list[bytes]


class RequestEnded(NamedTuple):
    """The client half-closed the stream: no more messages."""

    stream_id: int


class StreamCancelled(NamedTuple):
    """The stream was closed: the peer reset it, or broke a rule and it was reset here.

    `code` is the HTTP/2 error code that was received or sent.
    """

    stream_id: int
    code: int


class MessageRefused(NamedTuple):
    """A request message is refused: too large, compressed, truncated or late.

    The owner answers with `status` and `text`; until then further data of the stream is dropped.
    """

    stream_id: int
    status: int
    text: str


class DeadlineExpired(NamedTuple):
    """The time allowed by `grpc-timeout` has passed; the owner answers DEADLINE_EXCEEDED."""

    stream_id: int


class StreamWritable(NamedTuple):
    """A stream that exceeded the high mark has fewer queued bytes than the low mark again."""

    stream_id: int


class ConnectionEnded(NamedTuple):
    """No further event will follow; the owner sends what is queued and closes the socket.

    Attributes:
        code: HTTP/2 error code of the GOAWAY that was queued, or that the peer sent.
        text: Debug text of that GOAWAY.
        flood: Kind of abuse (`ping`, `settings`, `reset`, ...), empty for none.
        is_abrupt: Whether to close the socket without waiting for queued bytes to leave.
    """

    code: int
    text: str
    flood: str = ""
    is_abrupt: bool = False


Event = (
    RequestReceived
    | MessagesReceived
    | RequestEnded
    | StreamCancelled
    | MessageRefused
    | DeadlineExpired
    | StreamWritable
    | ConnectionEnded
)
