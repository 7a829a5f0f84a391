"""Traces of an API server against the model of the schedules, which has values instead of JSON.

    found = await replay_values(lines)
    assert found is None, found

The model in memory runs along: it got the same requests, answered like the server, and has the
objects before and after each request. The operator's requests are also sent to the model of the
schedules; changes by other clients are copied. Then the success or refusal, the value, and the
change of the version must be equal. Only objects of one cluster that the planner knows are
compared. Requests that only schemas or admission refuse are ignored.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import (
    budget_of,
    claim_of,
    identity_of,
    pod_of,
    set_of,
    version_of,
)
from liftbridge_operator.cluster.planning.observation import DesiredState, DesiredVolume
from liftbridge_operator.kube.kinds import BUDGETS, CLAIMS, CLUSTERS, CONFIG_MAPS, PODS, SETS, Kind
from liftbridge_operator.kube.port import FIELD_MANAGER, Object
from liftbridge_operator.model import names
from liftbridge_testkit.kube.memory import MemoryKube, patched
from liftbridge_testkit.kube.replay import Difference, Replay
from liftbridge_testkit.kube.trace import Line, kind_named
from liftbridge_testkit.operator_sim.api import Api, Resource
from liftbridge_testkit.operator_sim.errors import ApiError

_DESIRED: Final = DesiredState(
    name="c", generation=1, replicas=3, revision="r1", data_volume=DesiredVolume(1)
)
_CODES: Final[Mapping[str, int]] = {
    "": 0,
    "AlreadyExistsError": 409,
    "ConflictError": 409,
    "InvalidError": 422,
    "NotFoundError": 404,
}
_NEVER: Final = -1


async def replay_values(
    lines: Iterable[Line], cluster: str, api: Api | None = None
) -> Difference | None:
    """Return the first difference between a trace and the models, which begin empty.

    Args:
        lines: The trace.
        cluster: Name of the cluster to compare.
        api: The model of the schedules; None for a new one.
    """
    played = Replay(MemoryKube(collects=False))
    values = _Values(played, cluster, api or Api())
    for number, line in enumerate(lines, 1):
        before = values.look(line)
        found = await played.play(line)
        if found is None and values.concerns(line):
            found = values.play(number, line, before)
        if found is not None:
            return found
    return None


class _Values:
    """The model of the schedules beside the one in memory."""

    def __init__(self, played: Replay, cluster: str, api: Api) -> None:
        self._played = played
        self._cluster = cluster
        self._api = api
        self._uids: dict[str, str] = {}
        self._versions: dict[str, int] = {}

    def look(self, line: Line) -> Object | None:
        """Return the object of a line from memory."""
        kind, namespace, name = line.place
        return self._played.model.look(kind_named(kind), namespace, name)

    def concerns(self, line: Line) -> bool:
        """Return whether it is a write that this model supports."""
        kind, _, name = line.place
        known = {
            CLUSTERS: self._cluster,
            CONFIG_MAPS: names.identity(self._cluster),
            SETS: names.brokers(self._cluster),
            BUDGETS: names.brokers(self._cluster),
            PODS: f"{self._cluster}-{name.rpartition('-')[2]}",
            CLAIMS: f"{names.DATA_VOLUME}-{self._cluster}-{name.rpartition('-')[2]}",
        }
        is_write = line.verb not in {"get", "list_all"}
        is_known = known.get(kind_named(kind)) == name
        failed = line.error.get("class", "")
        by_schema = failed == "InvalidError" and kind_named(kind) != CLAIMS
        return is_write and is_known and failed in _CODES and not by_schema

    def play(self, number: int, line: Line, before: Object | None) -> Difference | None:
        """Send a request to the model, and compare the answers."""
        kind, after = kind_named(line.place[0]), self.look(line)
        was = self._value(kind, line.place[2])
        is_asked = line.who == FIELD_MANAGER and (kind, line.verb) != (CLUSTERS, "patch")
        if is_asked:
            refusal = self._ask(kind, line, before)
            meant = _CODES[line.error.get("class", "")]
            if refusal != meant:
                return Difference(number, line, "outcome", meant, refusal)
        if not is_asked or (line.verb == "patch" and self._is_beside(kind, before, after)):
            self._take_over(kind, line.place[2], before, after)
        now = self._value(kind, line.place[2])
        is_other = [
            _version(one) != _version(other) for one, other in ((before, after), (was, now))
        ]
        if kind != BUDGETS and is_other[0] != is_other[1]:
            return Difference(number, line, "another version", *is_other)
        self._learn(after, now)
        sides = [_plain(None if after is None else _OF[kind](after)), _plain(now)]
        return None if sides[0] == sides[1] else Difference(number, line, "value", *map(str, sides))

    @staticmethod
    def _is_beside(kind: Kind, before: Object | None, after: Object | None) -> bool:
        """Return whether only parts of an object changed that this model does not have."""
        if kind == BUDGETS or before is None or after is None:
            return False
        if _version(before) == _version(after):
            return False
        return not _changes(_OF[kind](before), _OF[kind](after))

    # -- requests -----------------------------------------------------------------------------

    def _ask(self, kind: Kind, line: Line, before: Object | None) -> int:
        """Send a request; return the code of the refusal, 0 for none."""
        asked = self._played.arguments(line)
        try:
            match line.verb:
                case "create":
                    self._create(kind, asked["body"])
                case "delete":
                    self._delete(kind, asked)
                case "patch":
                    self._patch(kind, asked, before)
                case _:
                    self._apply(kind, asked["body"])
        except ApiError as error:
            return error.code
        return 0

    def _create(self, kind: Kind, body: Object) -> None:
        if kind == SETS:
            self._api.create_set(**_changes(None, set_of(body)))
        else:
            made = identity_of(body)
            self._api.create_identity(made.cluster_id, is_started=made.is_started)

    def _patch(self, kind: Kind, asked: Mapping[str, Any], before: Object | None) -> None:
        if kind == BUDGETS and before is not None:
            self._api.put_budget(budget_of(patched(before, asked["changes"])))
            return
        changes = {}
        if before is not None:
            of = _OF[kind]
            changes = _changes(of(before), of(patched(before, asked["changes"])))
        name, uid, version = self._meant(kind, asked)
        match kind:
            case _ if kind == PODS:
                self._api.patch_pod(name, uid, version, **changes)
            case _ if kind == CLAIMS:
                self._api.patch_claim(name, uid, version, **changes)
            case _ if kind == SETS:
                self._api.patch_set(uid, version, **changes)
            case _ if kind == CONFIG_MAPS:
                self._api.patch_identity(version, **changes)

    def _delete(self, kind: Kind, asked: Mapping[str, Any]) -> None:
        name, uid, version = self._meant(kind, asked)
        if kind == PODS:
            is_forced = asked.get("grace_seconds") == 0
            self._api.delete_pod(name, uid, version, is_forced=is_forced)
        elif kind == CLAIMS:
            self._api.patch_claim(name, uid, version, is_terminating=True)
        elif kind == SETS:
            self._api.delete_set(uid, version)
        else:
            self._api.put_budget(None)

    def _apply(self, kind: Kind, body: Object) -> None:
        if kind == BUDGETS:
            self._api.put_budget(budget_of(body))
            return
        version = body["metadata"].get("resourceVersion", "")
        status = _resource_of(body).plan_hash
        self._api.patch_resource(self._versions.get(version, _NEVER), plan_hash=status)

    def _meant(self, kind: Kind, asked: Mapping[str, Any]) -> tuple[str, str, int]:
        meant, now = asked["preconditions"], self._value(kind, asked["name"])
        version = self._versions.get(meant.resource_version, _NEVER)
        if not meant.resource_version and now is not None:
            version = getattr(now, "resource_version", _NEVER)
        return asked["name"], self._uids.get(meant.uid, "another"), version

    # -- current objects ------------------------------------------------------------------------

    def _value(self, kind: Kind, name: str) -> Any:
        api = self._api
        many: Mapping[Kind, Mapping[str, object]] = {PODS: api.pods, CLAIMS: api.claims}
        one = {
            CLUSTERS: api.resource,
            CONFIG_MAPS: api.identity,
            SETS: api.brokers,
            BUDGETS: api.budget,
        }
        return many[kind].get(name) if kind in many else one[kind]

    def _take_over(
        self, kind: Kind, name: str, before: Object | None, after: Object | None
    ) -> None:
        """Apply the changes of other clients."""
        api = self._api
        value: Any = None if after is None else _OF[kind](after)
        if value is not None and kind != BUDGETS:
            is_same = _version(before) == _version(after)
            version = _version(self._value(kind, name)) if is_same else api.next_version()
            value = replace(value, resource_version=version)
            if "uid" in _names(value):
                uid = self._uids.get(value.uid) or api.next_uid(kind.plural)
                value = replace(value, uid=uid)
        if kind in _PLACES:
            setattr(api, _PLACES[kind], value)
            return
        kept: Any = api.pods if kind == PODS else api.claims
        kept.pop(name, None)
        if value is not None:
            kept[name] = value

    def _learn(self, after: Object | None, now: Any) -> None:
        if after is not None and now is not None and not isinstance(now, int):
            self._versions[after["metadata"]["resourceVersion"]] = now.resource_version
            self._uids[after["metadata"]["uid"]] = getattr(now, "uid", "")


def _resource_of(body: Object) -> Resource:
    """Return the resource; the model keeps its status as one text."""
    status = json.dumps(body.get("status", {}), sort_keys=True)
    return Resource(body["metadata"]["uid"], version_of(body), _DESIRED, plan_hash=status)


_OF: Final[Mapping[Kind, Callable[[Object], Any]]] = {
    BUDGETS: budget_of,
    CLAIMS: claim_of,
    CLUSTERS: _resource_of,
    CONFIG_MAPS: identity_of,
    PODS: pod_of,
    SETS: set_of,
}
_PLACES: Final[Mapping[Kind, str]] = {
    BUDGETS: "budget",
    CLUSTERS: "resource",
    CONFIG_MAPS: "identity",
    SETS: "brokers",
}


def _names(value: Any) -> set[str]:
    return {field.name for field in fields(value)}


def _changes(before: Any, after: Any) -> dict[str, Any]:
    """Return the changed fields of a value, without those set by the server."""
    return {
        name: getattr(after, name)
        for name in _names(after) - {"uid", "resource_version"}
        if before is None or getattr(before, name) != getattr(after, name)
    }


def _version(value: Any) -> Any:
    """Return the resource version of an object or a value; None for none."""
    if isinstance(value, dict):
        return value["metadata"]["resourceVersion"]
    return getattr(value, "resource_version", None)


def _plain(value: Any) -> Any:
    """Return a value to compare; all times in a trace are equal and are ignored."""
    if value is None or isinstance(value, int):
        return value
    return {**_changes(None, value), "created_ms": 0}
