"""What differs between an object that exists and the one that was rendered.

Only fields that are rendered count: what the API server or anybody else adds is theirs. Fields that
were rendered once and are no more are not told; server-side apply takes them away.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from liftbridge_operator.model.values import size_bytes
from liftbridge_operator.rendering.subject import Object

_KEYS: Final = ("name", "containerPort", "port", "mountPath", "uid", "topologyKey", "key")
"""Fields that tell items of lists apart, the best first."""

_AMOUNTS: Final = frozenset({"requests", "limits"})
_SIZES: Final = frozenset({"sizeLimit", "storage", "memory", "cpu"})

Path = tuple[str, ...]


class Difference(NamedTuple):
    """One field that is not as it was rendered.

    Attributes:
        path: Such as `spec.ports[metrics].port`.
        live: Value there is; None for none.
        wanted: Value that was rendered.
        manager: Field manager that owns it now; empty when nobody says so.
    """

    path: str
    live: Any
    wanted: Any
    manager: str = ""


def drift(live: Object, wanted: Object) -> tuple[Difference, ...]:
    """Rendered fields that an object has otherwise, in the order of the rendered ones.

    Args:
        live: As the API server has it, with `managedFields` for the names of managers.
        wanted: As it was rendered.
    """
    owners = live.get("metadata", {}).get("managedFields", [])
    return tuple(
        Difference(_text(path), have, want, _manager(owners, path))
        for path, have, want in _compare((), live, wanted)
        if path[:1] not in {("apiVersion",), ("kind",)}
    )


def _compare(path: Path, live: Any, wanted: Any) -> Iterator[tuple[Path, Any, Any]]:
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for key, value in wanted.items():
            yield from _compare((*path, str(key)), live.get(key), value)
    elif _is_list(wanted) and _is_list(live):
        yield from _compare_lists(path, live, wanted)
    elif not _is_same(path, live, wanted):
        yield path, live, wanted


def _compare_lists(
    path: Path, live: Sequence[Any], wanted: Sequence[Any]
) -> Iterator[tuple[Path, Any, Any]]:
    key = _key_of(wanted)
    if not key:
        if len(live) != len(wanted):
            yield path, list(live), list(wanted)
            return
        for number, (have, want) in enumerate(zip(live, wanted, strict=True)):
            yield from _compare((*path, f"[{number}]"), have, want)
        return
    found = {one.get(key): one for one in live if isinstance(one, Mapping)}
    for one in wanted:
        yield from _compare((*path, f"[{one[key]}]"), found.get(one[key]), one)
    if _is_owned_whole(path):
        known = {one[key] for one in wanted}
        for name, one in found.items():
            if name not in known:
                yield (*path, f"[{name}]"), one, None


def _is_owned_whole(path: Path) -> bool:
    """Lists that nobody else may add to: a port or a container more is a change of ours."""
    return path[-1] in {"ports", "containers", "initContainers", "volumes", "volumeMounts", "env"}


def _key_of(items: Sequence[Any]) -> str:
    """Field that all items have, each with another value; empty for none."""
    for key in _KEYS:
        values = [one.get(key) if isinstance(one, Mapping) else None for one in items]
        if items and None not in values and len(set(map(str, values))) == len(values):
            return key
    return ""


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_same(path: Path, live: Any, wanted: Any) -> bool:
    """Whether two plain values are one to the API server, which drops what is empty."""
    if live == wanted or (live is None and wanted in ({}, [], "", 0, False)):
        return True
    is_amount = path[-1] in _SIZES or (len(path) > 1 and path[-2] in _AMOUNTS)
    if is_amount and isinstance(live, str | int) and isinstance(wanted, str | int):
        have, want = _amount(str(live)), _amount(str(wanted))
        return have is not None and have == want
    return False


def _amount(text: str) -> Decimal | None:
    """Value of a quantity; None for a text that is none."""
    try:
        if text.endswith("m"):
            return Decimal(text[:-1]) / 1_000
        return Decimal(text)
    except InvalidOperation:
        pass
    try:
        return Decimal(size_bytes(text))
    except ValueError:
        return None


def _text(path: Path) -> str:
    return "".join(part if part.startswith("[") else f".{part}" for part in path).lstrip(".")


def _manager(owners: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Who owns a field: the manager whose fields reach furthest down the path."""
    best, depth = "", 0
    for entry in owners:
        reached = _reach(entry.get("fieldsV1", {}), path)
        if reached > depth:
            best, depth = str(entry.get("manager", "")), reached
    return best


def _reach(fields: Mapping[str, Any], path: Path) -> int:
    """How many steps of a path a set of fields knows."""
    steps = 0
    for part in path:
        inner = fields.get(f"f:{part}")
        if part.startswith("["):
            name = part[1:-1]
            inner = next(
                (value for key, value in fields.items() if f'"{name}"' in key or f":{name}" in key),
                None,
            )
        if not isinstance(inner, Mapping):
            break
        fields = inner
        steps += 1
    return steps
