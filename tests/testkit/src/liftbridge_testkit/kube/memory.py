"""An API server in memory behind the operator's port.

    kube = MemoryKube()
    kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c-0", "namespace": "n"}})
    await kube.apply(intent)
    assert kube.writes == [Write("apply", kinds.SETS, "n", "c")]

It implements the behaviour that the operator depends on: changing uids and resource versions,
preconditions, owners of fields, finalizers, a separate status, no write without a change, and the
fixed role of a RoleBinding. No controllers, defaults or schemas. `kube.fail` plants failures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from liftbridge_operator.cluster.observing.objects import claim_of
from liftbridge_operator.cluster.planning.observation import Claim
from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    FieldConflict,
    InvalidError,
    KubeError,
    NotFoundError,
)
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    SERVICES,
    SETS,
    STREAMS,
    USERS,
    Kind,
    kind_of,
)
from liftbridge_operator.kube.port import (
    FIELD_MANAGER,
    STATUS_MANAGER,
    Fence,
    Listing,
    Object,
    Preconditions,
    Propagation,
    check_apply,
    check_delete,
    patch_body,
)
from liftbridge_testkit.kube.fields import (
    copied,
    has_fields,
    leaves,
    merged,
    nested,
    paths_of,
    selects,
    value_at,
    without,
)

_WORKLOADS = frozenset({SETS, DEPLOYMENTS, JOBS, CRON_JOBS})
_WITH_STATUS = frozenset({CLUSTERS, STREAMS, PIPELINES, USERS, PODS, CLAIMS, BUDGETS}) | _WORKLOADS
_WITH_GENERATION = (
    frozenset({CLUSTERS, STREAMS, PIPELINES, USERS, PODS, BUDGETS, NETWORK_POLICIES}) | _WORKLOADS
)
_COLLECTED = {Propagation.ORPHAN: "orphan", Propagation.FOREGROUND: "foregroundDeletion"}
"""Finalizers by which a deletion waits for the garbage collector."""

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
"""Finalizer of each claim; a controller removes it once no pod uses the claim."""
CREATED = "2026-01-01T00:00:00Z"


class Write(NamedTuple):
    """A requested write, whatever its outcome.

    Attributes:
        verb: `create`, `apply`, `apply_status`, `patch` or `delete`.
    """

    verb: str
    kind: Kind
    namespace: str
    name: str


class Deletion(NamedTuple):
    """Deletion of an existing object, with its options."""

    kind: Kind
    namespace: str
    name: str
    propagation: Propagation
    grace_seconds: int | None


class _Failure(NamedTuple):
    verb: str
    kind: Kind | None
    error: KubeError


class MemoryKube:
    """All objects by kind, namespace and name.

    Attributes:
        writes: Requested writes, in order.
        deletions: Deletions that took effect, in order.
        changes: Number of writes that changed an object.
        on_change: Called with the event's type (`ADDED`, `MODIFIED`, `DELETED`) and the object.
        manager: Owner of created and patched fields.
        collects: Whether the garbage collector exists, and acts immediately.
        admit: Called with verb and object before each write through the port; it may refuse.
        stores: Called with the object of each write through the port; may change it.
    """

    def __init__(self, fence: Fence | None = None, *, collects: bool = True) -> None:
        self.writes: list[Write] = []
        self.deletions: list[Deletion] = []
        self.changes = 0
        self.on_change: Callable[[str, Object], None] | None = None
        self.manager = FIELD_MANAGER
        self.collects = collects
        self.admit: Callable[[str, Object], None] | None = None
        self.stores: Callable[[Object], None] | None = None
        self._fence = fence
        self._objects: dict[tuple[Kind, str, str], Object] = {}
        self._version = 0
        self._uid = 0
        self._failures: list[_Failure] = []

    # -- besides the port --------------------------------------------------------------

    def put(self, body: Mapping[str, Any], manager: str = "kubectl", part: str = "") -> Object:
        """Write a whole object, status included, as another client; `part` is the subresource."""
        value = copied(dict(body))
        key = _key(value)
        before = self._objects.get(key)
        self._keep_identity(value, before)
        changed = {
            leaf for leaf in leaves(value) if value_at(value, leaf) != value_at(before, leaf)
        }
        value["metadata"]["managedFields"] = (before or value)["metadata"].get("managedFields", [])
        self._own(value, manager, "Update", changed, part)
        return self._store(key, value, before)

    def edit(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], None]
    ) -> Object:
        """Change an object in place, as another client."""
        value = self._found(kind, namespace, name)
        change(value)
        return self.put(value)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object, regardless of its finalizers."""
        value = self._objects.pop((kind, namespace, name))
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", value)

    def all_of(self, kind: Kind) -> list[Object]:
        """Return all objects of a kind, by namespace and name."""
        found = sorted((key for key in self._objects if key[0] == kind), key=lambda key: key[1:])
        return [copied(self._objects[key]) for key in found]

    def look(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object; None for none."""
        return copied(self._objects.get((kind, namespace, name)))

    def names_of(self, kind: Kind) -> list[str]:
        """Return the names of all objects of a kind."""
        return sorted(key[2] for key in self._objects if key[0] == kind)

    @property
    def version(self) -> str:
        """The latest resource version."""
        return str(self._version)

    def fail(self, error: KubeError, verb: str = "", kind: Kind | None = None) -> None:
        """Let the next call of this verb (`get`, `list`, ... empty for any) and kind fail."""
        self._failures.append(_Failure(verb, kind, error))

    # -- the port -----------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See the port."""
        self._meet("get", kind)
        # A real server reads an empty name as a list, and text after a slash as a subresource.
        if not name or "/" in name:
            raise AssertionError(f"{name!r} is no name")
        return self._found(kind, namespace, name)

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """See the port."""
        self._meet("list", kind)
        found = [
            copied(value)
            for key, value in sorted(self._objects.items(), key=lambda entry: entry[0][1:])
            if key[0] == kind
            and namespace in ("", key[1])
            and selects(selector, value["metadata"].get("labels", {}))
            and has_fields(fields, value)
        ]
        return Listing(tuple(found), str(self._version))

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """See the port."""
        key = _key(body) if dry_run else self._ask("create", body)
        value = copied(body)
        if key[0] in _WITH_STATUS:
            value.pop("status", None)
        self._admit("create", value)
        if key in self._objects:
            message = f"{key[0].qualified} {key[2]!r} already exists"
            raise AlreadyExistsError(message, status=409, reason="AlreadyExists")
        if dry_run:
            return value
        self._keep_identity(value, None)
        self._own(value, self.manager, "Update", set(leaves(value)))
        return self._store(key, value, None)

    async def apply(
        self, body: Object, *, force: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """See the port."""
        key = self._ask("apply", body)
        check_apply(body, key[0], force=force)
        intent = copied(body)
        if key[0] in _WITH_STATUS:
            intent.pop("status", None)
        return self._apply(key, intent, manager, "", force=force)

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """See the port."""
        key = self._ask("apply_status", body)
        self._found(*key)
        intent = {name: copied(body[name]) for name in ("apiVersion", "kind", "metadata")}
        intent["status"] = copied(body["status"])
        return self._apply(key, intent, manager, "status", force=True)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        changes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        preconditions: Preconditions,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """See the port."""
        if not dry_run:
            self._asked("patch", kind, namespace, name)
        before = self._found(kind, namespace, name)
        _, body = patch_body(changes, preconditions)
        _compare(before, preconditions, is_patch=True)
        value = patched(before, body, subresource)
        if kind == CLAIMS:
            _check_size(claim_of(before), claim_of(value))
        if kind == SERVICES:
            _keep_allocated(value, before)
        self._admit("patch", value)
        if dry_run:
            return value
        changed = {
            leaf for leaf in leaves(value) if value_at(value, leaf) != value_at(before, leaf)
        }
        self._own(value, self.manager, "Update", changed, subresource)
        return self._store((kind, namespace, name), value, before)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        preconditions: Preconditions,
        propagation: Propagation = Propagation.BACKGROUND,
        grace_seconds: int | None = None,
    ) -> None:
        """See the port; owners take nothing along."""
        self._asked("delete", kind, namespace, name)
        check_delete(kind, preconditions)
        before = self._found(kind, namespace, name)
        _compare(before, preconditions, is_patch=False)
        self._admit("delete", before)
        self.deletions.append(Deletion(kind, namespace, name, propagation, grace_seconds))
        value = copied(before)
        metadata = value["metadata"]
        if not self.collects and propagation in _COLLECTED:
            held = metadata.setdefault("finalizers", [])
            held += {_COLLECTED[propagation]} - set(held)
        # A pod on a node is removed when its kubelet confirms that.
        runs = kind == PODS and value.get("spec", {}).get("nodeName") and grace_seconds != 0
        if metadata.get("finalizers") or runs:
            metadata.setdefault("deletionTimestamp", CREATED)
            self._store((kind, namespace, name), value, before)
        else:
            self.changes += 1
            self.remove(kind, namespace, name)

    # -- inside -------------------------------------------------------------------------------

    def _apply(
        self, key: tuple[Kind, str, str], intent: Object, manager: str, part: str, *, force: bool
    ) -> Object:
        before = self._objects.get(key)
        live = copied(before) if before else {}
        if before is not None:
            wanted = intent["metadata"]
            meant = Preconditions(wanted.get("uid", ""), wanted.get("resourceVersion", ""))
            _compare(before, meant, is_patch=True)
        elif intent["metadata"].get("uid"):
            message = "uid mismatch: there is no such object"
            raise ConflictError(message, status=409, reason="Conflict")
        own = set(leaves(intent))
        entries = _entries(live)
        former = entries.pop((manager, "Apply", part), set())
        conflicts = [
            FieldConflict(who, _shown(leaf))
            for (who, _, _), theirs in entries.items()
            for leaf in sorted(theirs & own)
            if who != manager and value_at(live, leaf) != value_at(intent, leaf)
        ]
        if conflicts and not force:
            raise ApplyConflictError(f"Apply failed with {len(conflicts)} conflicts", conflicts)
        value = merged(live, intent)
        self._admit("apply", value)
        for leaf in former - own:
            if not any(leaf in theirs for theirs in entries.values()):
                without(value, leaf)
        taken = {leaf for leaf in own if value_at(live, leaf) != value_at(intent, leaf)}
        left = {who: theirs - taken for who, theirs in entries.items()}
        left[manager, "Apply", part] = own
        self._keep_identity(value, before)
        _write_entries(value, left)
        return self._store(key, value, before)

    def _store(self, key: tuple[Kind, str, str], value: Object, before: Object | None) -> Object:
        if value == before:
            return copied(value)
        if before is not None and key[0] == ROLE_BINDINGS:
            _check_role(value, before)
        if before is not None and before.get("immutable"):
            _check_immutable(value, before)
        self.changes += 1
        metadata = value["metadata"]
        is_last = before is not None and before["metadata"].get("finalizers")
        if is_last and metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.remove(*key)
            return copied(value)  # the last state of the object; the deletion has its own version
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        if key[0] in _WITH_GENERATION:
            metadata["generation"] = _generation(value, before)
        self._objects[key] = value
        self._tell("ADDED" if before is None else "MODIFIED", value)
        return copied(value)

    def _keep_identity(self, value: Object, before: Object | None) -> None:
        metadata = value["metadata"]
        if before is None:
            self._uid += 1
            metadata["uid"] = f"uid-{self._uid}"
            metadata["creationTimestamp"] = CREATED
            metadata.pop("resourceVersion", None)
            if kind_of(value) == CLAIMS:
                metadata.setdefault("finalizers", []).append(CLAIM_FINALIZER)
            return
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp"):
            if name in before["metadata"]:
                metadata[name] = before["metadata"][name]

    def _own(
        self, value: Object, manager: str, operation: str, changed: set[Any], part: str = ""
    ) -> None:
        entries = {who: theirs - changed for who, theirs in _entries(value).items()}
        mine = entries.get((manager, operation, part), set())
        entries[manager, operation, part] = mine | changed
        _write_entries(value, entries)

    def _ask(self, verb: str, body: Object) -> tuple[Kind, str, str]:
        key = _key(body)
        self._asked(verb, *key)
        return key

    def _asked(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        if self._fence is not None:
            self._fence.check(namespace)
        self.writes.append(Write(verb, kind, namespace, name))
        self._meet(verb, kind)

    def _admit(self, verb: str, value: Object) -> None:
        if self.stores is not None:
            self.stores(value)
        if self.admit is not None:
            self.admit(verb, copied(value))

    def _meet(self, verb: str, kind: Kind) -> None:
        for failure in self._failures:
            if failure.verb in ("", verb) and failure.kind in (None, kind):
                self._failures.remove(failure)
                raise failure.error

    def _found(self, kind: Kind, namespace: str, name: str) -> Object:
        value = self._objects.get((kind, namespace, name))
        if value is None:
            message = f"{kind.qualified} {name!r} not found"
            raise NotFoundError(message, status=404, reason="NotFound")
        return copied(value)

    def _tell(self, event: str, value: Object) -> None:
        if self.on_change is not None:
            self.on_change(event, copied(value))


def patched(
    before: Object,
    changes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    subresource: str = "",
) -> Object:
    """Return the object that results from a patch.

    Raises:
        InvalidError: An operation of a JSON patch cannot be done.
    """
    value = copied(before)
    if isinstance(changes, Mapping):
        _merge_patch(value, changes)
    else:
        for operation in changes:
            _json_patch(value, operation)
    if kind_of(before) in _WITH_STATUS:  # each of the two writes leaves the other part unchanged
        kept = "spec" if subresource == "status" else "status"
        value.pop(kept, None)
        value |= {kept: before[kept]} if kept in before else {}
    return value


def _key(body: Mapping[str, Any]) -> tuple[Kind, str, str]:
    metadata = body["metadata"]
    kind = kind_of(body)
    namespace = metadata.get("namespace", "")
    assert bool(namespace) == kind.is_namespaced, f"{kind.kind} in namespace {namespace!r}"
    return kind, namespace, metadata["name"]


def _check_role(value: Object, before: Object) -> None:
    """Raise `InvalidError` if a RoleBinding gets another role."""
    if value.get("roleRef") != before.get("roleRef"):
        message = "roleRef: Invalid value: cannot change roleRef"
        raise InvalidError(message, status=422, reason="Invalid")


def _check_immutable(value: Object, before: Object) -> None:
    """Raise `InvalidError` if an immutable ConfigMap gets other contents."""
    if any(value.get(name) != before.get(name) for name in ("data", "binaryData", "immutable")):
        message = "data: Forbidden: field is immutable when `immutable` is set"
        raise InvalidError(message, status=422, reason="Invalid")


def _keep_allocated(value: Object, before: Object) -> None:
    """Keep the values that Kubernetes assigned to a Service when a write does not contain them."""
    spec, former = value["spec"], before["spec"]
    if "clusterIP" not in spec:
        given = ("clusterIP", "clusterIPs", "healthCheckNodePort")
        spec |= {name: former[name] for name in given if name in former}
    ports = {one.get("name"): one["nodePort"] for one in former["ports"] if "nodePort" in one}
    for port in spec["ports"] if spec.get("type", "ClusterIP") != "ClusterIP" else ():
        if port.get("name") in ports:
            port.setdefault("nodePort", ports[port.get("name")])


def _compare(before: Object, meant: Preconditions, *, is_patch: bool) -> None:
    """Refuse a write to another object or version; a patch of the uid is invalid."""
    metadata = before["metadata"]
    if meant.uid and meant.uid != metadata["uid"]:
        message = f"uid: {meant.uid} is meant, there is {metadata['uid']}"
        status, reason = (422, "Invalid") if is_patch else (409, "Conflict")
        raise ConflictError(message, status=status, reason=reason)
    if meant.resource_version and meant.resource_version != metadata["resourceVersion"]:
        message = f"{meant.resource_version} is meant, there is {metadata['resourceVersion']}"
        raise ConflictError(message, status=409, reason="Conflict")


def _check_size(before: Claim, after: Claim) -> None:
    """Refuse to shrink a claim, unless it stays larger than its volume.

    Raises:
        InvalidError: It would be smaller, or changes while it has no volume.
    """
    asked = [(one.requested_bytes, one.attributes_class) for one in (before, after)]
    if not before.is_bound and asked[0] != asked[1]:
        message = "spec is immutable after creation except resources.requests for bound claims"
        raise InvalidError(message, status=422, reason="Invalid")
    is_less = after.requested_bytes < before.requested_bytes
    if is_less and after.requested_bytes <= before.capacity_bytes:
        message = f"{before.name} cannot be less than its volume"
        raise InvalidError(message, status=422, reason="Invalid")


def _generation(value: Object, before: Object | None) -> int:
    """Increment the generation with each change of the spec, and at the deletion."""
    if before is None:
        return 1
    is_other = value.get("spec") != before.get("spec")
    goes = [one["metadata"].get("deletionTimestamp") for one in (value, before)]
    former: int = before["metadata"]["generation"]
    return former + (is_other or goes[0] != goes[1])


def _entries(value: Object) -> dict[tuple[str, str, str], set[Any]]:
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): set(
            paths_of(entry["fieldsV1"])
        )
        for entry in value.get("metadata", {}).get("managedFields", ())
    }


def _write_entries(value: Object, entries: Mapping[tuple[str, str, str], set[Any]]) -> None:
    value["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": operation,
            "apiVersion": value["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": nested(owned),
        }
        | ({"subresource": part} if part else {})
        for (manager, operation, part), owned in entries.items()
        if owned
    ]


def _shown(leaf: Sequence[str]) -> str:
    return "".join(f".{part[2:]}" if part.startswith("f:") else f"[{part[2:]}]" for part in leaf)


def _merge_patch(value: Any, patch: Mapping[str, Any]) -> None:
    for name, change in patch.items():
        if change is None:
            value.pop(name, None)
        elif isinstance(change, dict):
            if not isinstance(value.get(name), dict):
                value[name] = {}
            _merge_patch(value[name], change)
        else:
            value[name] = copied(change)


def _json_patch(value: Any, operation: Mapping[str, Any]) -> None:
    """Execute one operation of a JSON patch.

    Raises:
        InvalidError: There is no such path, or a test finds another value.
    """
    *parents, last = pointer(operation["path"])
    try:
        for part in parents:
            value = value[int(part) if isinstance(value, list) else part]
        is_done = _done(value, last, operation)
    except (LookupError, TypeError, ValueError):
        is_done = False
    if not is_done:
        message = f"{operation['op']} of {operation['path']} cannot be done"
        raise InvalidError(message, status=422, reason="Invalid")


def _done(value: Any, last: str, operation: Mapping[str, Any]) -> bool:
    if isinstance(value, list) and operation["op"] == "add":
        value.insert(len(value) if last == "-" else int(last), copied(operation["value"]))
        return True
    place: Any = int(last) if isinstance(value, list) else last
    match operation["op"]:
        case "add" | "replace":  # replacing a missing value adds it
            value[place] = copied(operation["value"])
        case "remove":
            del value[place]
        case _:
            return bool(value[place] == operation["value"])
    return True


def pointer(path: str) -> Iterator[str]:
    """Yield the field names on the path of a JSON patch."""
    for part in path.split("/")[1:]:
        yield part.replace("~1", "/").replace("~0", "~")
