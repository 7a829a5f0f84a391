"""Objects kept whole: what somebody changed, added or took away is put back by one replacement.

An apply leaves alone what others added, so it is not enough. What the API server makes of the
intent, with everything that it fills in, is remembered by its digest; an object that is another one
by now is replaced. A replacement that changes nothing costs no version, and an object at rest costs
no write at all.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from liftbridge_operator.acting.hands import Hands, Kept
from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import SETS, kind_of
from liftbridge_operator.kube.port import FIELD_MANAGER, Object, Preconditions
from liftbridge_operator.observing.objects import metadata_of
from liftbridge_operator.planning.refusals import Refusal
from liftbridge_operator.rendering.revision import digest

PEOPLE: Final = "kubectl"
"""Managers whose names begin so are people; what other controllers note on an object is theirs."""

SOMEBODY: Final = "somebody"
REPAIRS_MAX: Final = 5
REPAIRS_MS: Final = 60_000
"""Repairs of one object in this time, after which somebody else is taken to fight for it."""

_UNCOMPARED: Final = ("apiVersion", "kind", "metadata", "status")
_METADATA: Final = ("labels", "annotations", "ownerReferences")
_NOTED: Final = ("labels", "annotations")
_OF_OTHERS: Final = ("secrets", "imagePullSecrets")
"""Fields of a ServiceAccount that controllers of some distributions write."""

_SET_FIELDS: Final = (
    "template",
    "updateStrategy",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
    "revisionHistoryLimit",
    "ordinals",
)
"""Fields of a set that can change and are the operator's; replicas are the planner's."""


def shown(body: Object) -> str:
    """An object, for people."""
    return f"{body['kind']}/{metadata_of(body)['name']}"


async def keep_whole(hands: Hands, body: Object, live: Object) -> list[Difference]:
    """Bring an object that is there to what was rendered, and nothing beside.

    Returns:
        What somebody else had changed.

    Raises:
        KubeError: The call failed.
    """
    name = shown(body)
    intent, before = digest(_content(body)), _content(live)
    known = hands.kept.get(name)
    if known is not None and (known.intent, known.live) == (intent, digest(before)):
        return []
    if known is None and _is_untouched(live, body):
        hands.kept[name] = Kept(intent, digest(before))
        return []
    result = await hands.kube.patch(
        kind_of(body),
        hands.cluster.namespace,
        str(metadata_of(body)["name"]),
        list(replacement(live, body)),
        preconditions=Preconditions.of(live),
    )
    after = _content(result)
    is_own = known is None or known.intent != intent
    found = [
        Difference(path, _writer(live, path, is_own=is_own)) for path in _changes(before, after)
    ]
    told = [one for one in found if one.manager]
    hands.kept[name] = _counted(hands, known, Kept(intent, digest(after)), told)
    return told


def fought_for(hands: Hands, name: str) -> Refusal | None:
    """That somebody else changes an object again and again, once it was changed back."""
    known = hands.kept.get(name)
    if known is None or known.repairs < REPAIRS_MAX:
        return None
    return Refusal("Contested", f"{known.rival} changes it again and again")


def _counted(hands: Hands, known: Kept | None, made: Kept, told: list[Difference]) -> Kept:
    if not told:
        return made
    is_soon = known is not None and hands.now_ms - known.since_ms < REPAIRS_MS
    repairs = known.repairs + 1 if known is not None and is_soon else 1
    since_ms = known.since_ms if known is not None and is_soon else hands.now_ms
    return Kept(made.intent, made.live, repairs, since_ms, told[0].manager)


# -- what is written ------------------------------------------------------------------------------


def replacement(live: Object, body: Object) -> Iterator[dict[str, Any]]:
    """Operations that make a live object the rendered one."""
    for part in _METADATA:
        wanted = metadata_of(body).get(part)
        if part in _NOTED:
            wanted = _noted_by_controllers(live, part) | dict(wanted or {})
        yield from _replaced("/metadata", part, metadata_of(live), {part: wanted} if wanted else {})
    if kind_of(body) == SETS:
        for name in _SET_FIELDS:
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


def _entries(live: Object) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Who wrote which fields, but for those of the status."""
    return [
        (str(one.get("manager")), str(one.get("operation")), one.get("fieldsV1") or {})
        for one in metadata_of(live).get("managedFields") or ()
        if not one.get("subresource")
    ]


def _noted_by_controllers(live: Object, part: str) -> dict[str, str]:
    """Labels or annotations that neither the operator nor a person wrote."""
    present = metadata_of(live).get(part) or {}
    theirs = {
        segment[2:]
        for manager, _, fields in _entries(live)
        if manager != FIELD_MANAGER and not manager.startswith(PEOPLE)
        for segment in (fields.get("f:metadata") or {}).get(f"f:{part}") or {}
    }
    return {name: value for name, value in present.items() if name in theirs}


def _is_of_controllers(live: Object, name: str) -> bool:
    return any(
        f"f:{name}" in fields and manager != FIELD_MANAGER and not manager.startswith(PEOPLE)
        for manager, _, fields in _entries(live)
    )


# -- what is compared -----------------------------------------------------------------------------


def _content(body: Object) -> dict[str, Any]:
    """An object without what the API server and controllers keep of it for themselves."""
    spec = {name: value for name, value in body.items() if name not in _UNCOMPARED}
    if kind_of(body) == SETS:
        given = body.get("spec") or {}
        spec["spec"] = {name: given[name] for name in _SET_FIELDS if name in given}
    metadata = metadata_of(body)
    return {"metadata": {part: metadata[part] for part in _METADATA if metadata.get(part)}} | spec


def _is_untouched(live: Object, body: Object) -> bool:
    """Whether an object was written by applies of the operator alone, and nothing is missing.

    Of a set that cannot be told: quantities of its template come back in other words.
    """
    entries = _entries(live)
    is_own = bool(entries) and all(
        (manager, operation) == (FIELD_MANAGER, "Apply") for manager, operation, _ in entries
    )
    return is_own and kind_of(live) != SETS and not differences(live, body)


def _changes(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Paths at which two objects differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from _changes(before.get(name), after.get(name), f"{at}.{name}")
    elif _are_named(before) and _are_named(after):
        old, new = ({one["name"]: one for one in items} for items in (before, after))
        for name in {**old, **new}:
            yield from _changes(old.get(name), new.get(name), f"{at}[name={name}]")
    elif before != after:
        yield at


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value)


def _writer(live: Object, path: str, *, is_own: bool) -> str:
    """Who wrote a field; empty where the operator itself means something else by now."""
    others = [
        (manager, json.dumps(fields))
        for manager, _, fields in _entries(live)
        if manager != FIELD_MANAGER
    ]
    last = f'"f:{path.rpartition(".")[2].partition("[")[0]}"'
    for manager, fields in others:
        if last in fields:
            return manager
    if is_own:
        return ""
    return others[-1][0] if others else SOMEBODY
