"""Revert drift of whole objects: one patch undoes foreign changes, additions and removals.

Server-side apply leaves fields of other managers alone, so it is not enough. The object that the
API server returns for the intent, with its defaults, is remembered by its digest; an object whose
digest differs is replaced. A replacement that changes nothing costs no resource version, and an
object at rest costs no write at all.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from liftbridge_operator.cluster.observing.objects import metadata_of
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.rendering.revision import digest
from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import JOBS, SETS, Kind, kind_of
from liftbridge_operator.kube.port import FIELD_MANAGER, Kube, Object, Preconditions

PEOPLE: Final = "kubectl"
"""Prefix of field managers of users (kubectl); labels and annotations of other managers stay."""

UNKNOWN_MANAGER: Final = "an unknown manager"
REPAIRS_MAX: Final = 5
REPAIRS_MS: Final = 60_000
"""Period in which `REPAIRS_MAX` repairs of an object show that another manager contests it."""

_UNCOMPARED: Final = ("apiVersion", "kind", "metadata", "status")
_METADATA: Final = ("labels", "annotations", "ownerReferences")
_NOTED: Final = ("labels", "annotations")
_OF_OTHERS: Final = ("secrets", "imagePullSecrets")
"""Fields of a ServiceAccount that controllers of some distributions write."""

_OPEN: Final[Mapping[Kind, tuple[str, ...]]] = {
    SETS: (
        "template",
        "updateStrategy",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
        "revisionHistoryLimit",
        "ordinals",
    ),
    JOBS: (
        "suspend",
        "parallelism",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ),
}
"""Mutable fields that the operator maintains, of kinds with a partly immutable specification. The
planner sets the replicas of a set."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An object as last applied.

    Attributes:
        intent: Digest of the rendered object.
        live: Digest of the object as the API server stored it.
        repairs: Consecutive reverts of foreign changes since `since_ms`.
        rival: Field manager of the last foreign change.
    """

    intent: str
    live: str
    repairs: int = 0
    since_ms: int = 0
    rival: str = ""


class Whole(NamedTuple):
    """Outcome of applying an object as a whole.

    Attributes:
        live: The object after the write.
        found: Reverted foreign changes.
    """

    live: Object
    found: list[Difference]


def shown(body: Object) -> str:
    """Return the display name of an object: `Kind/name`."""
    return f"{body['kind']}/{metadata_of(body)['name']}"


async def keep_whole(
    kube: Kube, kept: dict[str, Kept], body: Object, live: Object, *, now_ms: int
) -> Whole:
    """Replace an existing object by the rendered one, without any foreign additions.

    Args:
        kube: The API server.
        kept: Objects as last applied; updated here.
        body: The rendered object.
        live: The object as read.
        now_ms: Start of the pass.

    Raises:
        KubeError: The call failed.
    """
    name = shown(body)
    intent, before = digest(_content(body)), _content(live)
    known = kept.get(name)
    if known is not None and (known.intent, known.live) == (intent, digest(before)):
        return Whole(live, [])
    if known is None and _is_untouched(live, body):
        kept[name] = Kept(intent, digest(before))
        return Whole(live, [])
    result = await kube.patch(
        kind_of(body),
        str(metadata_of(body)["namespace"]),
        str(metadata_of(body)["name"]),
        list(replacement(live, body)),
        preconditions=Preconditions.of(live),
    )
    after = _content(result)
    is_own = known is None or known.intent != intent
    found = [
        Difference(path, _writer(live, last, is_own=is_own))
        for path, last in _changes(before, after)
    ]
    reverted = [difference for difference in found if difference.manager]
    kept[name] = _counted(known, Kept(intent, digest(after)), reverted, now_ms)
    return Whole(result, reverted)


def fought_for(kept: Mapping[str, Kept], name: str, now_ms: int) -> Refusal | None:
    """Return a refusal when another manager repeatedly changes an object after each revert."""
    known = kept.get(name)
    if known is None or known.repairs < REPAIRS_MAX or now_ms - known.since_ms >= REPAIRS_MS:
        return None
    return Refusal("Contested", f"{known.rival} changes it repeatedly")


def _counted(known: Kept | None, made: Kept, drifted: list[Difference], now_ms: int) -> Kept:
    if not drifted:
        return made
    is_soon = known is not None and now_ms - known.since_ms < REPAIRS_MS
    repairs = known.repairs + 1 if known is not None and is_soon else 1
    since_ms = known.since_ms if known is not None and is_soon else now_ms
    return Kept(made.intent, made.live, repairs, since_ms, drifted[0].manager)


# -- writes ---------------------------------------------------------------------------------------


def replacement(live: Object, body: Object) -> Iterator[dict[str, Any]]:
    """Yield JSON Patch operations that turn a live object into the rendered one."""
    for part in _METADATA:
        wanted = metadata_of(body).get(part)
        if part in _NOTED:
            wanted = _noted_by_controllers(live, part) | dict(wanted or {})
        yield from _replaced("/metadata", part, metadata_of(live), {part: wanted} if wanted else {})
    if kind_of(body) in _OPEN:
        for name in _OPEN[kind_of(body)]:
            yield from _replaced("/spec", name, live["spec"], body["spec"])
        return
    for name in {**live, **body}:
        is_theirs = name in _OF_OTHERS and _is_of_controllers(live, name)
        if name not in _UNCOMPARED and not is_theirs:
            yield from _replaced("", name, live, body)


def _replaced(
    at: str, name: str, live: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    if name in wanted:
        yield {"op": "add", "path": f"{at}/{name}", "value": wanted[name]}
    elif name in live:
        yield {"op": "remove", "path": f"{at}/{name}"}


def _entries(
    live: Object, *, with_status: bool = False
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """List managed fields: manager, operation, fields; with those of the status on request."""
    return [
        (str(entry.get("manager")), str(entry.get("operation")), entry.get("fieldsV1") or {})
        for entry in metadata_of(live).get("managedFields") or ()
        if with_status or not entry.get("subresource")
    ]


def _noted_by_controllers(live: Object, part: str) -> dict[str, str]:
    """Return labels or annotations that neither the operator nor a user wrote.

    The Deployment controller writes its annotations together with the status.
    """
    present = metadata_of(live).get(part) or {}
    theirs = {
        segment[2:]
        for manager, _, fields in _entries(live, with_status=True)
        if manager != FIELD_MANAGER and not manager.startswith(PEOPLE)
        for segment in (fields.get("f:metadata") or {}).get(f"f:{part}") or {}
    }
    return {name: value for name, value in present.items() if name in theirs}


def _is_of_controllers(live: Object, name: str) -> bool:
    return any(
        f"f:{name}" in fields and manager != FIELD_MANAGER and not manager.startswith(PEOPLE)
        for manager, _, fields in _entries(live)
    )


# -- comparison -----------------------------------------------------------------------------------


def _content(body: Object) -> dict[str, Any]:
    """Return the parts of an object that the operator compares."""
    spec = {name: value for name, value in body.items() if name not in _UNCOMPARED}
    if kind_of(body) in _OPEN:
        given = body.get("spec") or {}
        spec["spec"] = {name: given[name] for name in _OPEN[kind_of(body)] if name in given}
    metadata = metadata_of(body)
    return {"metadata": {part: metadata[part] for part in _METADATA if metadata.get(part)}} | spec


def _is_untouched(live: Object, body: Object) -> bool:
    """Return whether only applies of the operator wrote an object, and nothing is missing.

    For a set this is unknown: the API server normalises quantities of its template.
    """
    entries = _entries(live)
    is_own = bool(entries) and all(
        (manager, operation) == (FIELD_MANAGER, "Apply") for manager, operation, _ in entries
    )
    if not is_own or kind_of(live) == SETS:
        return False
    if kind_of(live) in _OPEN:  # immutable fields keep their first value, whatever is rendered now
        given = {name: body["spec"][name] for name in _OPEN[kind_of(live)] if name in body["spec"]}
        body = body | {"spec": live["spec"] | given}
    return not differences(live, body)


def _changes(before: Any, after: Any, at: str = "", last: str = "") -> Iterator[tuple[str, str]]:
    """Yield paths at which two objects differ, each with the name of its last field."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from _changes(before.get(name), after.get(name), f"{at}.{name}", name)
    elif _are_named(before) and _are_named(after):
        old, new = ({item["name"]: item for item in items} for items in (before, after))
        for name in {**old, **new}:
            yield from _changes(old.get(name), new.get(name), f"{at}[name={name}]", last)
    elif before != after:
        yield at, last


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value)


def _writer(live: Object, name: str, *, is_own: bool) -> str:
    """Return the manager of a field; empty where the operator's own intent has changed."""
    others = [
        (manager, json.dumps(fields))
        for manager, _, fields in _entries(live)
        if manager != FIELD_MANAGER
    ]
    for manager, fields in others:
        if f'"f:{name}"' in fields:
            return manager
    if is_own:
        return ""
    return others[-1][0] if others else UNKNOWN_MANAGER
