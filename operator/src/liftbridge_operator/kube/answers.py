"""Map answers of the API server to errors, and decide which requests are retried. Pure."""

import json
import re
from typing import Any, Final

from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    FieldConflict,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

MESSAGE_CHARACTERS_MAX: Final = 1_000

_CLASSES: Final[dict[int, type[KubeError]]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: InvalidError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}
_UNTYPED: Final = "failed to create typed patch object"
"""Message of the internal error (500) by which an apply with a malformed body is refused."""

_OWNER: Final = re.compile(r'conflict with "([^"]*)"')


def error_of(verb: str, path: str, status: int, text: bytes) -> KubeError:
    """Return the error for an unsuccessful answer.

    Args:
        verb: Verb of the request.
        path: Path of the request.
        status: HTTP status of the answer.
        text: Body of the answer: a `Status` of the API server, or any text of a proxy.
    """
    status_body = _status_of(text)
    reason = str(status_body.get("reason") or "")
    message_text = str(
        status_body.get("message") or text[:MESSAGE_CHARACTERS_MAX].decode("utf-8", "replace")
    )
    message = f"{verb} {path}: {message_text[:MESSAGE_CHARACTERS_MAX]}"
    if _is_of_another_uid(status, status_body):
        return ConflictError(message, status=status, reason=reason)
    if _UNTYPED in message_text:
        return InvalidError(message, status=status, reason=reason)
    if status == 409:
        fields = _field_conflicts(status_body)
        if fields:
            return ApplyConflictError(message, fields)
        if reason == "AlreadyExists":
            return AlreadyExistsError(message, status=status, reason=reason)
    found = _CLASSES.get(status, UnavailableError if _is_passing(status) else KubeError)
    return found(message, status=status, reason=reason)


def is_retried(verb: str, error: KubeError) -> bool:
    """Return whether a request is retried after this error.

    A create that may have succeeded is not: its second attempt would conflict with its own object.
    All other requests are idempotent: they name the state of the object they are meant for, or the
    desired object.
    """
    if not isinstance(error, UnavailableError):
        return False
    # With 429 the request was refused before it was processed.
    return verb != "POST" or error.status == 429


def _is_passing(status: int) -> bool:
    return status == 429 or status >= 500


def _is_of_another_uid(status: int, status_body: dict[str, Any]) -> bool:
    """Return whether a patch was refused because the object has another uid (422)."""
    causes = (status_body.get("details") or {}).get("causes") or ()
    return status == 422 and any(cause.get("field") == "metadata.uid" for cause in causes)


def _status_of(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # an error page of a proxy
        return {}
    return found if isinstance(found, dict) else {}


def _field_conflicts(status_body: dict[str, Any]) -> list[FieldConflict]:
    details = status_body.get("details") or {}
    found = []
    for cause in details.get("causes") or ():
        if cause.get("reason") == "FieldManagerConflict":
            owner = _OWNER.search(cause.get("message", ""))
            found.append(FieldConflict(owner[1] if owner else "", cause.get("field", "")))
    return found
