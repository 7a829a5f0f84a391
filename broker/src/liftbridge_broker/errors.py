"""Every error that the broker answers with, and the one table that maps them to wire codes.

Three kinds (STYLE.md 5): a *refusal* is expected and tells a client what to do, *corruption* means
that stored or received bytes are wrong, and a bug is an `assert`. Texts that clients of the
original depend on are written where the refusal is raised; codes live here.
"""

from enum import IntEnum
from typing import ClassVar, Final, Self

TEXT_LENGTH_MAX: Final = 4_096
"""Characters of a text; more would not fit into the trailers of a call."""


class GrpcStatus(IntEnum):
    """Status codes of gRPC (grpc/doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class LiftbridgeError(Exception):
    """A refusal: expected, with a code for programs and a message for people.

    Attributes:
        code: Stable name of the kind of refusal, used in logs, metrics and
            `docs/reference/errors.md`.
        status: gRPC status the refusal is answered with.
        retriable: Whether the same request may succeed later without any action.
    """

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[GrpcStatus] = GrpcStatus.INTERNAL
    retriable: ClassVar[bool] = False

    @property
    def text(self) -> str:
        """Message for the client, cut to `TEXT_LENGTH_MAX`."""
        return str(self)[:TEXT_LENGTH_MAX]


class InvalidRequestError(LiftbridgeError):
    """A field of the request breaks a rule; the text names the value and the rule."""

    code = "INVALID_REQUEST"
    status = GrpcStatus.INVALID_ARGUMENT


class NotFoundError(LiftbridgeError):
    """A stream, partition or group does not exist, or was deleted while in use."""

    code = "NOT_FOUND"
    status = GrpcStatus.NOT_FOUND


class AlreadyExistsError(LiftbridgeError):
    """A stream of this name exists."""

    code = "ALREADY_EXISTS"
    status = GrpcStatus.ALREADY_EXISTS


class FailedPreconditionError(LiftbridgeError):
    """The state of the stream, partition or broker forbids the request."""

    code = "FAILED_PRECONDITION"
    status = GrpcStatus.FAILED_PRECONDITION


class ReadonlyError(FailedPreconditionError):
    """The partition is read-only, or no offset is left for another record."""

    code = "READONLY"


class PausedError(FailedPreconditionError):
    """The partition is paused and the request does not resume it."""

    code = "PAUSED"


class NotLeaderError(FailedPreconditionError):
    """This broker does not lead the partition; the client refreshes its metadata."""

    code = "NOT_LEADER"
    retriable = True


class NotCoordinatorError(FailedPreconditionError):
    """This broker does not coordinate the consumer group; its metadata name the one that does."""

    code = "NOT_COORDINATOR"
    retriable = True


class StaleGroupEpochError(FailedPreconditionError):
    """The consumer group has changed: the member reads the epoch in its metadata and continues."""

    code = "STALE_GROUP_EPOCH"
    retriable = True


class UnknownMemberError(FailedPreconditionError):
    """The consumer is no member of the group, or no longer: it must join again."""

    code = "UNKNOWN_MEMBER"


class NotAssignedError(FailedPreconditionError):
    """The partition is not, or no longer, assigned to the consumer."""

    code = "NOT_ASSIGNED"


class UnimplementedError(LiftbridgeError):
    """The feature is not part of this version."""

    code = "UNIMPLEMENTED"
    status = GrpcStatus.UNIMPLEMENTED


class OutOfRangeError(LiftbridgeError):
    """A strict read requests records that are not, or no longer, in the log."""

    code = "OUT_OF_RANGE"
    status = GrpcStatus.OUT_OF_RANGE


class EndOfStreamError(LiftbridgeError):
    """A subscription reached its stop position or the end of a read-only partition."""

    code = "END_OF_STREAM"
    status = GrpcStatus.RESOURCE_EXHAUSTED


class ReverseEndError(EndOfStreamError):
    """A reverse subscription delivered its oldest message; the status is that of the original."""

    code = "REVERSE_END"
    status = GrpcStatus.UNKNOWN


class LimitError(LiftbridgeError):
    """A limit is reached; the text names the limit and its setting."""

    code = "LIMIT"
    status = GrpcStatus.RESOURCE_EXHAUSTED


class PermissionDeniedError(LiftbridgeError):
    """No access rule allows the caller this, or one denies it; the text is the original's."""

    code = "PERMISSION_DENIED"
    status = GrpcStatus.PERMISSION_DENIED


class TooLargeError(LiftbridgeError):
    """A record does not fit `clustering.replication.max.bytes`, or has more than 1,000 headers."""

    code = "TOO_LARGE"
    status = GrpcStatus.INVALID_ARGUMENT


class IncorrectOffsetError(LiftbridgeError):
    """Optimistic concurrency: the expected offset is not the next one (status of the original)."""

    code = "INCORRECT_OFFSET"
    status = GrpcStatus.UNKNOWN


class NotAppendedError(LiftbridgeError):
    """The record was definitely not stored; publishing it again is safe."""

    code = "NOT_APPENDED"
    status = GrpcStatus.UNAVAILABLE
    retriable = True


class StorageFullError(NotAppendedError):
    """Free disk space is below the limit; reads and deletes continue."""

    code = "STORAGE_FULL"


class PartitionOfflineError(NotAppendedError):
    """The partition's files failed or are damaged; an operator must act."""

    code = "PARTITION_OFFLINE"
    retriable = False


class KeyUnavailableError(PartitionOfflineError):
    """The data key of an encrypted stream cannot be unwrapped here; its master key is needed."""

    code = "KEY_UNAVAILABLE"


class NotEnoughReplicasError(NotAppendedError):
    """Acks of all replicas were requested, but too few are in sync; nothing was stored."""

    code = "NOT_ENOUGH_REPLICAS"


class OutcomeUnknownError(LiftbridgeError):
    """The record may or may not be stored; never a status that clients retry automatically."""

    code = "OUTCOME_UNKNOWN"
    status = GrpcStatus.UNKNOWN


class NotEnoughReplicasAfterAppendError(OutcomeUnknownError):
    """The in-sync set fell below its minimum after the append; it may still be committed."""

    code = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class OutOfOrderError(LiftbridgeError):
    """Idempotent publisher: the sequence leaves a gap after the last one stored."""

    code = "OUT_OF_ORDER"
    status = GrpcStatus.FAILED_PRECONDITION


class FencedPublisherError(LiftbridgeError):
    """Idempotent publisher: a newer epoch of this publisher exists."""

    code = "FENCED_PUBLISHER"
    status = GrpcStatus.FAILED_PRECONDITION


class UnavailableError(LiftbridgeError):
    """The broker is starting, stopping or cut off from NATS."""

    code = "UNAVAILABLE"
    status = GrpcStatus.UNAVAILABLE
    retriable = True


class UnauthenticatedError(LiftbridgeError):
    """The call has no identity that this listener accepts, or its proof is wrong or has ended."""

    code = "UNAUTHENTICATED"
    status = GrpcStatus.UNAUTHENTICATED


class IdentityEndedError(UnauthenticatedError):
    """The identity of a running call ended: its proof expired or was revoked."""

    code = "IDENTITY_ENDED"


class OffsetNotAvailableError(UnavailableError):
    """A new leader does not know yet how much of its log is committed; retry soon."""

    code = "OFFSET_NOT_AVAILABLE"


class UnknownPartitionError(NotFoundError):
    """A broker or operator names a partition that does not exist, or no longer exists."""

    code = "UNKNOWN_PARTITION"


class StaleBrokerEpochError(FailedPreconditionError):
    """A broker acts in a session that has ended; it must register again."""

    code = "STALE_BROKER_EPOCH"


class FencedLeaderEpochError(FailedPreconditionError):
    """A leader, or a replica that follows it, acts in a leader epoch that has ended."""

    code = "FENCED_LEADER_EPOCH"


class InvalidPartitionEpochError(FailedPreconditionError):
    """The partition changed after this was decided; decide again on its current state."""

    code = "INVALID_PARTITION_EPOCH"


class IneligibleReplicaError(FailedPreconditionError):
    """A replica may not enter the in-sync set: fenced, stopping, or known in another session."""

    code = "INELIGIBLE_REPLICA"


class NotControllerError(UnavailableError):
    """A partition is ahead of this broker's metadata; retry later."""

    code = "NOT_CONTROLLER"


class InternalError(LiftbridgeError):
    """The broker failed unexpectedly; the change may have been made."""

    code = "INTERNAL"
    status = GrpcStatus.INTERNAL


class ChangeNotMadeError(InternalError):
    """A change was not made and will not be: asking again is safe, and helps when the cause passes.

    Status and text are those of the original, which tells such causes and doubt alike.
    """

    code = "CHANGE_NOT_MADE"
    retriable = True


class ChangeRefusedError(ChangeNotMadeError):
    """A change was not made and will not be; the same one is refused again."""

    code = "CHANGE_REFUSED"
    retriable = False


class NoMetadataLeaderError(ChangeNotMadeError):
    """The metadata group had no leader for as long as a change may wait: it was not made.

    Clients of the original compare its text.
    """

    code = "NO_METADATA_LEADER"

    def __init__(self) -> None:
        """Return the text of the original."""
        super().__init__("no known metadata leader")


class ConfigError(LiftbridgeError):
    """A setting is unknown, malformed, or contradicts another one."""

    code = "CONFIG"
    status = GrpcStatus.INVALID_ARGUMENT


class CorruptionError(LiftbridgeError):
    """Bytes on disk or from a peer are wrong: fence the partition, keep the file, alert.

    Attributes:
        path: File the bytes came from, empty when they did not come from a file.
        position: Byte position in the file where the damage was noticed.
    """

    code = "CORRUPTION"
    status = GrpcStatus.DATA_LOSS

    def __init__(self, message: str, *, path: str = "", position: int = 0) -> None:
        where = f" ({path} at byte {position})" if path else ""
        super().__init__(message + where)
        self.path = path
        self.position = position

    @classmethod
    def restored(cls, text: str, path: str, position: int) -> Self:
        """Create the error of another process from its attributes."""
        error = cls(text)
        error.path, error.position = path, position
        return error


class WireError(LiftbridgeError):
    """A message from a peer is malformed, too long or of another version: drop it, alert."""

    code = "WIRE"
    status = GrpcStatus.INTERNAL


class FilesError(LiftbridgeError):
    """The file system refused an operation; never retried (storage policies 7 and 8).

    Attributes:
        is_full: Whether the cause is a full disk or quota, which is survivable.
    """

    code = "FILES"
    status = GrpcStatus.INTERNAL

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


def error_classes() -> tuple[type[LiftbridgeError], ...]:
    """All refusals, in order of definition: the table that documentation and tests walk."""
    classes: list[type[LiftbridgeError]] = []
    queue: list[type[LiftbridgeError]] = [LiftbridgeError]
    while queue:
        current = queue.pop(0)
        classes.append(current)
        queue.extend(current.__subclasses__())
    return tuple(classes)
