"""Refusals of the API server, and its silence, as classes that a reconciler can tell apart."""

from collections.abc import Sequence
from typing import NamedTuple


class KubeError(Exception):
    """The API server did not do what was asked for.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: Machine-readable word of the answer, such as `AlreadyExists`; empty without one.
        message: What the API server said.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(KubeError):
    """There is no such object, or no such kind (404)."""


class ConflictError(KubeError):
    """The object is not the one that was seen: another uid or resource version (409)."""


class AlreadyExistsError(ConflictError):
    """An object of this name is there already (409)."""


class FieldConflict(NamedTuple):
    """A field that another manager owns.

    Attributes:
        manager: Who owns it, as the API server says it.
        field: Path, such as `.spec.replicas`.
    """

    manager: str
    field: str


class ApplyConflictError(ConflictError):
    """An apply without force met fields of other managers (409).

    Attributes:
        fields: Which, and whose.
    """

    def __init__(self, message: str, fields: Sequence[FieldConflict]) -> None:
        super().__init__(message, status=409, reason="Conflict")
        self.fields = tuple(fields)


class GoneError(KubeError):
    """What a list or a watch goes on from is no longer kept (410)."""


class ForbiddenError(KubeError):
    """The operator may not do this (403); a quota refuses in the same way."""


class UnauthorizedError(KubeError):
    """The API server does not take the operator's credentials (401)."""


class InvalidError(KubeError):
    """The object is refused as wrong (400, 422)."""


class UnavailableError(KubeError):
    """No usable answer within the bounds: connection, time-out, 429 and 5xx after all retries.

    A write that ends so may have been done.
    """


class UnansweredError(UnavailableError):
    """A write got no usable answer, though the API server answers reads.

    Who admits it hangs, or its store or a proxy fails it with 429 or 5xx.

    Attributes:
        is_sent: Whether it was asked for at all; not when others of its kind have just hung.
    """

    def __init__(self, message: str, *, status: int = 0, is_sent: bool = True) -> None:
        super().__init__(message, status=status)
        self.is_sent = is_sent


class FencedError(KubeError):
    """The write was not sent: this process can no longer be sure that it is the leader."""
