"""One tree of errors: what may be retried, what is refused, what is used wrongly.

Every error has a stable `code`, says whether the same call may succeed later, what to do about it,
and what the server wrote.
"""

from typing import ClassVar, Final

from grpc import StatusCode


class LiftbridgeError(Exception):
    """Base of all errors of this client.

    Attributes:
        code: Stable name of the kind of error.
        retriable: Whether the same call may succeed later without anybody acting.
        advice: What to do, one sentence.
        server_text: Message of the server, empty when the error is the client's own.
    """

    code: ClassVar[str] = "ERROR"
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = "Look at the message; this client has no better advice."

    def __init__(self, message: str, *, server_text: str = "") -> None:
        super().__init__(message)
        self.server_text = server_text


class RetriableError(LiftbridgeError):
    """The broker is away, starting, stopping or not the leader; nothing was done."""

    code = "UNAVAILABLE"
    retriable = True
    advice = "Try again; the client has already tried for its retry time."


class CallTimeoutError(RetriableError):
    """The broker did not answer in time; the call has no effect that a repetition would double."""

    code = "TIMED_OUT"
    advice = "See whether the broker is overloaded or frozen, or raise the timeout."


class AckTimeoutError(LiftbridgeError):
    """No ack came in time. The message may be stored; only an idempotent publisher may retry."""

    code = "ACK_TIMEOUT"
    advice = "Publish through an idempotent publisher, which retries without duplicates."


class OutcomeUnknownError(LiftbridgeError):
    """The message may or may not be stored, and nobody will find out."""

    code = "OUTCOME_UNKNOWN"
    advice = "Publish through an idempotent publisher, which retries without duplicates."


class RefusedError(LiftbridgeError):
    """The server refused the request; the same request is refused again."""

    code = "REFUSED"
    advice = "Change the request or the state it meets."


class InvalidRequestError(RefusedError):
    """A value of the request breaks a rule."""

    code = "INVALID_REQUEST"
    advice = "Correct the value the message names."


class NotFoundError(RefusedError):
    """There is no such stream or partition."""

    code = "NOT_FOUND"
    advice = "Check the name; `liftbridge streams` lists what exists."


class AlreadyExistsError(RefusedError):
    """A stream of this name exists."""

    code = "ALREADY_EXISTS"
    advice = "Use the stream that exists, or another name."


class FailedPreconditionError(RefusedError):
    """The state of the stream or broker forbids the request: paused, read-only, not available."""

    code = "FAILED_PRECONDITION"
    advice = "Resume the stream, make it writable, or turn the feature on."


class OutOfRangeError(RefusedError):
    """A strict read wants records that are not, or no longer, in the log."""

    code = "OUT_OF_RANGE"
    advice = "Begin where the log begins: `liftbridge bounds` tells; what was before is gone."


class EndOfStreamError(RefusedError):
    """A bounded read has nothing to give."""

    code = "END_OF_STREAM"
    advice = "Nothing is wrong: the stream is empty or ended."


class UnimplementedError(RefusedError):
    """The server does not have this call; for our own calls, it is the original server."""

    code = "UNIMPLEMENTED"
    advice = "Use a server that offers the call."


class IncorrectOffsetError(RefusedError):
    """Optimistic concurrency: another message has the expected offset."""

    code = "INCORRECT_OFFSET"
    advice = "Read the end of the partition and decide again."


class TooLargeError(RefusedError):
    """The message does not fit the server's limit."""

    code = "TOO_LARGE"
    advice = "Split the message, or raise clustering.replication.max.bytes."


class TruncatedError(LiftbridgeError):
    """Records that a reader was given are gone: an unclean election cut the log off below them.

    Attributes:
        offset: First offset that holds another record now, or none yet.
        next_offset: Where the reader would have gone on.
    """

    code = "TRUNCATED"
    advice = "Undo what came of the records from that offset on, and subscribe again from there."

    def __init__(self, message: str, *, offset: int, next_offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.next_offset = next_offset


class SequenceError(RefusedError):
    """The sequence of an idempotent publisher has a gap, or a newer publisher has its name."""

    code = "SEQUENCE"
    advice = "Open a new publisher; give two processes two names."


class ServerError(LiftbridgeError):
    """The server failed at something it should be able to do."""

    code = "SERVER"
    advice = "Look into the broker's log."


class UsageError(LiftbridgeError):
    """The client is used wrongly: an argument, or the order of calls."""

    code = "USAGE"
    advice = "Correct the call."


class ClosedError(UsageError):
    """The client was not entered, or is closed."""

    code = "CLOSED"
    advice = "Use the client inside `async with connect(...)` or `with connect_sync(...)`."


class FullError(UsageError):
    """The publisher's buffer is full and it was told not to wait."""

    code = "FULL"
    advice = "Publish slower, wait, or raise max_in_flight."


class CodecError(LiftbridgeError):
    """A codec cannot encode a value, or decode the value of a stored message.

    Attributes:
        data: Bytes that were to be decoded, empty when encoding.
        offset: Offset of the message that holds them, `None` when encoding.
    """

    code = "CODEC"
    advice = "Correct the value; to read on, subscribe from the offset behind the message."

    def __init__(self, message: str, *, data: bytes = b"", offset: int | None = None) -> None:
        super().__init__(message)
        self.data = data
        self.offset = offset


_BY_STATUS: Final[dict[StatusCode, type[LiftbridgeError]]] = {
    StatusCode.CANCELLED: RetriableError,
    StatusCode.UNKNOWN: ServerError,
    StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    StatusCode.DEADLINE_EXCEEDED: CallTimeoutError,
    StatusCode.NOT_FOUND: NotFoundError,
    StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    StatusCode.RESOURCE_EXHAUSTED: EndOfStreamError,
    StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    StatusCode.OUT_OF_RANGE: OutOfRangeError,
    StatusCode.UNIMPLEMENTED: UnimplementedError,
    StatusCode.INTERNAL: ServerError,
    StatusCode.UNAVAILABLE: RetriableError,
}

_NOT_LEADER: Final = (
    "Server not partition leader",
    "The request should be sent to partition leader",
    "Server not leader for cursors partition",
)
"""What a broker says that was asked in the place of the leader; it did nothing."""

_BY_TEXT: Final[tuple[tuple[str, type[LiftbridgeError]], ...]] = (
    ("incorrect expected offset", IncorrectOffsetError),
    ("message exceeds max replication size", TooLargeError),
    ("outcome unknown", OutcomeUnknownError),
    ("not appended", RetriableError),
    ("no known metadata leader", RetriableError),
    *((text, RetriableError) for text in _NOT_LEADER),
)
"""Texts the original distinguishes by nothing else: its status is UNKNOWN or INTERNAL, and that of
a broker that does not lead FAILED_PRECONDITION, as that of a partition that is paused."""


_NOT_SENT: Final = (
    "failed to connect to all addresses",
    "not appended",
    "no known metadata leader",
    *_NOT_LEADER,
)


def publish_error(error: LiftbridgeError) -> LiftbridgeError:
    """What an error means for a message: after a lost answer nobody knows whether it is stored."""
    if isinstance(error, CallTimeoutError):
        return AckTimeoutError(f"no ack in time: {error}", server_text=error.server_text)
    is_unknown = isinstance(error, RetriableError) and not any(t in str(error) for t in _NOT_SENT)
    if is_unknown:
        text = f"the connection broke before the ack: {error}"
        return OutcomeUnknownError(text, server_text=error.server_text)
    return error


def error_of(status: StatusCode, text: str) -> LiftbridgeError:
    """Error for a gRPC status and its message."""
    kind = next((kind for part, kind in _BY_TEXT if part in text), None)
    kind = kind or _BY_STATUS.get(status, ServerError)
    return kind(text or status.name.lower(), server_text=text)
