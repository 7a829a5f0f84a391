"""Cache of reads between passes, so that a cluster at rest costs hardly any reads.

An answer of the API server is valid until a watch reports a change, until the operator writes, or
until it expires: kinds without a watch expire sooner. Every change is decided on fresh reads: a
pass that used the cache writes nothing and sends no change to a broker. Instead it raises
`RememberedError` and restarts with fresh reads.

A context variable marks a pass; reads outside of a pass go straight to the API server.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from liftbridge_operator.kube.errors import ForbiddenError, NotFoundError
from liftbridge_operator.kube.kinds import (
    CERTIFICATES,
    CLUSTERS,
    EVENTS,
    NODES,
    PROMETHEUS_RULES,
    SECRETS,
    SERVICE_MONITORS,
    VOLUMES,
    Kind,
)
from liftbridge_operator.kube.port import (
    FIELD_MANAGER,
    STATUS_MANAGER,
    Fence,
    Kube,
    Listing,
    Object,
    Preconditions,
    Propagation,
)
from liftbridge_operator.model import names
from liftbridge_operator.process.reconciler import Key, Reconciler, RequeueAfter

HELD_S: Final = 300.0
"""Validity of watched objects; a change that a watch missed is found after this time."""

UNWATCHED_S: Final[Mapping[Kind, float]] = {
    **dict.fromkeys((SECRETS, CERTIFICATES, SERVICE_MONITORS, PROMETHEUS_RULES), 55.0),
    **dict.fromkeys((EVENTS, NODES, VOLUMES), 25.0),
}
"""Validity of kinds that are not watched, seconds."""

UNSEEN_S: Final = 25.0
"""Validity of foreign objects, which lack the cluster label that watches select by."""

_T = TypeVar("_T", Object, Listing)
_Request = tuple[object, ...]
_Missing = NotFoundError | ForbiddenError


class RememberedError(Exception):
    """A write was attempted in a pass that used cached reads."""


@dataclass(slots=True)
class _Pass:
    """A pass that is under way.

    Attributes:
        about: The cluster.
        is_fresh: Whether the pass bypasses the cache.
        has_remembered: Whether a read came from the cache.
    """

    about: Key
    is_fresh: bool
    has_remembered: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    answer: Object | Listing | None
    error: _Missing | None
    until_s: float
    read_by: _Pass


@dataclass(slots=True)
class _Memory:
    """Cached answers of one cluster; `changes` counts invalidations."""

    known: dict[_Request, _Known] = field(default_factory=dict)
    changes: int = 0


class SparingKube:
    """Port to the API server that caches the reads of passes; see the module.

    It is also the fence for requests to brokers.
    """

    def __init__(self, kube: Kube, fence: Fence, now_s: Callable[[], float]) -> None:
        """Start with an empty cache.

        Args:
            kube: The API server.
            fence: Checks that this process leads.
            now_s: Monotonic time.
        """
        self._server = kube
        self._fence = fence
        self._now_s = now_s
        self._memories: dict[Key | Kind, _Memory] = {}
        self._current: ContextVar[_Pass | None] = ContextVar("pass", default=None)

    @contextmanager
    def passing(self, about: Key, *, is_fresh: bool) -> Iterator[None]:
        """Open a pass, within which reads are cached.

        Args:
            about: The cluster.
            is_fresh: Whether all reads bypass the cache.
        """
        token = self._current.set(_Pass(about, is_fresh))
        try:
            yield
        finally:
            self._current.reset(token)

    def forget(self, about: Key) -> None:
        """Drop all cached answers of a cluster after a change."""
        memory = self._memories.get(about)
        if memory is not None:
            memory.known.clear()
            memory.changes += 1

    def drop(self, about: Key) -> None:
        """Drop the cache of a cluster that no longer exists."""
        self._memories.pop(about, None)

    def check(self, namespace: str) -> None:
        """Check the fence as `kube.port.Fence`; also refuse decisions based on cached reads."""
        current = self._current.get()
        if current is not None and current.has_remembered:
            raise RememberedError
        self._fence.check(namespace)

    # -- reads --------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See the port."""
        request = (kind, namespace, name)
        return await self._read(request, kind, lambda: self._server.get(kind, namespace, name))

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """See the port."""
        return await self._read(
            (kind, namespace, "", selector, fields),
            kind,
            lambda: self._server.list_all(kind, namespace, selector=selector, fields=fields),
        )

    async def _read(self, request: _Request, kind: Kind, ask: Callable[[], Awaitable[_T]]) -> _T:
        current = self._current.get()
        if current is None:
            return await ask()
        # Nodes are the same for every cluster.
        about: Key | Kind = kind if kind == NODES else current.about
        memory = self._memories.setdefault(about, _Memory())
        known = memory.known.get(request)
        if known is not None and not current.is_fresh and self._now_s() < known.until_s:
            current.has_remembered |= known.read_by is not current
            return _given(cast("_T | None", known.answer), known.error)
        asked_s, changes = self._now_s(), memory.changes
        answer, error = await _answered(ask)
        # A change during the read may be newer than the answer.
        if memory.changes == changes:
            until_s = asked_s + _held_s(kind, answer, current.about)
            memory.known[request] = _Known(answer, error, until_s, current)
        return _given(answer, error)

    # -- writes -------------------------------------------------------------------------------

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """See the port."""
        with self._writing():
            return await self._server.create(body, dry_run=dry_run)

    async def apply(
        self, body: Object, *, force: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """See the port."""
        with self._writing():
            return await self._server.apply(body, force=force, manager=manager)

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """See the port."""
        with self._writing():
            return await self._server.apply_status(body, manager=manager)

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
        with self._writing():
            return await self._server.patch(
                kind,
                namespace,
                name,
                changes,
                preconditions=preconditions,
                subresource=subresource,
                dry_run=dry_run,
            )

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
        """See the port."""
        with self._writing():
            await self._server.delete(
                kind,
                namespace,
                name,
                preconditions=preconditions,
                propagation=propagation,
                grace_seconds=grace_seconds,
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a write, and drop the cache afterwards, whether it succeeded or not."""
        current = self._current.get()
        if current is None:
            yield
            return
        if current.has_remembered:
            raise RememberedError
        try:
            yield
        finally:
            self.forget(current.about)


class SparingReconciler:
    """Runs another reconciler with cached reads where possible.

    Args:
        inner: The reconciler, which reads through `kube`.
        kube: The caching port.
    """

    def __init__(self, inner: Reconciler, kube: SparingKube) -> None:
        self._inner = inner
        self._sparing = kube

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """See `Reconciler`."""
        again = await self._pass(key)
        if again is None:
            self._sparing.drop(key)
        return again

    async def _pass(self, key: Key) -> RequeueAfter | None:
        try:
            with self._sparing.passing(key, is_fresh=False):
                return await self._inner.reconcile(key)
        except RememberedError:
            with self._sparing.passing(key, is_fresh=True):
                return await self._inner.reconcile(key)


def _held_s(kind: Kind, answer: Object | Listing | None, about: Key) -> float:
    """Return how long an answer is valid without a reported change, seconds."""
    held_s = UNWATCHED_S.get(kind, HELD_S)
    if kind == CLUSTERS or not isinstance(answer, dict):
        return held_s
    if kind == SECRETS and answer["metadata"]["name"] == names.nats_client(about.name):
        return HELD_S  # only applications need it, which have read it
    is_seen = (answer["metadata"].get("labels") or {}).get(names.CLUSTER) == about.name
    return held_s if is_seen else min(held_s, UNSEEN_S)


async def _answered(ask: Callable[[], Awaitable[_T]]) -> tuple[_T | None, _Missing | None]:
    """Return the answer, or the error of the read."""
    try:
        return await ask(), None
    except (NotFoundError, ForbiddenError) as error:
        return None, error


def _given(answer: _T | None, error: _Missing | None) -> _T:
    """Return a copy of the answer, which the caller may change, or raise its error."""
    if error is not None:
        raise error
    assert answer is not None
    return deepcopy(answer)
