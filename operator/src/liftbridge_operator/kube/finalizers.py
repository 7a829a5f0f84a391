"""Finalizers of an object."""

from collections.abc import Mapping
from typing import Any

from liftbridge_operator.kube.kinds import Kind
from liftbridge_operator.kube.port import Kube, Object, Preconditions


def has_finalizer(body: Mapping[str, Any], finalizer: str) -> bool:
    """Return whether an object as read has a finalizer."""
    return finalizer in (body["metadata"].get("finalizers") or ())


async def write_finalizer(
    kube: Kube, kind: Kind, body: Object, finalizer: str, *, is_added: bool
) -> None:
    """Add a finalizer to an object as read, or remove it; others stay.

    Raises:
        ConflictError: The object changed since.
        NotFoundError: It is gone.
    """
    metadata = body["metadata"]
    others = [one for one in metadata.get("finalizers") or () if one != finalizer]
    await kube.patch(
        kind,
        metadata["namespace"],
        metadata["name"],
        {"metadata": {"finalizers": [*others, finalizer] if is_added else others}},
        preconditions=Preconditions.of(body),
    )
