"""Server-side apply in memory: owners of fields, and results of merges.

It works like the API server, with three simplifications: only lists in `LIST_KEYS` are maps, and
all other lists are atomic, like the objects of `_WHOLE`; there are no defaults; and there is no
schema.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")

Path: TypeAlias = tuple[str, ...]
"""Segments as in `fieldsV1`: `f:name` and `k:{"name":"x"}`."""

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "listeners": ("name",),
    "ownerReferences": ("uid",),
    "partitionDetails": ("partition",),
    "replaceBrokers": ("broker",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Fields that are lists of items with keys."""

_KEYS_BY_ITEMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "brokers": (("id",), ("broker",)),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
}
"""Likewise, with other keys at each place: used if every item has the first key."""

_WHOLE = frozenset(
    {
        "configMapKeyRef",
        "fieldRef",
        "labelSelector",
        "namespaceSelector",
        "nodeSelector",
        "ownerReferences",
        "podSelector",
        "resourceFieldRef",
        "secretKeyRef",
        "selector",
    }
)
"""Fields that are owned and replaced as a whole; in a list with keys, each item."""

_UNOWNED = {
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
        )
    ),
}


def copied(value: _T) -> _T:
    """Return a copy of JSON values, many times faster than `deepcopy`."""
    made: Any = value
    if isinstance(value, dict):  # most values are text, which needs no call
        made = {
            name: inner if type(inner) is str else copied(inner) for name, inner in value.items()
        }
    elif isinstance(value, list | tuple):
        made = [copied(one) for one in value]
    found: _T = made
    return found


def leaves(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield all leaves of an object that a manager can own."""
    if _is_whole(at):
        yield at
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            if at != ("f:metadata",) or name != "managedFields":
                yield from leaves(inner, (*at, f"f:{name}"))
    elif keys := _keys(at, value):  # an empty list with keys has no owner
        for item in value:
            here = (*at, _segment(item, keys))
            yield from leaves(item, here)
    elif at not in _UNOWNED:
        yield at


def nested(paths: Iterable[Path]) -> dict[str, Any]:
    """Return paths as `fieldsV1`."""
    found: dict[str, Any] = {}
    for path in sorted(paths):
        here = found
        for number, segment in enumerate(path, 1):
            here = here.setdefault(segment, {})
            if segment.startswith("k:") and number < len(path):
                here.setdefault(".", {})
    return found


def paths_of(fields: Mapping[str, Any], at: Path = ()) -> Iterator[Path]:
    """Yield the leaves of a `fieldsV1`."""
    for segment, inner in fields.items():
        if segment == ".":
            continue
        if inner:
            yield from paths_of(inner, (*at, segment))
        else:
            yield (*at, segment)


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path; None for none."""
    for segment in path:
        if segment.startswith("k:"):
            value = _find(value, json.loads(segment[2:]))
        else:
            value = value.get(segment[2:]) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


def merged(live: Any, intent: Any, at: Path = ()) -> Any:
    """Return the live object merged with the intent."""
    if isinstance(intent, dict) and isinstance(live, dict) and not _is_whole(at):
        found = dict(live)
        for name, inner in intent.items():
            found[name] = merged(live.get(name), inner, (*at, f"f:{name}"))
        return found
    keys = _keys(at, intent)
    if keys and isinstance(live, list):
        return list(_merged_items(live, intent, keys, at))
    return copied(intent)


def _merged_items(
    live: Sequence[Any], intent: Sequence[Any], keys: tuple[str, ...], at: Path
) -> Iterator[Any]:
    """Merge the items of both lists: in the order of the intent, other items at their place.

    As structured-merge-diff orders them (`visitListItems` of typed/merge.go).
    """
    theirs = [_segment(item, keys) for item in intent]
    mine = [_segment(item, keys) for item in live]
    for name, item in zip(theirs, intent, strict=True):
        before = _find(live, {key: item[key] for key in keys if key in item})
        if before is not None:
            mine[live.index(before)] = name  # it may have default keys that no manager set
    meant, known = set(theirs), dict(zip(mine, live, strict=True))
    shared = [one for one in theirs if one in known]
    done: set[str] = set()
    left, right = 0, 0
    while left < len(mine) or right < len(theirs):
        both = left < len(mine) and right < len(theirs)
        if both and mine[left] != theirs[right]:
            name = mine[left]
            if name in meant and (not shared or name != shared[0]):
                left += 1
                continue
        if left < len(mine) and not (both and mine[left] == theirs[right]):
            if mine[left] not in meant:
                yield copied(live[left])
                left += 1
                continue
            if mine[left] in done:
                left += 1
                continue
        name = theirs[right]
        left += both and mine[left] == name
        yield merged(known.get(name), intent[right], (*at, name))
        done.add(name)
        if shared and shared[0] == name:
            del shared[0]
        right += 1


def without(value: Any, path: Path) -> None:
    """Remove the value at a path, and empty containers above it."""
    if not path or value is None:
        return
    segment, rest = path[0], path[1:]
    if segment.startswith("k:"):
        keys = json.loads(segment[2:])
        item = _find(value, keys)
        if item is not None:
            if len(rest) != 1 or rest[0][2:] not in keys:  # an item keeps its keys until removal
                without(item, rest)
            # An empty list has no owner, and goes with the item.
            if not rest or {part for part, inner in item.items() if inner != []} <= set(keys):
                value.remove(item)
        return
    name = segment[2:]
    if not isinstance(value, dict) or name not in value:
        return
    if rest:
        without(value[name], rest)
        if value[name] in ({}, []):
            del value[name]
    else:
        del value[name]


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector of `a=b`, `a!=b`, `a` and `!a`."""
    for part in filter(None, selector.split(",")):
        name, unequal, value = part.partition("!=")
        if unequal:
            is_met = labels.get(name) != value
        elif part.startswith("!"):
            is_met = part[1:] not in labels
        else:
            name, equal, value = part.partition("=")
            is_met = labels.get(name) == value.lstrip("=") if equal else name in labels
        if not is_met:
            return False
    return True


def has_fields(selector: str, body: Mapping[str, Any]) -> bool:
    """Return whether fields match a selector of `a.b=c`."""
    for part in filter(None, selector.split(",")):
        path, _, value = part.partition("=")
        found: Any = body
        for name in path.split("."):
            found = (found or {}).get(name)
        if str(found or "") != value:
            return False
    return True


def _is_whole(at: Path) -> bool:
    """Return whether the value at a path has no parts that a manager can own."""
    if not at:
        return False
    if at[-1].startswith("k:"):
        return at[-2][2:] in _WHOLE
    return at[-1][2:] in _WHOLE and at[-1][2:] not in LIST_KEYS


def _keys(at: Path, value: Any) -> tuple[str, ...]:
    """Return the keys of a list's items; none for an atomic list and for everything else."""
    if not isinstance(value, list) or not at or not all(isinstance(one, dict) for one in value):
        return ()
    if at[:2] == ("f:status", "f:listeners") and len(at) > 2:
        return ()  # the value is a whole
    name = at[-1][2:]
    for keys in _KEYS_BY_ITEMS.get(name, ()):
        if all(keys[0] in item for item in value):
            return keys
    return LIST_KEYS.get(name, ())


def _segment(item: Mapping[str, Any], keys: Iterable[str]) -> str:
    found = {key: item[key] for key in keys if key in item}
    return "k:" + json.dumps(found, separators=(",", ":"), sort_keys=True)


def _find(items: Any, match: Mapping[str, Any]) -> Any:
    if not isinstance(items, list):
        return None
    return next(
        (one for one in items if all(one.get(key) == value for key, value in match.items())), None
    )
