"""Every change of an object that a user could make: change, add or remove each field.

    for change in perturbations(live):
        kube.edit(kind, namespace, name, change.apply)

The changes are derived from the current object, so that they include fields rendered in future.
Fields that users cannot change (uid, status) are left out; the server decides on refusals.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from liftbridge_operator.kube.port import Object
from liftbridge_testkit.kube.fields import copied

ADDED: Final = "perturbed"
_METADATA: Final = ("labels", "annotations", "ownerReferences")
_LEFT_OUT: Final = ("apiVersion", "kind", "metadata", "status")
_KEPT_AS_THEY_ARE: Final = ("name", "namespace", *_METADATA)

TRIES_MAX: Final = 8
"""Number of refused changes of a kind before a label is changed, which is always accepted."""

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Perturbation:
    """One change.

    Attributes:
        what: `change`, `remove` or `add`.
        place: Names of fields and numbers of items.
    """

    what: str
    place: Place

    def __str__(self) -> str:
        return f"{self.what} {'.'.join(map(str, self.place))}"

    def apply(self, body: Object) -> None:
        """Apply the change."""
        *parents, last = self.place
        at: Any = body
        for part in parents:
            at = at[part]
        if self.what == "remove":
            del at[last]
        elif self.what == "add":
            at[last].append(_one_more(at[last])) if isinstance(at[last], list) else at[last].update(
                {ADDED: ADDED}
            )
        else:
            at[last] = _other(at[last])


def perturbations(body: Object) -> Iterator[Perturbation]:
    """Yield all changes, in the order of the object."""
    for part in _METADATA:
        if body["metadata"].get(part):
            yield from _of(body["metadata"][part], ("metadata", part))
    for name, value in body.items():
        if name not in _LEFT_OUT:
            yield from _of(value, (name,))


def distinct(changes: Iterable[Perturbation]) -> list[Perturbation]:
    """Return one of each group of changes that differ only by the number of an item."""
    shapes: dict[tuple[str, Place], Perturbation] = {}
    for change in changes:
        place = tuple("*" if isinstance(part, int) else part for part in change.place)
        shapes.setdefault((change.what, place), change)
    return list(shapes.values())


class Done(NamedTuple):
    """An accepted change.

    Attributes:
        change: The change.
        before: The object before the change.
    """

    change: Perturbation
    before: Object


def one_of_each_kind(
    live: Iterable[Object],
    what: str,
    rng: Random,
    *,
    may_change: Callable[[Object, Perturbation], bool],
    replace: Callable[[Object], Object | None],
) -> list[Done]:
    """Change, add or remove a random field of one object of each kind.

    Args:
        live: Current objects.
        what: As in `Perturbation`.
        rng: Random source.
        may_change: Whether to try a change.
        replace: Writes an object; returns the stored object, or None if it was refused.

    Raises:
        AssertionError: No change of some kind was accepted.
    """
    kinds: dict[str, list[tuple[Object, Perturbation]]] = {}
    for body in live:
        kinds.setdefault(body["kind"], []).extend(
            (body, perturbation)
            for perturbation in perturbations(body)
            if perturbation.what == what and may_change(body, perturbation)
        )
    return [_first_taken(kind, choices, rng, replace) for kind, choices in sorted(kinds.items())]


def _first_taken(
    kind: str,
    choices: list[tuple[Object, Perturbation]],
    rng: Random,
    replace: Callable[[Object], Object | None],
) -> Done:
    rng.shuffle(choices)
    labels = [one for one in choices if one[1].place[:2] == ("metadata", "labels")]
    for body, change in (*choices[:TRIES_MAX], *labels):
        made = copied(body)
        change.apply(made)
        stored = replace(made)
        # A value that is filled in again is no change.
        if stored is not None and content(stored) != content(body):
            return Done(change, body)
    raise AssertionError(f"nothing of {kind} could be done: {len(choices)} changes to choose from")


def content(body: Object) -> Object:
    """Return an object without fields that change by themselves."""
    metadata = {name: body["metadata"].get(name) for name in _KEPT_AS_THEY_ARE}
    return {**{k: v for k, v in body.items() if k != "status"}, "metadata": metadata}


def _of(value: Any, place: Place) -> Iterator[Perturbation]:
    yield Perturbation("remove", place)
    if isinstance(value, dict):
        yield Perturbation("add", place)
        for name, inner in value.items():
            yield from _of(inner, (*place, name))
    elif isinstance(value, list):
        yield Perturbation("add", place)
        for number, inner in enumerate(value):
            yield from _of(inner, (*place, number))
    else:
        yield Perturbation("change", place)


def _other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return f"{value}-{ADDED}"


def _one_more(items: list[Any]) -> Any:
    """Return another item like the existing items."""
    if not items:
        return ADDED
    made = copied(items[-1])
    if not isinstance(made, dict):
        return _other(made)
    first = next(iter(made), None)
    if first is not None and not isinstance(made[first], dict | list):
        made[first] = _other(made[first])
    return made
