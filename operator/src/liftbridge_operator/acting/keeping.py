"""The set and its budget stay as they were written: what somebody else changed is changed back.

Of a template only what is text is compared. Quantities, and what the API server fills in, come back
in other words than they were sent in, and a set that is written again and again is never at rest.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from liftbridge_operator.acting.hands import Hands
from liftbridge_operator.kube.errors import ConflictError
from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import SETS
from liftbridge_operator.kube.port import FIELD_MANAGER, Object, Preconditions
from liftbridge_operator.observing.objects import is_owned_by, is_terminating, metadata_of
from liftbridge_operator.rendering import guards, names, workload
from liftbridge_operator.rendering.revision import asked_text

_TEXTS: Final = ("name", "image", "command", "args")
_LISTS: Final = ("initContainers", "containers")
_STRATEGY: Final = {"type": "OnDelete"}
_RETENTION: Final = {"whenDeleted": "Retain", "whenScaled": "Retain"}

Drift = list[tuple[str, Difference]]
"""Objects, and what was not as it was written."""


async def keep(hands: Hands) -> Drift:
    """Change set and budget back.

    Raises:
        KubeError: A call failed.
    """
    try:
        return [*await _keep_set(hands), *await _keep_budget(hands)]
    except ConflictError:
        return []  # somebody is at it: the next pass looks again


async def _keep_set(hands: Hands) -> Drift:
    live, kept = hands.reads.set, hands.reads.revision
    if live is None or kept is None or not _is_mine(hands, live):
        return []
    record = workload.read_kept(kept)
    if record is None:
        return []
    template = record.template
    found = [*differences(live, _intent(live, template)), *_added(live, template)]
    if not found:
        return []
    changes: list[dict[str, Any]] = [
        {"op": "replace", "path": "/spec/template", "value": template},
        {"op": "add", "path": "/spec/updateStrategy", "value": _STRATEGY},
        {"op": "add", "path": "/spec/persistentVolumeClaimRetentionPolicy", "value": _RETENTION},
    ]
    name = str(metadata_of(live)["name"])
    await hands.kube.patch(
        SETS, hands.cluster.namespace, name, changes, preconditions=Preconditions.of(live)
    )
    return [(f"StatefulSet/{name}", one) for one in found]


async def note_asked(hands: Hands) -> None:
    """Write down on the set what is asked for now, where its template stays all the same.

    So an operator that renders it otherwise sees that nobody asked for anything since.

    Raises:
        KubeError: The call failed.
    """
    live, recorded = hands.reads.set, hands.inputs.recorded
    asked = asked_text(hands.cluster)
    if live is None or recorded is None or recorded.asked == asked:
        return
    if recorded.revision != hands.rendered.revision:
        return
    # Where somebody else is at it, the next pass looks again.
    with suppress(ConflictError):
        await hands.kube.patch(
            SETS,
            hands.cluster.namespace,
            str(metadata_of(live)["name"]),
            {"metadata": {"annotations": {names.ASKED: asked}}},
            preconditions=Preconditions.of(live),
        )


def _is_mine(hands: Hands, live: Object) -> bool:
    return is_owned_by(live, hands.cluster.uid) and not is_terminating(live)


def _intent(live: Object, template: Object) -> Object:
    """What of the set is compared."""
    revision = metadata_of(template).get("annotations", {}).get(names.REVISION)
    spec = {
        part: [
            {key: one[key] for key in _TEXTS if key in one}
            for one in template["spec"].get(part, ())
        ]
        for part in _LISTS
        if template["spec"].get(part)
    }
    return {
        "metadata": {"name": metadata_of(live)["name"]},
        "spec": {
            "updateStrategy": _STRATEGY,
            "persistentVolumeClaimRetentionPolicy": _RETENTION,
            "template": {"metadata": {"annotations": {names.REVISION: revision}}, "spec": spec},
        },
    }


def _added(live: Object, template: Object) -> Iterator[Difference]:
    """Containers that nobody rendered."""
    present = live["spec"]["template"].get("spec") or {}
    for part in _LISTS:
        wanted = {one["name"] for one in template["spec"].get(part, ())}
        for one in present.get(part) or ():
            if one.get("name") not in wanted:
                field = f".spec.template.spec.{part}[name={one.get('name')}]"
                yield Difference(field, _writer_of(live))


def _writer_of(live: Object) -> str:
    """Somebody else who wrote the template of a set."""
    for entry in metadata_of(live).get("managedFields") or ():
        owned = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if entry.get("manager") != FIELD_MANAGER and "f:template" in owned:
            return str(entry.get("manager"))
    return ""


async def _keep_budget(hands: Hands) -> Drift:
    live = hands.reads.budget
    if live is None or not _is_mine(hands, live):
        return []
    allowed = (live.get("spec") or {}).get("maxUnavailable")
    if not isinstance(allowed, int):
        return []  # the planner writes it, with a number
    body = guards.disruption_budget(hands.cluster, hands.inputs, allowed)
    found = differences(live, body)
    if found:
        await hands.kube.apply(body, force=True)
    return [(f"PodDisruptionBudget/{metadata_of(live)['name']}", one) for one in found]
