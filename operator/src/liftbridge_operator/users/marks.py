"""Marks on tokens, and finalizer and annotation on resources, which record ownership."""

from typing import Final

from liftbridge_operator.model.base import GROUP

FINALIZER: Final = f"{GROUP}/user"
CONFIRM_DELETE: Final = f"{GROUP}/confirm-delete"

_PREFIX: Final = f"liftbridgeusers.{GROUP}"


def mark_of(uid: str) -> str:
    """Return the group that marks the tokens of a resource: `liftbridgeusers.liftbridge.io/UID`."""
    return f"{_PREFIX}/{uid}"


def is_mark(group: str) -> bool:
    """Return whether a group of a token is the mark of a resource."""
    return group.startswith(f"{_PREFIX}/")
