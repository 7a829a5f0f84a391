"""Every change of an object that a person could make: of each field, to each field, without each.

    for change in perturbations(live):
        kube.edit(kind, namespace, name, change.apply)

Made from the object as it stands, so that a field that is rendered tomorrow is changed as well.
What people cannot change (uid, status) is left out; that a change is refused is for the server.
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
"""Changes of a kind that the API server may refuse before a label is changed, which it takes."""

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
        """Make it."""
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
    """Yield all of them, in the order of the object."""
    for part in _METADATA:
        if body["metadata"].get(part):
            yield from _of(body["metadata"][part], ("metadata", part))
    for name, value in body.items():
        if name not in _LEFT_OUT:
            yield from _of(value, (name,))


def distinct(changes: Iterable[Perturbation]) -> list[Perturbation]:
    """Return one of each group of changes that differ only by the number of an item."""
    shapes: dict[tuple[str, Place], Perturbation] = {}
    for one in changes:
        place = tuple("*" if isinstance(part, int) else part for part in one.place)
        shapes.setdefault((one.what, place), one)
    return list(shapes.values())


class Done(NamedTuple):
    """A change that was taken.

    Attributes:
        change: The change.
        before: The object before that.
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
    """Change, add or remove something of one object of each kind, as chance has it.

    Args:
        live: Objects as they stand.
        what: As of `Perturbation`.
        rng: Chance.
        may_change: Whether a change is to be tried.
        replace: Writes an object; what was stored, or None when that was refused.

    Raises:
        AssertionError: Of some kind nothing could be done.
    """
    kinds: dict[str, list[tuple[Object, Perturbation]]] = {}
    for body in live:
        kinds.setdefault(body["kind"], []).extend(
            (body, one) for one in perturbations(body) if one.what == what and may_change(body, one)
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
        # What is filled in with what it was before is no change.
        if stored is not None and content(stored) != content(body):
            return Done(change, body)
    raise AssertionError(f"nothing of {kind} could be done: {len(choices)} changes to choose from")


def content(body: Object) -> Object:
    """An object without what changes by itself."""
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
    """Return another item like those that are there."""
    if not items:
        return ADDED
    made = copied(items[-1])
    if not isinstance(made, dict):
        return _other(made)
    first = next(iter(made), None)
    if first is not None and not isinstance(made[first], dict | list):
        made[first] = _other(made[first])
    return made
