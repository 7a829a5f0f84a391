"""The port to the API server: every call the operator makes, and with which promises.

`client.KubeClient` speaks to a real one; tests have one in memory. The rules of what may be
written stand here, so that both refuse alike:

- What deletes a pod, a claim or a set carries the uid and the resource version of the pass that
  decided on it.
- An apply by force never carries `replicas` of a set. Any apply may carry `metadata.uid` and
  `metadata.resourceVersion`, and is then refused with `ConflictError` when they are others.
- A write is not sent unless the fence lets it through (`FencedError`), and a write that fails with
  `UnavailableError` may have been done all the same: the next pass looks.

Names of objects without a namespace (nodes, storage classes) go with the namespace "".
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from liftbridge_operator.kube.kinds import GUARDED, SETS, Kind

Object: TypeAlias = dict[str, Any]
"""An object as it stands in JSON, with `apiVersion`, `kind` and `metadata`."""

FIELD_MANAGER: Final = "liftbridge-operator"
"""Who owns the fields that the operator applies; one for everything it renders."""

STATUS_MANAGER: Final = "liftbridge-operator-status"
"""Who owns the status of the operator's resources."""


class Preconditions(NamedTuple):
    """Which object is meant; a write to another one of the same name is refused.

    Attributes:
        uid: Of the object that was seen.
        resource_version: As it was seen; empty when any later state of it is meant as well.
    """

    uid: str
    resource_version: str = ""

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> "Preconditions":
        """Exactly the object that was read."""
        metadata = seen["metadata"]
        return cls(metadata["uid"], metadata["resourceVersion"])


class Propagation(StrEnum):
    """What becomes of the objects that a deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class PatchType(StrEnum):
    """How a patch is written."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class Listing(NamedTuple):
    """Objects of one moment.

    Attributes:
        items: Each with `apiVersion` and `kind`, in the order of the API server.
        resource_version: Of the moment.
    """

    items: tuple[Object, ...]
    resource_version: str


class Fence(Protocol):
    """Says whether this process may still write."""

    def check(self, namespace: str) -> None:
        """Return if it is certain that nobody else writes to a namespace.

        Raises:
            FencedError: It is not certain.
        """


class Kube(Protocol):
    """The API server.

    Every call may raise `UnavailableError`, `ForbiddenError` and `UnauthorizedError`; every write
    also `FencedError`, `InvalidError` and `ConflictError`. Reads are answered by a quorum, never
    from a cache. Each call ends within a bound of the adapter.
    """

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object.

        Raises:
            NotFoundError: There is none.
        """

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """Read all objects of a kind, page by page, of one moment.

        Args:
            kind: Which.
            namespace: Where; empty for all namespaces.
            selector: By labels, as kubectl takes it: `liftbridge.io/cluster=c,app!=x`.
            fields: By fields, of the few that the API server knows for a kind: `reason=Killing`.

        Raises:
            NotFoundError: The kind is not known to the API server.
            GoneError: The moment was forgotten between two pages.
        """

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object; its kind, namespace and name are taken from it.

        Args:
            body: The object.
            dry_run: Whether it is only to be said what would come of it.

        Raises:
            AlreadyExistsError: There is one; said last, when nothing else stands against it.
            NotFoundError: There is no such namespace.
        """

    async def apply(
        self, body: Object, *, force: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """Apply the whole intent on the server's side; fields left out since are removed.

        Args:
            body: Intent with `apiVersion`, `kind`, `metadata.name` and namespace.
            force: Take fields of other managers over; see `check_apply`.
            manager: Owner of the fields.

        Raises:
            ApplyConflictError: Without force, a field is owned by another manager.
        """

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """Apply the status, by force: nobody else owns any field of it.

        Args:
            body: `apiVersion`, `kind`, `metadata` (with the uid that is meant) and `status`.
            manager: Owner of the fields.

        Raises:
            NotFoundError: The object is gone; a status never creates one.
            ConflictError: The object has another uid or resource version than the body says.
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
        """Change parts of the object that is meant.

        Args:
            kind: Which.
            namespace: Where.
            name: Which.
            changes: A mapping is a merge patch, a sequence a list of JSON patch operations.
            preconditions: Which state of it is meant.
            subresource: `status` or `scale`.
            dry_run: Whether it is only to be said what would come of it.

        Raises:
            NotFoundError: There is none.
            ConflictError: It is another one, or has changed.
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
        """Begin the deletion of the object that is meant; finalizers may hold it up.

        Args:
            kind: Which.
            namespace: Where.
            name: Which.
            preconditions: For pods, claims and sets with a resource version.
            propagation: What becomes of what it owns.
            grace_seconds: For pods: 0 forgets the pod at once, whatever its node does; None is
                what the pod asks for.

        Raises:
            NotFoundError: There is none.
            ConflictError: It is another one, or has changed.
        """


def check_apply(body: Mapping[str, Any], kind: Kind, *, force: bool) -> None:
    """Refuse an apply that no caller may make."""
    if force and kind == SETS:
        assert "replicas" not in body.get("spec", {}), "replicas of a set are never forced"


def check_delete(kind: Kind, preconditions: Preconditions) -> None:
    """Refuse a deletion that no caller may make."""
    assert preconditions.uid, "a deletion names the uid that was seen"
    if kind in GUARDED:
        assert preconditions.resource_version, "pods, claims and sets go as they were seen"


def patch_body(
    changes: Mapping[str, Any] | Sequence[Mapping[str, Any]], preconditions: Preconditions
) -> tuple[PatchType, Any]:
    """A patch that takes effect only on the object that is meant.

    Neither uid nor resource version can be changed, so that the API server compares what a patch
    makes of them with what is there, and refuses a difference.
    """
    assert preconditions.uid, "a patch names the uid that was seen"
    found = {"uid": preconditions.uid}
    if preconditions.resource_version:
        found["resourceVersion"] = preconditions.resource_version
    if isinstance(changes, Mapping):
        return PatchType.MERGE, {**changes, "metadata": {**changes.get("metadata", {}), **found}}
    seen = [{"op": "replace", "path": f"/metadata/{k}", "value": v} for k, v in found.items()]
    return PatchType.JSON, [*seen, *changes]
