"""Leader election on a Lease: only one operator acts, and only while its lease is valid.

The leader renews every `retry_s`. A leader that has not renewed for `renew_s` stops writing and
ends; another process takes over after `duration_s` in which it saw no renewal. Each process
measures these times by its own monotonic clock, the leader from before its request was sent and
other processes from after they saw the change: clocks need not agree, and a process that was
suspended in between is fenced.

The client library also has an election; it uses the time of day, waits five minutes for an answer
and does not expose the age of the lease, so it is not used here.
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
from liftbridge_operator.process.clock import Clock

log = structlog.get_logger("liftbridge.operator")

Marks: TypeAlias = Mapping[str, Mapping[str, str | None]]
"""`labels` and `annotations`, by name."""

_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of the election, in seconds.

    Attributes:
        duration_s: Another process takes over after this time without a renewal.
        renew_s: The leader gives up after this time without a renewal.
        retry_s: Time between two attempts, of the leader and of other processes.
    """

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        assert self.retry_s < self.renew_s < self.duration_s, (
            "a leader gives up before it is replaced"
        )


class LeaseLostError(Exception):
    """This process no longer leads; it ends, and another one takes over."""


class Others(Protocol):
    """Other releases, one of which may already lead."""

    async def may_lead(self, *, has_lease: bool) -> bool:
        """Return whether this release may lead beside them.

        Args:
            has_lease: Whether this process already holds the Lease of its release.

        Raises:
            KubeError: The API server did not answer, so it is unknown.
        """


class Lease:
    """One candidate of the election, and the fence of everything that it writes.

    Attributes:
        identity: Unique name of this candidate in the Lease.
        marks: Labels and annotations that each write of the Lease sets; None removes one.
        holder: Other holder of the Lease, as last seen; empty for none.
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
        """Create a candidate, which does not compete yet.

        Args:
            kube: A port without a fence, whose calls end well before `times.renew_s`.
            namespace: Namespace of the Lease.
            name: Name of the Lease.
            identity: Name of this candidate, never reused by another process.
            clock: Time.
            rng: Source of jitter.
            times: Times of the election, equal in all processes.
            others: Checked before the Lease is acquired and once more after that; None for none.
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
        """Time since the API server last answered about the lease; None for never."""
        return None if self._heard_s is None else self._clock.now() - self._heard_s

    @property
    def age_s(self) -> float | None:
        """Time since the last confirmed renewal; None when this process does not lead."""
        return None if self._renewed_s is None else self._clock.now() - self._renewed_s

    @property
    def is_leader(self) -> bool:
        """Return whether it is certain that no other process leads."""
        age = self.age_s
        return age is not None and age < self._times.renew_s

    def check(self) -> None:
        """See `kube.port.Fence`."""
        if not self.is_leader:
            raise FencedError(f"lease {self._namespace}/{self._name} is not held with certainty")

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self.take():
            await self.pause()
        log.info("lease_acquired", identity=self.identity, lease=self._name)

    async def take(self) -> bool:
        """Try once to acquire the lease; return whether this process leads."""
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
        """Return whether no other release keeps this one from leading."""
        if self._others is None:
            return True
        may_lead = await self._others.may_lead(has_lease=has_lease)
        self._heard_s = self._clock.now()
        return may_lead

    def has_annotation(self, name: str) -> bool:
        """Return whether the Lease, as last written, has this annotation."""
        metadata = self._mine["metadata"] if self._mine is not None else {}
        return name in (metadata.get("annotations") or {})

    async def hold(self) -> None:
        """Renew the lease until it is lost.

        Raises:
            LeaseLostError: Always, once it is lost.
        """
        while self.is_leader:
            await self.pause()
            if not self.is_leader:
                break  # suspended for too long: a renewal now would not cover the gap
            try:
                await self.renew()
            except KubeError as error:
                log.warning("lease_not_renewed", error=str(error), age_s=self.age_s)
        self._renewed_s = None
        raise LeaseLostError(f"lease {self._namespace}/{self._name} was not renewed in time")

    async def release(self) -> None:
        """Release the lease, so that another process need not wait; no-op when it is not held.

        `hold` must have ended, or have been cancelled; a renewal that it sent may have succeeded.
        """
        mine, was_leader = self._mine, self.is_leader
        self._renewed_s = None  # from here on the fence refuses writes, whatever the outcome
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
            return False  # another process acquired it first
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
        """Renew once; after a failure it is only certain that this process led before.

        Raises:
            LeaseLostError: Another process holds the lease, it was deleted, or the answer was late.
            KubeError: The outcome is unknown.
        """
        assert self._mine is not None, "only a leader renews"
        asked = self._clock.now()
        try:
            self._mine = await self._patch(self._mine, self._spec())
        except ConflictError:
            # The conflict may be with this process' own former renewal, whose answer was lost.
            self._mine = await self._patch(await self._still_mine(), self._spec())
        except NotFoundError:
            self._renewed_s = None
            raise LeaseLostError("the lease was deleted") from None
        if not self.is_leader:
            # Passes that were fenced meanwhile are not repeated; a restarted process runs them.
            raise LeaseLostError("the answer to the renewal came too late")
        self._renewed_s = asked
        self._heard_s = self._clock.now()

    async def _still_mine(self) -> Object:
        """Read the lease, which this process must hold.

        Raises:
            LeaseLostError: Another process holds it.
        """
        found = await self._kube.get(LEASES, self._namespace, self._name)
        holder = (found.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            self._renewed_s = None
            raise LeaseLostError(f"{holder or 'no process'} holds the lease")
        return found

    def _is_expired(self, found: Object, spec: Mapping[str, Any]) -> bool:
        version, now = found["metadata"]["resourceVersion"], self._clock.now()
        if self._seen[0] != version:
            self._seen = (version, now)
        # A process of another version may have other times: the duration in its Lease counts.
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
        """Return the marks for a new Lease, without removals."""
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
