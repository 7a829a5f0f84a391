"""Marks on streams, and finalizer and annotations on resources, which record ownership."""

from typing import Final, NamedTuple

from liftbridge_operator.model.base import GROUP

FINALIZER: Final = f"{GROUP}/stream"
CONFIRM_DELETE: Final = f"{GROUP}/confirm-delete"

_PREFIX: Final = "streams.liftbridge.io"


class Holder(NamedTuple):
    """A resource that a mark names."""

    namespace: str
    name: str
    uid: str


def mark_of(namespace: str, name: str, uid: str) -> str:
    """Return the mark of a resource on its stream: `streams.liftbridge.io/shop/orders/uid`."""
    return f"{_PREFIX}/{namespace}/{name}/{uid}"


def holder_of(mark: str) -> Holder | None:
    """Parse the resource that a mark names; None when another program or a user set it."""
    parts = mark.split("/")
    if len(parts) != 4 or parts[0] != _PREFIX or not all(parts):
        return None
    return Holder(parts[1], parts[2], parts[3])
