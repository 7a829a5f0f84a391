"""Parse a `Stream` object of the API server."""

from typing import Any

from pydantic import ValidationError

from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.marks import CONFIRM_DELETE, FINALIZER
from liftbridge_operator.streams.observation import Resource
from liftbridge_operator.streams.status import conditions_of


def resource_of(body: Object) -> Resource:
    """Parse an object into a resource."""
    metadata: dict[str, Any] = body["metadata"]
    status: dict[str, Any] = body.get("status", {})
    spec, unread = _spec_of(body)
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata.get("creationTimestamp", ""),
        spec=spec,
        unread=unread,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        has_finalizer=FINALIZER in metadata.get("finalizers", ()),
        confirmed=metadata.get("annotations", {}).get(CONFIRM_DELETE, ""),
        creation_id=status.get("creationId", ""),
        asked=tuple(status.get("askedSettings", ())),
        observed_generation=status.get("observedGeneration", -1),
        conditions=conditions_of(status),
        is_adopted=status.get("adopted", False),
    )


def _spec_of(body: Object) -> tuple[StreamSpec | None, str]:
    """Parse the specification, or return why it is unreadable: it may be of another CRD version."""
    given = body.get("spec", {})
    try:
        spec = StreamSpec.model_validate(given)
    except ValidationError:
        return None, "it cannot be read"
    unread = ", ".join(f"spec{path}" for path in spec.unread(given))
    return (None, f"only a newer operator knows {unread}") if unread else (spec, "")
