"""Compare immutable fields of a StatefulSet with the rendered ones.

They differ when a user deleted and recreated the set, or when a resource adopts the set of a former
one. Sizes are not compared: to grow volumes, the planner recreates the set.
"""

from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import Json, metadata_of
from liftbridge_operator.cluster.rendering import workload
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Recorded

FIELDS: Final = ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates")
_FILLED_IN: Final = {"volumeMode": "Filesystem"}
"""Defaults of a claim, set by the API server."""


def odd_fields(live: Json, cluster: Cluster, inputs: Inputs) -> tuple[str, ...]:
    """List immutable fields of a live set that differ from the rendered ones."""
    record = Recorded("", "", 0, "", {})
    rendered = workload.stateful_set(
        cluster, inputs, record, workload.Marks(), replicas=None, claim_bytes=0
    )
    has = live.get("spec") or {}
    asked = {name: _plain(name, rendered["spec"][name]) for name in FIELDS}
    if not asked["volumeClaimTemplates"]:
        asked.pop("volumeClaimTemplates")  # brokers keep their existing volumes
    return tuple(one for one, value in asked.items() if _plain(one, has.get(one)) != value)


def _plain(field: str, value: Any) -> Any:
    """Normalise a value: without sizes, and with defaults of the API server."""
    if field != "volumeClaimTemplates":
        return value
    return [(metadata_of(one).get("name"), _claim(one)) for one in value or ()]


def _claim(template: Json) -> Json:
    spec, noted = {**_FILLED_IN, **(template.get("spec") or {})}, metadata_of(template)
    resources = dict(spec.pop("resources", None) or {})
    requests = dict(resources.pop("requests", None) or {})
    requests.pop("storage", None)
    given = {name: value for name, value in spec.items() if value is not None}
    labels, annotations = noted.get("labels") or {}, noted.get("annotations") or {}
    further = {"resources": resources, "requests": requests}
    return {**given, **further, "labels": labels, "annotations": annotations}
