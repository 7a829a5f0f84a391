"""The port to the API server: every call of the operator, with its guarantees.

`client.KubeClient` is the real adapter; tests have one in memory. The rules of writes are defined
here, so that both refuse the same writes:

- A deletion of a pod, a claim or a set carries the uid and the resource version that the pass read.
- A forced apply never carries `replicas` of a set. Any apply may carry `metadata.uid` and
  `metadata.resourceVersion`, and is then refused with `ConflictError` when they differ.
- A write is not sent unless the fence permits it (`FencedError`), and a write that fails with
  `UnavailableError` may still have been done: the next pass observes the outcome.

Names of objects without a namespace (nodes, storage classes) go with the namespace "".
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from liftbridge_operator.kube.kinds import GUARDED, SETS, Kind

Object: TypeAlias = dict[str, Any]
"""An object in JSON form, with `apiVersion`, `kind` and `metadata`."""

FIELD_MANAGER: Final = "liftbridge-operator"
"""Field manager of everything that the operator renders."""

STATUS_MANAGER: Final = "liftbridge-operator-status"
"""Field manager of the status of the operator's resources."""


class Preconditions(NamedTuple):
    """Expected object of a write; a write to another object of the same name is refused.

    Attributes:
        uid: UID of the object that was read.
        resource_version: Version that was read; empty to accept any later version.
    """

    uid: str
    resource_version: str = ""

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> "Preconditions":
        """Return the preconditions of exactly the object that was read."""
        metadata = seen["metadata"]
        return cls(metadata["uid"], metadata["resourceVersion"])


class Propagation(StrEnum):
    """Fate of the objects that a deleted object owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class PatchType(StrEnum):
    """Content type of a patch."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class Listing(NamedTuple):
    """Objects of one moment.

    Attributes:
        items: Each with `apiVersion` and `kind`, in the order of the API server.
        resource_version: Resource version of the list.
    """

    items: tuple[Object, ...]
    resource_version: str


class Fence(Protocol):
    """Checks whether this process may still write."""

    def check(self, namespace: str) -> None:
        """Return if it is certain that no other process writes to a namespace.

        Raises:
            FencedError: It is not certain.
        """


class Kube(Protocol):
    """The API server.

    Every call may raise `UnavailableError`, `ForbiddenError` and `UnauthorizedError`; every write
    also `FencedError`, `InvalidError` and `ConflictError`. Reads are answered by a quorum; only
    `cluster.reconciling.sparing` caches them. Each call ends within a bound of the adapter.
    """

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object.

        Raises:
            NotFoundError: The object does not exist.
        """

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects of a kind, page by page, as of one moment.

        Args:
            kind: Kind of the objects.
            namespace: Their namespace; empty for all namespaces.
            selector: Label selector in kubectl's form: `liftbridge.io/cluster=c,app!=x`.
            fields: Field selector, of the few supported fields of a kind: `reason=Killing`.

        Raises:
            NotFoundError: The kind is not known to the API server.
            GoneError: The list expired between two pages.
        """

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object; its kind, namespace and name are taken from it.

        Args:
            body: The object.
            dry_run: Whether only to check the request.

        Raises:
            AlreadyExistsError: The object exists; reported only if there is no other objection.
            NotFoundError: The namespace does not exist.
        """

    async def apply(
        self, body: Object, *, force: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """Apply the whole intent by server-side apply; fields no longer named are removed.

        Args:
            body: Intent with `apiVersion`, `kind`, `metadata.name` and namespace.
            force: Whether to take over fields of other managers; see `check_apply`.
            manager: Owner of the fields.

        Raises:
            ApplyConflictError: Without force, a field is owned by another manager.
        """

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """Apply the status, by force: no other manager owns any field of it.

        Args:
            body: `apiVersion`, `kind`, `metadata` (with the expected uid) and `status`.
            manager: Owner of the fields.

        Raises:
            NotFoundError: The object was deleted; a status never creates one.
            ConflictError: The object has another uid or resource version than the body.
        """

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
        """Change parts of an object, under preconditions.

        Args:
            kind: Kind of the object.
            namespace: Its namespace.
            name: Its name.
            changes: A mapping is a merge patch, a sequence a list of JSON patch operations.
            preconditions: Expected uid and version.
            subresource: `status` or `scale`.
            dry_run: Whether only to check the request.

        Raises:
            NotFoundError: The object does not exist.
            ConflictError: The object was replaced, or has changed.
        """

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
        """Start the deletion of an object, under preconditions; finalizers may delay it.

        Args:
            kind: Kind of the object.
            namespace: Its namespace.
            name: Its name.
            preconditions: Expected uid; for pods, claims and sets with a resource version.
            propagation: Fate of the objects that it owns.
            grace_seconds: For pods: 0 removes the pod at once, whatever its node does; None uses
                the pod's grace period.

        Raises:
            NotFoundError: The object does not exist.
            ConflictError: The object was replaced, or has changed.
        """


def check_apply(body: Mapping[str, Any], kind: Kind, *, force: bool) -> None:
    """Check that an apply does not force the replicas of a set."""
    if force and kind == SETS:
        assert "replicas" not in body.get("spec", {}), "replicas of a set are never forced"


def check_delete(kind: Kind, preconditions: Preconditions) -> None:
    """Check that a deletion has its preconditions: a uid, for `GUARDED` kinds also a version."""
    assert preconditions.uid, "a deletion names the uid that was seen"
    if kind in GUARDED:
        assert preconditions.resource_version, "pods, claims and sets go as they were seen"


def patch_body(
    changes: Mapping[str, Any] | Sequence[Mapping[str, Any]], preconditions: Preconditions
) -> tuple[PatchType, Any]:
    """Build a patch that takes effect only on the expected object.

    Neither uid nor resource version can be changed, so the API server compares their patched values
    with the present ones, and refuses a difference.
    """
    assert preconditions.uid, "a patch names the uid that was seen"
    found = {"uid": preconditions.uid}
    if preconditions.resource_version:
        found["resourceVersion"] = preconditions.resource_version
    if isinstance(changes, Mapping):
        return PatchType.MERGE, {**changes, "metadata": {**changes.get("metadata", {}), **found}}
    seen = [{"op": "replace", "path": f"/metadata/{k}", "value": v} for k, v in found.items()]
    return PatchType.JSON, [*seen, *changes]
