"""Leader election on a Lease: of two operators one acts, and knows for how long it may.

The leader renews every `retry_s`. Who has not renewed for `renew_s` writes nothing any more and
ends; others take over after `duration_s` in which they saw no renewal. All three are counted on
each one's own monotonic clock, the leader's from before its request was sent and the others' from
after they saw the change: clocks need not agree, and a process that was stopped in between finds
itself fenced.

The library has an election as well; it counts by the time of day, waits five minutes for an answer
and cannot be asked for the age of the lease, so it is not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import structlog

from liftbridge_operator.kube.errors import (
    ConflictError,
    FencedError,
    KubeError,
    NotFoundError,
)
from liftbridge_operator.kube.events import micro_time
from liftbridge_operator.kube.kinds import LEASES
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.runtime.clock import Clock

log = structlog.get_logger("liftbridge.operator")

Marks: TypeAlias = Mapping[str, Mapping[str, str | None]]
"""`labels` and `annotations`, by name."""

_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of the election, in seconds.

    Attributes:
        duration_s: Others take over after this time without a renewal.
        renew_s: The leader gives up after this time without a renewal.
        retry_s: From one attempt to the next, of the leader and of the others.
    """

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        assert self.retry_s < self.renew_s < self.duration_s, (
            "a leader gives up before it is replaced"
        )


class LeaseLostError(Exception):
    """This process does not lead any more; it ends, and another one begins."""


class Others(Protocol):
    """Other releases, of which one may lead already."""

    async def may_lead(self, *, has_lease: bool) -> bool:
        """Whether this release may lead beside them.

        Args:
            has_lease: Whether this process has the Lease of its release by now.

        Raises:
            KubeError: It is not known.
        """


class Lease:
    """One holder's part in the election; the fence of everything that it writes.

    Attributes:
        identity: What this holder is called in the Lease; no other one is called so.
        marks: Labels and annotations that each write of the Lease brings along; null takes one
            away.
        holder: Who else holds the Lease, as it was seen last; empty for nobody.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        rng: Random,
        times: LeaseTimes = LeaseTimes(),
        others: Others | None = None,
        marks: Marks = MappingProxyType({}),
    ) -> None:
        """A part in the election that has not begun.

        Args:
            kube: A port without a fence, whose calls end well before `times.renew_s`.
            namespace: Of the Lease.
            name: Of the Lease.
            identity: Unique among all processes of all times.
            clock: Measures.
            rng: Of the jitter.
            times: All processes must have the same.
            others: Asked before the Lease is taken, and once more after that; None for none.
            marks: See the attribute.
        """
        self.identity = identity
        self.marks = marks
        self.holder = ""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._rng = rng
        self._times = times
        self._others = others
        self._mine: Object | None = None
        self._renewed_s: float | None = None
        self._seen: tuple[str, float] = ("", 0.0)
        self._heard_s: float | None = None

    @property
    def silence_s(self) -> float | None:
        """Time since the API server last said something about the lease; None for never."""
        return None if self._heard_s is None else self._clock.now() - self._heard_s

    @property
    def age_s(self) -> float | None:
        """Time since the lease was certainly renewed; None when this process does not lead."""
        return None if self._renewed_s is None else self._clock.now() - self._renewed_s

    @property
    def is_leader(self) -> bool:
        """Whether it is certain that nobody else leads."""
        age = self.age_s
        return age is not None and age < self._times.renew_s

    def check(self) -> None:
        """As `kube.port.Fence`."""
        if not self.is_leader:
            raise FencedError(f"lease {self._namespace}/{self._name} is not held for certain")

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self.take():
            await self.pause()
        log.info("lease_acquired", identity=self.identity, lease=self._name)

    async def take(self) -> bool:
        """Whether this process leads, after one attempt."""
        try:
            if not await self._try_acquire():
                return False
            if await self._may_lead(has_lease=True):
                return True
        except KubeError as error:
            log.warning("lease_unreachable", lease=self._name, error=str(error))
        await self.release()
        return False

    async def _may_lead(self, *, has_lease: bool) -> bool:
        """Whether other releases leave this one alone."""
        if self._others is None:
            return True
        may_lead = await self._others.may_lead(has_lease=has_lease)
        self._heard_s = self._clock.now()
        return may_lead

    def has_annotation(self, name: str) -> bool:
        """Whether the Lease had it when it was written last."""
        metadata = self._mine["metadata"] if self._mine is not None else {}
        return name in (metadata.get("annotations") or {})

    async def hold(self) -> None:
        """Renew the lease until it is lost.

        Raises:
            LeaseLostError: Always, once it is.
        """
        while self.is_leader:
            await self.pause()
            if not self.is_leader:
                break  # it was stopped for too long: what it renewed now was not held meanwhile
            try:
                await self.renew()
            except KubeError as error:
                log.warning("lease_not_renewed", error=str(error), age_s=self.age_s)
        self._renewed_s = None
        raise LeaseLostError(f"lease {self._namespace}/{self._name} was not renewed in time")

    async def release(self) -> None:
        """Give the lease up, so that another process need not wait; nothing when it is not held.

        `hold` must have ended, or have been cancelled; what it had sent may have come through.
        """
        mine, was_leader = self._mine, self.is_leader
        self._renewed_s = None  # from here on nothing is written, whatever comes of this
        if mine is None or not was_leader:
            return
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._wall()}
        try:
            try:
                await self._patch(mine, spec)
            except ConflictError:
                await self._patch(await self._still_mine(), spec)
        except (KubeError, LeaseLostError) as error:
            log.warning("lease_not_released", error=str(error))
        else:
            log.info("lease_released", lease=self._name)

    async def _try_acquire(self) -> bool:
        try:
            found = await self._kube.get(LEASES, self._namespace, self._name)
        except NotFoundError:
            found = None
        self._heard_s = self._clock.now()
        spec = {} if found is None else found.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        is_held = bool(holder) and holder != self.identity
        if found is not None and is_held and not self._is_expired(found, spec):
            self.holder = holder
            return False
        self.holder = ""
        if not await self._may_lead(has_lease=False):
            return False
        asked = self._clock.now()
        if found is None:
            return await self._create(asked)
        taken = {
            **self._spec(),
            "acquireTime": self._wall(),
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
        }
        try:
            self._mine = await self._patch(found, taken)
        except ConflictError:
            return False  # somebody else was quicker
        self._renewed_s = asked
        return True

    async def _create(self, asked: float) -> bool:
        body: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace, **self._given()},
            "spec": {**self._spec(), "acquireTime": self._wall(), "leaseTransitions": 0},
        }
        try:
            self._mine = await self._kube.create(body)
        except ConflictError:
            return False
        self._renewed_s = asked
        return True

    async def renew(self) -> None:
        """One renewal; without one it is only certain that this process led before.

        Raises:
            LeaseLostError: Somebody else has the lease.
            KubeError: It is not known.
        """
        assert self._mine is not None, "only a leader renews"
        asked = self._clock.now()
        try:
            self._mine = await self._patch(self._mine, self._spec())
        except ConflictError:
            # Perhaps this process' own former renewal, whose answer was lost.
            self._mine = await self._patch(await self._still_mine(), self._spec())
        except NotFoundError:
            self._renewed_s = None
            raise LeaseLostError("the lease was deleted") from None
        if not self.is_leader:
            # What was refused meanwhile is not asked for again; whoever begins anew does.
            raise LeaseLostError("the answer to the renewal came too late")
        self._renewed_s = asked
        self._heard_s = self._clock.now()

    async def _still_mine(self) -> Object:
        """The lease as it is, held by this process.

        Raises:
            LeaseLostError: Somebody else holds it.
        """
        found = await self._kube.get(LEASES, self._namespace, self._name)
        holder = (found.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            self._renewed_s = None
            raise LeaseLostError(f"{holder or 'nobody'} holds the lease")
        return found

    def _is_expired(self, found: Object, spec: Mapping[str, Any]) -> bool:
        version, now = found["metadata"]["resourceVersion"], self._clock.now()
        if self._seen[0] != version:
            self._seen = (version, now)
        # A process of another version may have other times: what it says of itself counts.
        duration = float(spec.get("leaseDurationSeconds") or self._times.duration_s)
        return now - self._seen[1] >= duration

    async def _patch(self, seen: Object, spec: Mapping[str, Any]) -> Object:
        return await self._kube.patch(
            LEASES,
            self._namespace,
            self._name,
            {"metadata": {**self.marks}, "spec": dict(spec)},
            preconditions=Preconditions.of(seen),
        )

    async def pause(self) -> None:
        """Wait until it is time for the next attempt."""
        await self._clock.sleep(self._times.retry_s * (1 + _JITTER * self._rng.random()))

    def _given(self) -> dict[str, dict[str, str]]:
        """Marks of a Lease that is made: there is nothing to take away."""
        return {
            part: {name: value for name, value in marks.items() if value is not None}
            for part, marks in self.marks.items()
        }

    def _spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._times.duration_s),
            "renewTime": self._wall(),
        }

    def _wall(self) -> str:
        return micro_time(self._clock.wall())
