"""Parse a `Stream` object of the API server."""

from typing import Any

from liftbridge_operator.kube.finalizers import has_finalizer
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.marks import CONFIRM_DELETE, FINALIZER
from liftbridge_operator.streams.observation import Resource
from liftbridge_operator.streams.status import conditions_of


def resource_of(body: Object) -> Resource:
    """Parse an object into a resource."""
    metadata: dict[str, Any] = body["metadata"]
    status: dict[str, Any] = body.get("status", {})
    spec, unread = StreamSpec.read_spec(body.get("spec", {}))
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata.get("creationTimestamp", ""),
        spec=spec,
        unread=unread,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        has_finalizer=has_finalizer(body, FINALIZER),
        confirmed=metadata.get("annotations", {}).get(CONFIRM_DELETE, ""),
        creation_id=status.get("creationId", ""),
        asked=tuple(status.get("askedSettings", ())),
        observed_generation=status.get("observedGeneration", -1),
        conditions=conditions_of(status),
        is_adopted=status.get("adopted", False),
    )
