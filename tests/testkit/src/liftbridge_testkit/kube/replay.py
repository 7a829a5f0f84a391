"""Play a trace of an API server against the model of an API server, and find the first difference.

    found = await replay(lines)
    assert found is None, found

Each answer is compared: success or the same refusal; the object; owners of its fields. Uids must be
equal, and resource versions equal or larger, wherever they were in the trace. The model has no
schemas, so the server may have fields that the model lacks, as long as no request named them.
Fields that a request wrote or removed are compared in both directions.
"""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from liftbridge_operator.cluster.observing.objects import bytes_of
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.port import Kube
from liftbridge_testkit.kube.fields import paths_of
from liftbridge_testkit.kube.memory import MemoryKube, pointer
from liftbridge_testkit.kube.trace import UID, Line, answer_of, arguments_of, error_of

Path = tuple[str, ...]
Named = set[Path]
"""Paths in an object that a request named, with `*` for the items of a list."""

_OWN_UID: Final = re.compile(r"\buid-\d+\b")
_NEVER: Final = "999999999"
_SERVERS: Final = frozenset({"managedFields", "resourceVersion", "uid"})
"""Fields of metadata that are compared separately."""


class Difference(NamedTuple):
    """Difference between an answer of the model and the recorded one.

    Attributes:
        number: Number of the line, from 1.
        line: Request and answer of the server.
        what: Path in the answer.
        server: Value of the server.
        model: Value of the model.
    """

    number: int
    line: Line
    what: str
    server: Any
    model: Any

    def __str__(self) -> str:
        """Return the difference on a few lines."""
        line = self.line
        return (
            f"line {self.number}, {line.who}: {line.verb} {' '.join(line.place)}\n"
            f"asked: {json.dumps(line.asked)}\n{self.what}\n"
            f"  server: {json.dumps(self.server)}\n  model:  {json.dumps(self.model)}"
        )


class _DiffersError(Exception):
    def __init__(self, what: str, server: Any, model: Any) -> None:
        super().__init__(what)
        self.found = (what, server, model)


class Replay:
    """A trace played against a model.

    Attributes:
        model: The API server in memory.
        named: Paths that requests named so far, by object.
    """

    def __init__(self, model: MemoryKube, port: Callable[[MemoryKube], Kube] | None = None) -> None:
        """Create a replay at its beginning.

        Args:
            model: Empty model.
            port: Port to call instead of the model itself.
        """
        self.model = model
        self.named: defaultdict[tuple[str, str, str], Named] = defaultdict(set)
        self._port = model if port is None else port(model)
        self._uids: dict[str, str] = {}
        self._versions: list[tuple[int, int]] = []
        self._count = 0

    async def play(self, line: Line) -> Difference | None:
        """Send a request of the trace to the model; return the difference of the answers."""
        self._count += 1
        if not line.error:
            self.named[line.place] |= set(_named_by(line))
        self.model.manager = line.who
        try:
            answer = answer_of(await getattr(self._port, line.verb)(**self.arguments(line)))
        except KubeError as error:
            answer = {"error": error_of(error)}
        try:
            self._compare(line, answer)
        except _DiffersError as error:
            return Difference(self._count, line, *error.found)
        return None

    def _version(self, theirs: str) -> str:
        """Return the model's resource version for a version of the trace."""
        if not theirs:
            return ""
        place = bisect_left(self._versions, (int(theirs),))
        known = self._versions[place : place + 1]
        return str(known[0][1]) if known and known[0][0] == int(theirs) else _NEVER

    def arguments(self, line: Line) -> dict[str, Any]:
        """Return the request for the model, with the model's own uids and versions."""
        asked = json.loads(
            UID.sub(lambda met: self._uids.get(met[0], met[0]), json.dumps(line.asked))
        )
        meant = asked.get("preconditions", {})
        if "resource_version" in meant:
            meant["resource_version"] = self._version(meant["resource_version"])
        metadata = asked.get("body", {}).get("metadata", {})
        if "resourceVersion" in metadata:
            metadata["resourceVersion"] = self._version(metadata["resourceVersion"])
        return arguments_of(asked)

    # -- the answer ---------------------------------------------------------------------------

    def _compare(self, line: Line, answer: dict[str, Any]) -> None:
        theirs = line.answer
        if theirs.get("error") != answer.get("error"):
            told = [one.get("error", "success") for one in (theirs, answer)]
            raise _DiffersError("outcome", *told)
        if "items" in theirs:
            found = [
                [one["metadata"]["name"] for one in each["items"]] for each in (theirs, answer)
            ]
            if found[0] != found[1]:
                raise _DiffersError("names of the list", *found)
            for server, model in zip(theirs["items"], answer["items"], strict=True):
                self._compare_objects(server, model)
        elif "object" in theirs:
            self._compare_objects(theirs["object"], answer["object"])

    def _compare_objects(self, server: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self._learn_uid(server["metadata"]["uid"], model["metadata"]["uid"])
        self._learn_version(server, model)
        ours = {uid: theirs for theirs, uid in self._uids.items()}
        text = json.dumps(model)
        model = json.loads(_OWN_UID.sub(lambda met: ours.get(met[0], met[0]), text))
        metadata = server["metadata"]
        kind = f"{server['apiVersion']} {server['kind']}"
        named = self.named[kind, metadata.get("namespace", ""), metadata["name"]]
        for what, *sides in _unlike(server, model, named):
            raise _DiffersError(what, *sides)
        owners = [_owners(one) for one in (server, model)]
        if set(owners[0]) != set(owners[1]):
            raise _DiffersError("owners", *(sorted(map(list, owner)) for owner in owners))
        for who, mine in owners[1].items():
            if who[1] == "Apply" and mine != owners[0][who]:
                theirs = owners[0][who]
                sides = [sorted(map("".join, one)) for one in (theirs - mine, mine - theirs)]
                raise _DiffersError(f"fields that only one side has of {who}", *sides)

    def _learn_uid(self, server: str, model: str) -> None:
        known = self._uids.setdefault(server, model)
        if known != model or list(self._uids.values()).count(model) != 1:
            raise _DiffersError("metadata.uid", server, f"{model}, and before {known}")

    def _learn_version(self, server: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        pair = tuple(int(one["metadata"]["resourceVersion"]) for one in (server, model))
        place = bisect_left(self._versions, (pair[0],))
        below, above = self._versions[max(place - 1, 0) : place], self._versions[place : place + 1]
        if above == [pair]:
            return
        is_known = bool(above) and above[0][0] == pair[0]
        if (
            is_known
            or any(one[1] >= pair[1] for one in below)
            or any(one[1] <= pair[1] for one in above)
        ):
            raise _DiffersError("metadata.resourceVersion", [pair[0], *below, *above], pair[1])
        self._versions.insert(place, (pair[0], pair[1]))


async def replay(
    lines: Iterable[Line],
    port: Callable[[MemoryKube], Kube] | None = None,
) -> Difference | None:
    """Return the first difference between a trace and an initially empty model; None for none."""
    played = Replay(MemoryKube(collects=False), port)
    for line in lines:
        found = await played.play(line)
        if found is not None:
            return found
    return None


def _named_by(line: Line) -> Iterator[Path]:
    """Yield the paths that a request names."""
    if "body" in line.asked:
        yield from _places(line.asked["body"])
    changes = line.asked.get("changes", ())
    if isinstance(changes, dict):
        yield from _places(changes)
        return
    for change in changes:
        at = tuple(
            "*" if part.isdecimal() or part == "-" else part for part in pointer(change["path"])
        )
        yield at
        yield from _places(change.get("value"), at)


def _places(value: Any, at: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name)
            yield from _places(inner, (*at, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _places(inner, (*at, "*"))


def _unlike(server: Any, model: Any, named: Named, at: Path = ()) -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths at which the model's object differs."""
    where = ".".join(at)
    if isinstance(server, dict) and isinstance(model, dict):
        for name in sorted({*server, *model}):
            if at == ("metadata",) and name in _SERVERS:
                continue
            here = (*at, name)
            if name not in model and here not in named and here not in _TOLD:
                continue  # filled in by the server
            yield from _unlike(server.get(name), model.get(name), named, here)
    elif isinstance(server, list) and isinstance(model, list) and len(server) == len(model):
        for one, other in zip(server, model, strict=True):
            yield from _unlike(one, other, named, (*at, "*"))
    elif server != model and not _is_alike(server, model):
        yield where, server, model


_TOLD: Final = frozenset(
    ("metadata", name) for name in ("deletionTimestamp", "finalizers", "generation")
)
"""Fields that both the server and the model fill in."""


def _is_alike(server: Any, model: Any) -> bool:
    """Return whether both are equivalent: a missing or empty value, or the same quantity."""
    if all(one is None or one in (0, "", [], {}) for one in (server, model)):
        return True
    are_texts = isinstance(server, str) and isinstance(model, str)
    return are_texts and bytes_of(server) == bytes_of(model) != 0


def _owners(value: Mapping[str, Any]) -> dict[tuple[str, str, str], set[Path]]:
    return {
        (one["manager"], one["operation"], one.get("subresource", "")): set(
            paths_of(one["fieldsV1"])
        )
        for one in value["metadata"].get("managedFields", ())
    }
