"""Claims of releases: at no time two releases of the operator write to one namespace.

A release for some namespaces claims each by a Lease in it, of a name that all releases share: the
holder of that Lease has the namespace. A release for all namespaces writes no claims. It lists the
claims of all namespaces, leaves claimed namespaces alone, and may write to all other namespaces for
`CERTAIN_S` from before the list; without a newer list it ends. Therefore a release that creates a
claim waits for `SETTLE_S`, after which each release for all namespaces has seen it, and then
annotates the claim as settled. A settled claim needs no such wait again, whichever release takes it
over, because a release for all namespaces deletes an expired claim before it takes back the
namespace. So a namespace goes to the release that names it, in any order of starts.

Only one of two releases for all namespaces leads: each lists Leases before it acquires its own and
once more after that, so that of two concurrent ones at least one sees the other.

A Lease is alive while this process sees it renewed, by its own clock; a Lease that a user deleted
counts as alive for as long as one that is no longer renewed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

import structlog

from liftbridge_operator.kube.errors import FencedError, ForbiddenError, KubeError
from liftbridge_operator.kube.kinds import LEASES
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.model.base import GROUP
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.lease import Lease, LeaseLostError, LeaseTimes, Marks, Others
from liftbridge_operator.process.reconciler import Key, Reconciler, RequeueAfter

RELEASE: Final = f"{GROUP}/release"
"""Label of Leases of operators: `EVERYWHERE` for one of all namespaces, `HERE` for a claim."""

EVERYWHERE: Final = "all-namespaces"
HERE: Final = "namespace"

CLAIM: Final = "liftbridge-operator-claim"
"""Name of the Lease that claims the namespace in which it lies."""

SETTLED: Final = f"{GROUP}/settled"
"""Annotation of a claim that each release for all namespaces has seen."""

CLAIM_TIMES: Final = LeaseTimes(duration_s=60.0, renew_s=40.0, retry_s=10.0)
LOOK_S: Final = 5.0
"""Interval of lists of all claims."""

CERTAIN_S: Final = 15.0
"""Validity of a list of claims; not a setting, since all releases rely on it."""

SETTLE_S: Final = 25.0
"""Time after which a claim is settled: no older list is valid, and no write is in flight."""

DURATION_S: Final = 60.0
"""Duration of a Lease that does not specify one."""

REMEDY: Final = "uninstall one of the two, or give them different watchNamespaces"

log = structlog.get_logger("liftbridge.operator")

Place = tuple[str, str]


class Claims(Others, Protocol):
    """Namespaces that the release of this process manages.

    Attributes:
        marks: Labels and annotations of the Lease by which one process of the release leads.
        left: Namespaces that are left to another release, with its name.
    """

    marks: Marks
    left: dict[str, str]

    @property
    def rivals(self) -> frozenset[str]:
        """Releases that keep this one from namespaces that it should manage."""

    def has(self, namespace: str) -> bool:
        """Return whether it is certain that no other release writes there."""

    def is_left(self, namespace: str) -> bool:
        """Return whether no pass may start there; `keep` reports when that changes."""

    async def keep(self) -> None:
        """Renew claims, or list those of other releases, for as long as this process leads.

        Raises:
            LeaseLostError: Claims of other releases can no longer be listed.
        """

    def hindrances(self, *, is_leading: bool) -> list[str]:
        """Return causes that keep the release from namespaces that it should manage.

        Args:
            is_leading: Whether this process leads its release.
        """


@dataclass(frozen=True, slots=True)
class LeaderFence:
    """See `kube.port.Fence`: this process leads its release, and the release has the namespace."""

    lease: Lease
    claims: Claims

    def check(self, namespace: str) -> None:
        """See `kube.port.Fence`."""
        self.lease.check()
        if not self.claims.has(namespace):
            raise FencedError(f"namespace {namespace} is not this release's with certainty")

    async def hold(self) -> None:
        """Hold lease and claims until one is lost.

        Raises:
            LeaseLostError: Always, once one is lost.
        """
        loop = asyncio.get_running_loop()
        tasks = loop.create_task(self.lease.hold()), loop.create_task(self.claims.keep())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class ClaimedReconciler:
    """Skips passes in namespaces that are left to another release."""

    reconciler: Reconciler
    claims: Claims

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """See `Reconciler`."""
        if self.claims.is_left(key.namespace):
            return None
        return await self.reconciler.reconcile(key)


class NamespaceClaims:
    """Claims of a release for some namespaces; see `Claims`.

    Attributes:
        marks: Remove the label of a release for all namespaces, which this one may have been.
        left: Namespaces that another release claims, with its name.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        release: str,
        namespaces: Collection[str],
        clock: Clock,
        rng: Random,
        on_gain: Callable[[], None],
    ) -> None:
        """Start without claims.

        Args:
            kube: A port without a fence.
            release: Name of the release in claims, whichever of its processes leads.
            namespaces: Namespaces to claim.
            clock: Time.
            rng: Source of jitter.
            on_gain: Called when a namespace was gained, whose resources need a pass.
        """
        self.marks: Marks = {"labels": {RELEASE: None}}
        self.left: dict[str, str] = {}
        self._clock = clock
        self._on_gain = on_gain
        self._settled: set[str] = set()
        self._leases = {
            namespace: Lease(
                kube,
                namespace=namespace,
                name=CLAIM,
                identity=release,
                clock=clock,
                rng=rng,
                times=CLAIM_TIMES,
            )
            for namespace in sorted(namespaces)
        }

    @property
    def rivals(self) -> frozenset[str]:
        """See `Claims`."""
        return frozenset(self.left.values())

    def has(self, namespace: str) -> bool:
        """See `Claims`."""
        return namespace in self._settled and self._leases[namespace].is_leader

    def is_left(self, namespace: str) -> bool:
        """See `Claims`."""
        return not self.has(namespace)

    async def may_lead(self, *, has_lease: bool) -> bool:
        """See `lease.Others`: always True; conflicts concern single namespaces only."""
        del has_lease
        return True

    async def keep(self) -> None:
        """See `Claims`: renew all claims, each independently."""
        async with asyncio.TaskGroup() as group:
            for namespace, lease in self._leases.items():
                group.create_task(self._keep(namespace, lease))

    def hindrances(self, *, is_leading: bool) -> list[str]:
        """See `Claims`."""
        return [
            f"claim: namespace {namespace} is claimed by release {self.left[namespace]}; {REMEDY}"
            if namespace in self.left
            else f"claim: namespace {namespace} is not claimed with certainty yet"
            for namespace in self._leases
            if is_leading and not self.has(namespace)
        ]

    async def _keep(self, namespace: str, lease: Lease) -> None:
        while True:
            try:
                await self._take(namespace, lease)
                self._settled.add(namespace)
                log.info("namespace_claimed", namespace=namespace)
                self._on_gain()
                await lease.hold()
            except (LeaseLostError, KubeError) as error:
                log.warning("claim_lost", namespace=namespace, error=str(error))
            finally:
                self._settled.discard(namespace)

    async def _take(self, namespace: str, lease: Lease) -> None:
        """Wait until this release holds the claim, and all other releases have seen it."""
        lease.marks = {"labels": {RELEASE: HERE}}
        while not await lease.take():
            self._report_holder(namespace, lease.holder)
            await lease.pause()
        self._report_holder(namespace, "")
        if not lease.has_annotation(SETTLED):
            await self._clock.sleep(SETTLE_S)
            lease.marks = {**lease.marks, "annotations": {SETTLED: "true"}}
            await lease.renew()

    def _report_holder(self, namespace: str, holder: str) -> None:
        if holder and self.left.get(namespace) != holder:
            log.error("release_conflict", namespace=namespace, rival=holder, remedy=REMEDY)
        elif not holder and namespace in self.left:
            log.info("release_conflict_over", namespace=namespace, former=self.left[namespace])
        if holder:
            self.left[namespace] = holder
        else:
            self.left.pop(namespace, None)


class _Seen(NamedTuple):
    """A Lease as last seen.

    Attributes:
        version: Resource version.
        since_s: When this version was first seen.
        holder: Its holder; empty for none.
        duration_s: Time for which it is alive without a renewal.
    """

    version: str
    since_s: float
    holder: str
    duration_s: float

    def lives(self, now_s: float) -> bool:
        """Return whether its holder may still run."""
        return bool(self.holder) and now_s - self.since_s < self.duration_s


class AllClaims:
    """Claims of other releases, as seen by a release for all namespaces; see `Claims`.

    Attributes:
        marks: Labels by which other releases for all namespaces find this release's Lease.
        left: Namespaces that another release claims, with its name.
        rival: Other leading release for all namespaces, as last seen; empty for none.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        clock: Clock,
        on_gain: Callable[[], None],
    ) -> None:
        """Start without knowledge of other releases.

        Args:
            kube: A port without a fence.
            namespace: Namespace of this release's Lease.
            name: Name of this release's Lease.
            clock: Time.
            on_gain: Called when a namespace was gained, whose resources need a pass.
        """
        self.marks: Marks = {"labels": {RELEASE: EVERYWHERE}}
        self.left: dict[str, str] = {}
        self.rival = ""
        self._kube = kube
        self._own = (namespace, name)
        self._clock = clock
        self._on_gain = on_gain
        self._seen: dict[Place, _Seen] = {}
        self._looked_s: float | None = None
        self._refusal = ""

    @property
    def rivals(self) -> frozenset[str]:
        """See `Claims`: a release that names single namespaces is no rival."""
        return frozenset({self.rival} - {""})

    def has(self, namespace: str) -> bool:
        """See `Claims`."""
        return self._is_certain and namespace not in self.left

    def is_left(self, namespace: str) -> bool:
        """See `Claims`."""
        return namespace in self.left

    async def keep(self) -> None:
        """See `Claims`: list the claims of other releases."""
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                await self._leave(*await self._look())
            except KubeError as error:
                log.warning("claims_not_seen", error=str(error))
            if not self._is_certain:
                raise LeaseLostError(f"claims of other releases were not seen for {CERTAIN_S:g} s")

    def hindrances(self, *, is_leading: bool) -> list[str]:
        """See `Claims`."""
        del is_leading  # a leader has no rival
        if self._refusal:
            text = f"claim: Leases of all namespaces cannot be listed: {self._refusal}; "
            return [text + "let the account list them, or set watchNamespaces"]
        if self.rival:
            return [f"claim: release {self.rival} watches all namespaces, and leads; {REMEDY}"]
        return []

    async def may_lead(self, *, has_lease: bool) -> bool:
        """See `lease.Others`: return whether no other release for all namespaces leads."""
        try:
            asked_s, found = await self._look()
        except ForbiddenError as refused:
            if not self._refusal:
                remedy = "let the account list Leases, or set watchNamespaces"
                log.warning("claims_not_seen", error=str(refused), remedy=remedy)
            self._refusal = refused.message
            return False
        self._refusal = ""
        rivals = sorted(
            place for place in self._living() if place[1] != CLAIM and place != self._own
        )
        self._report_rival("/".join(rivals[0]) if rivals else "")
        if has_lease and not rivals:
            self._looked_s = asked_s
            await self._leave(asked_s, found)
        return not rivals

    async def settle(self) -> None:
        """List Leases for as long as it takes to know which are alive, without leading.

        Raises:
            KubeError: They cannot be listed.
        """
        await self._look()
        longest_s = max((one.duration_s for one in self._living().values()), default=0.0)
        if longest_s:
            await self._clock.sleep(longest_s)
            await self._look()
        living = self._living()
        self.rival = next(("/".join(one) for one in living if one[1] != CLAIM), "")
        self.left = {place[0]: one.holder for place, one in living.items() if place[1] == CLAIM}

    @property
    def _is_certain(self) -> bool:
        return self._looked_s is not None and self._clock.now() - self._looked_s < CERTAIN_S

    async def _look(self) -> tuple[float, Mapping[Place, Object]]:
        """List Leases of operators; return the time of the request and the Leases."""
        asked_s = self._clock.now()
        listed = await self._kube.list_all(LEASES, "", selector=RELEASE)
        now_s = self._clock.now()
        found = {_place(item): item for item in listed.items if _place(item) != self._own}
        for place, lease in found.items():
            spec, version = lease.get("spec") or {}, str(lease["metadata"]["resourceVersion"])
            known = self._seen.get(place)
            self._seen[place] = _Seen(
                version,
                known.since_s if known is not None and known.version == version else now_s,
                str(spec.get("holderIdentity") or ""),
                float(spec.get("leaseDurationSeconds") or DURATION_S),
            )
        return asked_s, found

    def _living(self) -> dict[Place, _Seen]:
        """Return Leases of other releases whose holders may still run."""
        now_s, own = self._clock.now(), "/".join(self._own)
        return {
            place: one
            for place, one in self._seen.items()
            if one.lives(now_s) and one.holder != own
        }

    async def _leave(self, asked_s: float, found: Mapping[Place, Object]) -> None:
        """Leave claimed namespaces alone, and take back those whose claims have expired."""
        if not self._is_certain:
            return
        living = self._living()
        left = {place[0]: one.holder for place, one in living.items() if place[1] == CLAIM}
        for place, lease in found.items():
            if place[1] == CLAIM and place not in living and not await self._take_back(lease):
                left[place[0]] = self._seen[place].holder
        self._seen = {
            place: one for place, one in self._seen.items() if place in living or place in found
        }
        if not self._is_certain:
            return  # deletions took too long: the list is no longer valid
        for namespace in sorted(left.keys() - self.left.keys()):
            log.info("namespace_left", namespace=namespace, release=left[namespace])
        gained = sorted(self.left.keys() - left.keys())
        self.left, self._looked_s = left, asked_s
        for namespace in gained:
            log.info("namespace_taken_back", namespace=namespace)
        if gained:
            self._on_gain()

    async def _take_back(self, claim: Object) -> bool:
        """Delete an expired claim; return whether that succeeded."""
        namespace = _place(claim)[0]
        try:
            await self._kube.delete(LEASES, namespace, CLAIM, preconditions=Preconditions.of(claim))
        except KubeError as error:
            log.warning("claim_not_deleted", namespace=namespace, error=str(error))
            return False
        return True

    def _report_rival(self, rival: str) -> None:
        if rival and rival != self.rival:
            log.error("release_conflict", rival=rival, remedy=REMEDY)
        elif self.rival and not rival:
            log.info("release_conflict_over", former=self.rival)
        self.rival = rival


def _place(lease: Object) -> Place:
    return str(lease["metadata"].get("namespace")), str(lease["metadata"].get("name"))
