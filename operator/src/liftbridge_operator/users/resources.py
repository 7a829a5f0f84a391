"""Parse a `LiftbridgeUser` object of the API server."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from liftbridge_operator.kube.finalizers import has_finalizer
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.user import UserSpec, UserStatus
from liftbridge_operator.streams.feed import ClusterKey
from liftbridge_operator.streams.status import conditions_of
from liftbridge_operator.users.marks import CONFIRM_DELETE, FINALIZER
from liftbridge_operator.users.observation import Resource
from liftbridge_operator.users.rules import rules_of


def resource_of(body: Object) -> Resource:
    """Parse an object into a resource."""
    metadata: dict[str, Any] = body["metadata"]
    status: dict[str, Any] = body.get("status", {})
    spec, unread = UserSpec.read_spec(body.get("spec", {}))
    ledger = _ledger_of(status)
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata.get("creationTimestamp", ""),
        spec=spec,
        principal=status.get("principal") or principal_of(body),
        unread=unread,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        has_finalizer=has_finalizer(body, FINALIZER),
        confirmed=metadata.get("annotations", {}).get(CONFIRM_DELETE, ""),
        granted=rules_of(ledger.granted),
        has_quota=ledger.has_quota,
        observed_generation=status.get("observedGeneration", -1),
        conditions=conditions_of(status),
    )


def cluster_of(body: Object) -> ClusterKey:
    """Return the cluster that an object names, also one whose specification cannot be read."""
    ref: Mapping[str, Any] = body.get("spec", {}).get("clusterRef", {})
    namespace = ref.get("namespace") or body["metadata"]["namespace"]
    return ClusterKey(namespace, ref.get("name", ""))


def principal_of(body: Object) -> str:
    """Return the name by which brokers know the client of an object."""
    given: Mapping[str, Any] = body.get("spec", {})
    account = given.get("authentication", {}).get("serviceAccount")
    if account is not None:
        namespace = account.get("namespace") or body["metadata"]["namespace"]
        return f"system:serviceaccount:{namespace}:{account.get('name', '')}"
    return str(given.get("principal") or body["metadata"]["name"])


def _ledger_of(status: Mapping[str, Any]) -> UserStatus:
    """Parse what the status claims; nothing, if only a newer operator can read it."""
    try:
        return UserStatus.model_validate(status)
    except ValidationError:
        return UserStatus()
