"""Resync: list all resources periodically, so that none is missed for good.

A watch may miss a deletion while it is broken, and a full queue refuses keys. Every listed resource
gets a pass, and so does every resource that was listed before and no longer exists.
"""

import asyncio
from collections.abc import Collection, Mapping
from random import Random
from typing import Final

import structlog

from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.kinds import Kind
from liftbridge_operator.kube.port import Kube
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.metrics import Metrics, label_of
from liftbridge_operator.process.reconciler import Key, Requests

RETRY_S: Final = 5.0
"""Time until the next list after a failed one."""

SPREAD: Final = 0.1
"""Fraction of the interval over which the passes of one resync are spread."""

log = structlog.get_logger("liftbridge.operator")


class Resync:
    """Lists all resources of some kinds.

    Attributes:
        is_complete: Whether all kinds have been listed once.
    """

    def __init__(
        self,
        kube: Kube,
        requests: Requests,
        *,
        kinds: Collection[Kind],
        namespaces: Collection[str],
        interval_s: float,
        clock: Clock,
        rng: Random,
        metrics: Metrics,
    ) -> None:
        """Start with nothing listed.

        Args:
            kube: The API server.
            requests: Receives a request for each resource.
            kinds: Kinds of the resources.
            namespaces: Their namespaces; all when empty.
            interval_s: Time between two lists.
            clock: Time.
            rng: Spreads the passes.
            metrics: Counts resyncs.
        """
        self.is_complete = False
        self._kube = kube
        self._requests = requests
        self._kinds = tuple(kinds)
        self._namespaces = tuple(namespaces) or ("",)
        self._interval_s = interval_s
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._known: Mapping[Kind, frozenset[Key]] = {}
        self._is_due = asyncio.Event()

    def hasten(self) -> None:
        """Bring the next list forward, since some resources got no pass."""
        self._is_due.set()

    async def run(self) -> None:
        """List now, after each interval and when hastened, until cancelled."""
        spread_s = 0.0
        while True:
            self._is_due.clear()
            is_done = await self._round(spread_s)
            self.is_complete = self.is_complete or is_done
            await self._clock.wait(self._is_due, self._interval_s if is_done else RETRY_S)
            is_spread = self.is_complete and not self._is_due.is_set()
            spread_s = self._interval_s * SPREAD if is_spread else 0.0

    async def _round(self, spread_s: float) -> bool:
        for kind in self._kinds:
            try:
                found = await self._keys(kind)
            except KubeError as error:
                log.warning("resync_failed", kind=kind.qualified, error=str(error))
                self._metrics.count("resyncs_total", label_of(kind), "failed")
                return False
            self._metrics.count("resyncs_total", label_of(kind), "done")
            for key in sorted(found | self._known.get(kind, frozenset()), key=str):
                self._requests.request(key, spread_s * self._rng.random())
            self._known = {**self._known, kind: found}
        return True

    async def _keys(self, kind: Kind) -> frozenset[Key]:
        found = set()
        for namespace in self._namespaces:
            for item in (await self._kube.list_all(kind, namespace)).items:
                metadata = item["metadata"]
                found.add(Key(kind, metadata["namespace"], metadata["name"]))
        return frozenset(found)
