"""Placement of pods: rules of the topology merged with the user's pod template."""

from typing import Any, Final

from liftbridge_operator.cluster.rendering.subject import Cluster, Object, pod_labels
from liftbridge_operator.model.operations import Strictness

HOST_LABEL: Final = "kubernetes.io/hostname"


def affinity(cluster: Cluster) -> Object:
    """Render the affinity of pods; empty for none."""
    given = cluster.spec.pod_template.affinity
    made = without_empty(given.manifest()) if given is not None else {}
    term = {"topologyKey": HOST_LABEL, "labelSelector": {"matchLabels": pod_labels(cluster)}}
    spread = cluster.spec.topology.node_spread
    if spread is Strictness.DISABLED:
        return made
    key, entry = _REQUIRED, dict[str, Any](term)
    if spread is Strictness.PREFERRED:
        key, entry = _PREFERRED, {"weight": 100, "podAffinityTerm": term}
    apart = made.setdefault("podAntiAffinity", {})
    apart[key] = [*apart.get(key, ()), entry]
    return made


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def spread_constraints(cluster: Cluster) -> list[Object]:
    """Render the spread over zones, unless the user has a constraint of the same kind."""
    selector = {"matchLabels": pod_labels(cluster)}
    made = [
        {"labelSelector": selector} | without_empty(constraint.manifest())
        for constraint in cluster.spec.pod_template.topology_spread_constraints
    ]
    topology = cluster.spec.topology
    if topology.zone_spread is Strictness.DISABLED:
        return made
    is_required = topology.zone_spread is Strictness.REQUIRED
    kind = "DoNotSchedule" if is_required else "ScheduleAnyway"
    if any(
        (one["topologyKey"], one["whenUnsatisfiable"]) == (topology.zone_label, kind)
        for one in made
    ):
        return made
    zone = {
        "maxSkew": 1,
        "topologyKey": topology.zone_label,
        "whenUnsatisfiable": kind,
        "labelSelector": selector,
    }
    return [*made, zone]


def without_empty(value: Any) -> Any:
    """Drop empty lists from a manifest, which mean nothing and are not stored.

    Empty mappings stay: an empty selector matches everything. The only exception is `matchLabels`.
    """
    if isinstance(value, list):
        return [without_empty(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_empty(one) for key, one in value.items()}
    return {
        key: one
        for key, one in kept.items()
        if one != [] and not (key == "matchLabels" and one == {})
    }
