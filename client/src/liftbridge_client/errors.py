"""All errors of the client: retriable ones, refusals, and wrong use.

Every error has a stable `code`, the flag `retriable`, advice, and the message of the server.
"""

from typing import ClassVar, Final

from grpc import StatusCode

from liftbridge_client.strangers import stranger


class LiftbridgeError(Exception):
    """Base of all errors of this client.

    Attributes:
        code: Stable name of the kind of error.
        retriable: Whether the same call may succeed later without any intervention.
        advice: What to do, in one sentence.
        server_text: Message of the server; empty if the client itself raised the error.
        may_be_done: Whether the server may have executed the call despite the error: this or an
            earlier attempt reached the server, and no status rules out that it took effect.
    """

    code: ClassVar[str] = "ERROR"
    retriable: ClassVar[bool] = False
    advice: str = "See the message of the error."
    may_be_done: bool = False

    def __init__(self, message: str, *, server_text: str = "") -> None:
        super().__init__(message)
        self.server_text = server_text


class RetriableError(LiftbridgeError):
    """The broker is unreachable, starting, stopping or not the leader; or its answer was lost."""

    code = "UNAVAILABLE"
    retriable = True
    advice = "Try again later; the client has already retried for its retry time."


class CallTimeoutError(RetriableError):
    """The broker did not answer in time; the call is safe to repeat."""

    code = "TIMED_OUT"
    advice = "Check whether the broker is overloaded or hangs, or raise the timeout."


class AckTimeoutError(LiftbridgeError):
    """No ack arrived in time. The message may be stored; only an idempotent publisher may retry."""

    code = "ACK_TIMEOUT"
    advice = "Publish through an idempotent publisher, which retries without duplicates."
    may_be_done = True


class OutcomeUnknownError(LiftbridgeError):
    """The message may or may not be stored, and the client cannot find out."""

    code = "OUTCOME_UNKNOWN"
    advice = "Publish through an idempotent publisher, which retries without duplicates."
    may_be_done = True


class RefusedError(LiftbridgeError):
    """The server refused the request, and would refuse the same request again."""

    code = "REFUSED"
    advice = "Change the request, or the state that it was refused for."


class InvalidRequestError(RefusedError):
    """A value of the request is invalid."""

    code = "INVALID_REQUEST"
    advice = "Correct the value that the message names."


class UnauthenticatedError(RefusedError):
    """The broker does not know who this client is, or does not accept its certificate or token."""

    code = "UNAUTHENTICATED"
    advice = (
        "Give a token or a client certificate that the broker accepts, or renew it; "
        "`liftbridge whoami` shows what a broker sees."
    )


class NotFoundError(RefusedError):
    """A stream, partition, broker or group does not exist; the message names it."""

    code = "NOT_FOUND"
    advice = "Check the name in the message."

    def __init__(self, message: str, *, server_text: str = "") -> None:
        super().__init__(message, server_text=server_text)
        # A name follows the word for its kind.
        places = {message.find(word): advice for word, advice in _LISTED.items() if word in message}
        if places:
            self.advice = places[min(places)]


_LISTED: Final = {
    "stream": "Check the name; `liftbridge streams` lists the streams.",
    "commit log": "The stream was deleted; `liftbridge streams` lists the streams.",
    "partition": "Check the number; `liftbridge partitions STREAM` lists the partitions.",
    "broker": "Check the id; `liftbridge cluster brokers` lists the brokers, and "
    "`liftbridge cluster members` those of the metadata group.",
    "token": "Check the id; `liftbridge token list` lists the tokens.",
    "group": "Check the name; `liftbridge group list` lists the groups that have members.",
}
"""Advice, by the word for the kind of object that was not found."""


class AlreadyExistsError(RefusedError):
    """A stream with this name already exists."""

    code = "ALREADY_EXISTS"
    advice = "Use the existing stream, or choose another name."


class FailedPreconditionError(RefusedError):
    """The state of the stream or broker forbids the request: paused, read-only, not available."""

    code = "FAILED_PRECONDITION"
    advice = "Change the state that the message names: resume a paused stream, for example."


class FencedError(FailedPreconditionError):
    """The member of a consumer group lost its membership, or the partition; others read on."""

    code = "FENCED"
    advice = (
        "Nothing is lost: other members read on after the last stored positions. Give each process "
        "its own name, and let it ask for the next batch within the session timeout."
    )


class PermissionDeniedError(RefusedError):
    """The access rules do not allow it, or deny it; the message names the call and the resource."""

    code = "PERMISSION_DENIED"
    advice = "Have an operator allow it; `liftbridge access check` shows what is allowed."


class OutOfRangeError(RefusedError):
    """A strict read asks for records that are not, or no longer, in the log."""

    code = "OUT_OF_RANGE"
    advice = (
        "Start at the log start offset, which `liftbridge bounds` shows; earlier records are gone."
    )


class EndOfStreamError(RefusedError):
    """A bounded read has nothing to return."""

    code = "END_OF_STREAM"
    advice = "No action is needed: the stream is empty or at its end."


class UnimplementedError(RefusedError):
    """The server does not support this call; the original server has no calls of this project."""

    code = "UNIMPLEMENTED"
    advice = "Use a server that supports the call."


class IncorrectOffsetError(RefusedError):
    """Optimistic concurrency control: another message has the expected offset."""

    code = "INCORRECT_OFFSET"
    advice = "Read the end of the partition, then decide whether to publish."


class TooLargeError(RefusedError):
    """The message exceeds the size limit of the server."""

    code = "TOO_LARGE"
    advice = "Split the message, or raise clustering.replication.max.bytes."


class TruncatedError(LiftbridgeError):
    """Records that were already read are gone: an unclean election truncated the log below them.

    Attributes:
        offset: First offset that now holds another record, or none yet.
        next_offset: Offset at which the reader would have continued.
    """

    code = "TRUNCATED"
    advice = "Undo the effects of the records from that offset on, and subscribe again from there."

    def __init__(self, message: str, *, offset: int, next_offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.next_offset = next_offset


class SequenceError(RefusedError):
    """The sequence of an idempotent publisher has a gap, or a newer publisher uses its name."""

    code = "SEQUENCE"
    advice = "Open a new publisher; give each process its own publisher name."


class ServerError(LiftbridgeError):
    """The server failed with an internal error."""

    code = "SERVER"
    advice = "Check the log of the broker."


class UsageError(LiftbridgeError):
    """The client is used incorrectly: a wrong argument, or calls in the wrong order."""

    code = "USAGE"
    advice = "Correct the call."


class ClosedError(UsageError):
    """The client is not open yet, or is already closed."""

    code = "CLOSED"
    advice = "Use the client inside `async with connect(...)` or `with connect_sync(...)`."


class FullError(UsageError):
    """The publisher's buffer is full, and the call does not wait for room."""

    code = "FULL"
    advice = "Publish more slowly, wait for acks, or raise max_in_flight."


class CodecError(LiftbridgeError):
    """A codec cannot encode a value, or decode the value of a stored message.

    Attributes:
        data: Bytes that could not be decoded; empty when encoding.
        offset: Offset of the message that holds them; `None` when encoding.
    """

    code = "CODEC"
    advice = "Correct the value; to continue reading, subscribe from the offset after the message."

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
    # A limit, or a call that a broker shed under load; says nothing about the stream.
    StatusCode.RESOURCE_EXHAUSTED: RetriableError,
    StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    StatusCode.OUT_OF_RANGE: OutOfRangeError,
    StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    StatusCode.UNIMPLEMENTED: UnimplementedError,
    StatusCode.INTERNAL: ServerError,
    StatusCode.UNAVAILABLE: RetriableError,
    StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}

_UNDONE: Final = frozenset(
    {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.OUT_OF_RANGE,
        StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses with which a server refuses before it does anything. Any other status may also come from
a broken call: gRPC itself generates it (grpc/doc/statuscodes.md), also from an HTTP/2 reset."""

_BY_TEXT: Final[dict[StatusCode, tuple[tuple[str, type[LiftbridgeError]], ...]]] = {
    StatusCode.UNKNOWN: (("incorrect expected offset", IncorrectOffsetError),),
    StatusCode.INVALID_ARGUMENT: (("message exceeds max replication size", TooLargeError),),
    StatusCode.INTERNAL: (("no known metadata leader", RetriableError),),
    StatusCode.RESOURCE_EXHAUSTED: (
        ("Stop offset reached", EndOfStreamError),
        ("Stream is empty", EndOfStreamError),
        ("End of readonly partition", EndOfStreamError),
        ("message larger than max", TooLargeError),  # from gRPC, so any server sends it
    ),
    StatusCode.FAILED_PRECONDITION: (
        ("Server not partition leader", RetriableError),
        ("The request should be sent to partition leader", RetriableError),
        ("Server not leader for cursors partition", RetriableError),
    ),
}
"""Errors that servers distinguish by text only, as the original does. The text decides the class of
an error and whether to retry; the status alone decides whether the call may be done, except for a
published message that is too large for gRPC, which is never received."""


BY_SERVER_CODE: Final[dict[str, type[LiftbridgeError]]] = {
    "CHANGE_NOT_MADE": RetriableError,
    "CHANGE_REFUSED": RefusedError,
    "END_OF_STREAM": EndOfStreamError,
    "INCORRECT_OFFSET": IncorrectOffsetError,
    "IDENTITY_ENDED": RetriableError,
    "LIMIT": RefusedError,
    "NOT_ASSIGNED": FencedError,
    "NOT_COORDINATOR": RetriableError,
    "NO_METADATA_LEADER": RetriableError,
    "NOT_LEADER": RetriableError,
    "OUTCOME_UNKNOWN": OutcomeUnknownError,
    "TOO_LARGE": TooLargeError,
    "UNKNOWN_MEMBER": FencedError,
}
"""Codes of the broker that are more specific than their status."""

UNDONE_CODES: Final = frozenset(
    {
        "CHANGE_NOT_MADE",
        "CHANGE_REFUSED",
        "INCORRECT_OFFSET",
        "LIMIT",
        "NO_METADATA_LEADER",
        "KEY_UNAVAILABLE",
        "NOT_APPENDED",
        "NOT_ENOUGH_REPLICAS",
        "PARTITION_OFFLINE",
        "PERMISSION_DENIED",
        "STORAGE_FULL",
        "UNAUTHENTICATED",
    }
)
"""Codes of refusals that guarantee that nothing was done, whatever their status.

Only the broker sends them, in a trailer, so a broken call never has one.
"""


def publish_error(error: LiftbridgeError) -> LiftbridgeError:
    """Convert the error of a publish: after a lost answer, the outcome is unknown."""
    if isinstance(error, TooLargeError):
        # An ack is small, so the request exceeds the limit of gRPC: no broker received it.
        error.may_be_done = False
    is_late = isinstance(error, CallTimeoutError)
    is_told = isinstance(error, OutcomeUnknownError | IncorrectOffsetError)
    if is_told or not (is_late or error.may_be_done):
        return error
    kind = AckTimeoutError if is_late else OutcomeUnknownError
    translated = kind(f"no ack was received: {error}", server_text=error.server_text)
    translated.may_be_done = error.may_be_done
    return translated


def error_of(status: StatusCode, text: str, server_code: str = "") -> LiftbridgeError:
    """Create the error for a gRPC status, its message and the refusal code, empty for none."""
    classes = _BY_TEXT.get(status, ())
    by_status = _BY_STATUS.get(status, ServerError)
    kind = BY_SERVER_CODE.get(server_code)
    kind = kind or next((kind for part, kind in classes if part in text), by_status)
    unknown = stranger(text) if kind is RetriableError else None
    error = kind(unknown.what if unknown else text or status.name.lower(), server_text=text)
    if unknown is not None:
        error.advice = unknown.advice
    error.may_be_done = status not in _UNDONE and server_code not in UNDONE_CODES
    return error


class Doubt:
    """Doubt about a retried call: an earlier attempt may have taken effect.

    It persists over later attempts: an earlier attempt may have caused the state that a later
    attempt is refused for.
    """

    def __init__(self) -> None:
        self._is_open = False

    def weigh(self, error: LiftbridgeError) -> None:
        """Note the error of an attempt; set its `may_be_done` if an earlier attempt may be done."""
        error.may_be_done = self._is_open = self._is_open or error.may_be_done
