"""A `Stream` of the API server as a value."""

from typing import Any

from pydantic import ValidationError

from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.marks import CONFIRM_DELETE, FINALIZER
from liftbridge_operator.streams.observation import Resource
from liftbridge_operator.streams.status import told_of


def resource_of(body: Object) -> Resource:
    """The resource that an object is."""
    metadata: dict[str, Any] = body["metadata"]
    status: dict[str, Any] = body.get("status", {})
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata.get("creationTimestamp", ""),
        spec=_spec_of(body),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        has_finalizer=FINALIZER in metadata.get("finalizers", ()),
        confirmed=metadata.get("annotations", {}).get(CONFIRM_DELETE, ""),
        creation_id=status.get("creationId", ""),
        observed_generation=status.get("observedGeneration", -1),
        told=told_of(status),
        is_adopted=status.get("adopted", False),
    )


def _spec_of(body: Object) -> StreamSpec | None:
    """The specification; one of another version of the definition may not be readable."""
    try:
        return StreamSpec.model_validate(body.get("spec", {}))
    except ValidationError:
        return None
