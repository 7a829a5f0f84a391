"""Marks on streams, finalizer and annotations on resources: how who manages what is known."""

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
    """Mark of a resource, as it stands on a stream: `streams.liftbridge.io/shop/orders/uid`."""
    return f"{_PREFIX}/{namespace}/{name}/{uid}"


def holder_of(mark: str) -> Holder | None:
    """The resource that a mark names; None when another program, or a person, made it."""
    parts = mark.split("/")
    if len(parts) != 4 or parts[0] != _PREFIX or not all(parts):
        return None
    return Holder(parts[1], parts[2], parts[3])
