"""Compute what an apply would change, by a pure comparison of live and intended objects.

An apply that changes nothing is still a request to the API server, so a pass compares first and
applies only objects that differ. The differences are also the drift that is recorded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from liftbridge_operator.kube.port import FIELD_MANAGER

_UNCOMPARED: Final = ("apiVersion", "kind", "status")
_UNCOMPARED_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "managedFields")


class Difference(NamedTuple):
    """A field that is not as intended.

    Attributes:
        field: Path, such as `.spec.template.spec.containers[name=broker].image`.
        manager: Present owner of the field; empty for none, or for this manager itself.
    """

    field: str
    manager: str


def differences(
    live: Mapping[str, Any], intent: Mapping[str, Any], *, manager: str = FIELD_MANAGER
) -> tuple[Difference, ...]:
    """Return the fields that an apply of the intent would change, in the order of the intent.

    Quantities and other values must have the API server's canonical form; defaulted fields are
    ignored as long as the intent does not name them. Of `metadata` only fields that can be applied
    are compared, and the status is not.

    Args:
        live: The object as read.
        intent: The object as it would be applied.
        manager: Manager whose former intent counts: fields that it owns by an apply and no longer
            names are differences as well.
    """
    entries = live["metadata"].get("managedFields") or ()
    keys = _item_keys(entries)
    compared = {name: value for name, value in intent.items() if name not in _UNCOMPARED}
    compared["metadata"] = {
        name: value
        for name, value in intent["metadata"].items()
        if name not in _UNCOMPARED_METADATA
    }
    own = [
        entry["fieldsV1"]
        for entry in entries
        if (entry["manager"], entry["operation"]) == (manager, "Apply")
        and not entry.get("subresource")
    ]
    found = dict.fromkeys(
        path
        for path in _differing(live, compared, (), keys)
        if not _is_dropped(path, live, compared, own)
    )
    for fields in own:
        found |= dict.fromkeys(_left_out(fields, intent, ()))
    return tuple(Difference(_shown(path), _owner(entries, path, manager)) for path in found)


Path = tuple[str, ...]


def _differing(
    live: Any, intent: Any, at: Path, keys: Mapping[Path, tuple[str, ...]]
) -> Iterator[Path]:
    """Yield paths whose live value is not the intended one."""
    if isinstance(intent, dict):
        if not isinstance(live, dict):
            yield at
            return
        for name, inner in intent.items():
            yield from _differing(live.get(name), inner, (*at, f"f:{name}"), keys)
    elif isinstance(intent, list) and (names := keys.get(_plain(at))):
        for item in intent:
            match = {name: item[name] for name in names if name in item}
            here = (*at, "k:" + json.dumps(match, separators=(",", ":")))
            yield from _differing(_find(live, match), item, here, keys)
    elif isinstance(intent, list) and isinstance(live, list) and len(live) == len(intent):
        # Items of an atomic list may have defaulted fields as well.
        pairs = zip(live, intent, strict=True)
        if any(next(_differing(*pair, (), {}), None) is not None for pair in pairs):
            yield at
    elif live != intent:
        yield at


def _is_dropped(path: Path, live: Any, intent: Any, own: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an empty value is missing because the API server does not store it.

    Then the managed fields show that the value was applied, unlike for a value that was removed.
    """
    for segment in path:
        live, intent = _at(live, segment), _at(intent, segment)
    return live is None and intent in ({}, []) and any(_below(one, path) is not None for one in own)


def _at(value: Any, segment: str) -> Any:
    if segment.startswith("k:"):
        return _find(value, json.loads(segment[2:]))
    return value.get(segment[2:]) if isinstance(value, dict) else None


def _below(fields: Mapping[str, Any] | None, path: Path) -> Mapping[str, Any] | None:
    """Return owned fields below a path; None when it is not owned."""
    for segment in path:
        fields = None if fields is None else _step(fields, segment)
    return fields


def _left_out(fields: Mapping[str, Any], intent: Any, at: Path) -> Iterator[Path]:
    """Yield owned paths that the intent does not name."""
    for segment, inner in fields.items():
        if segment == ".":
            continue
        here = (*at, segment)
        if segment.startswith("k:"):
            there = _find(intent, json.loads(segment[2:]))
        elif segment.startswith("v:"):
            value = json.loads(segment[2:])
            there = value if isinstance(intent, Sequence) and value in intent else None
        else:
            there = intent.get(segment[2:]) if isinstance(intent, dict) else None
        if there is None:
            yield here
        elif inner:
            yield from _left_out(inner, there, here)


def _item_keys(entries: Sequence[Mapping[str, Any]]) -> dict[Path, tuple[str, ...]]:
    """Return associative lists, found in managed fields, with the names of their keys."""
    found: dict[Path, tuple[str, ...]] = {}
    todo: list[tuple[Path, Any]] = [((), entry["fieldsV1"]) for entry in entries]
    while todo:
        at, fields = todo.pop()
        for segment, inner in fields.items():
            if segment.startswith("k:"):
                found[at] = tuple(json.loads(segment[2:]))
                todo.append(((*at, "k:"), inner))
            elif segment.startswith("f:"):
                todo.append(((*at, segment), inner))
    return found


def _plain(path: Path) -> Path:
    """Return a path without the values of keys."""
    return tuple("k:" if segment.startswith("k:") else segment for segment in path)


def _find(items: Any, match: Mapping[str, Any]) -> Any:
    if not isinstance(items, list):
        return None
    for item in items:
        # An unnamed key, such as the protocol of a port, has a default.
        if isinstance(item, dict) and all(
            item.get(n, value) == value for n, value in match.items()
        ):
            return item
    return None


def _owner(entries: Sequence[Mapping[str, Any]], path: Path, manager: str) -> str:
    """Return another manager that owns a path; empty for none."""
    for entry in entries:
        if entry["manager"] != manager and _below(entry["fieldsV1"], path) is not None:
            return str(entry["manager"])
    return ""


def _step(fields: Mapping[str, Any], segment: str) -> Mapping[str, Any] | None:
    """Return fields below a segment; its keys may be in another order than in the intent."""
    if segment in fields or not segment.startswith("k:"):
        return fields.get(segment)
    match = json.loads(segment[2:])
    for name, inner in fields.items():
        if name.startswith("k:") and json.loads(name[2:]) == match:
            return dict(inner)
    return None


def _shown(path: Path) -> str:
    text = ""
    for segment in path:
        if segment.startswith("f:"):
            text += f".{segment[2:]}"
        else:
            found = json.loads(segment[2:])
            inner = ",".join(f"{k}={v}" for k, v in found.items()) if segment[0] == "k" else found
            text += f"[{inner}]"
    return text
