"""Errors of the API server, as classes that a reconciler distinguishes."""

from collections.abc import Sequence
from typing import NamedTuple


class KubeError(Exception):
    """The API server did not do what was requested.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: Machine-readable word of the answer, such as `AlreadyExists`; empty without one.
        message: Message of the API server.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(KubeError):
    """There is no such object, or no such kind (404)."""


class ConflictError(KubeError):
    """The object is not the one that was read: another uid or resource version (409)."""


class AlreadyExistsError(ConflictError):
    """An object of this name already exists (409)."""


class FieldConflict(NamedTuple):
    """A field that another manager owns.

    Attributes:
        manager: Its owner, as the API server names it.
        field: Path, such as `.spec.replicas`.
    """

    manager: str
    field: str


class ApplyConflictError(ConflictError):
    """An apply without force met fields of other managers (409).

    Attributes:
        fields: The fields and their managers.
    """

    def __init__(self, message: str, fields: Sequence[FieldConflict]) -> None:
        super().__init__(message, status=409, reason="Conflict")
        self.fields = tuple(fields)


class GoneError(KubeError):
    """The resource version or token from which a list or watch continues has expired (410)."""


class ForbiddenError(KubeError):
    """The operator may not do this (403); a quota refuses in the same way."""


class UnauthorizedError(KubeError):
    """The API server does not accept the operator's credentials (401)."""


class InvalidError(KubeError):
    """The request or object is invalid (400, 405, 413, 415, 422)."""


class UnavailableError(KubeError):
    """No usable answer within the bounds: connection, time-out, 429 and 5xx after all retries.

    A write with this error may have been done.
    """


class UnansweredError(UnavailableError):
    """A write got no usable answer, though the API server answers reads.

    An admission webhook hangs, or the storage or a proxy fails it with 429 or 5xx.

    Attributes:
        is_sent: Whether it was sent; False when other writes of its kind have just hung.
    """

    def __init__(self, message: str, *, status: int = 0, is_sent: bool = True) -> None:
        super().__init__(message, status=status)
        self.is_sent = is_sent


class FencedError(KubeError):
    """The write was not sent: this process can no longer be sure that it is the leader."""
