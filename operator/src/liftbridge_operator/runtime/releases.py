"""Other releases of the operator: of two that look after the same namespaces, one leads.

Each release has a Lease of its own, which says by a label that it is one of operators, and by an
annotation which namespaces they look after. A release leads only while no other one that lives,
and that looks after a namespace of its own, holds its Lease. It looks before it takes its Lease,
and once more after that: of two that take theirs at the same moment both have written before
either looks, so that one of them sees the other and gives its Lease back.

A Lease lives as long as somebody is seen to renew it, by this process' own clock.
"""

from collections.abc import Collection
from typing import Final

import structlog

from liftbridge_operator.kube.errors import ForbiddenError
from liftbridge_operator.kube.kinds import LEASES
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model.base import GROUP
from liftbridge_operator.runtime.clock import Clock

RELEASE: Final = f"{GROUP}/release"
"""Label of Leases of operators."""

WATCHES: Final = f"{GROUP}/watches"
"""Annotation with the namespaces that a release looks after."""

EVERYWHERE: Final = "*"
DURATION_S: Final = 15.0
"""Of a Lease that does not say how long it lasts."""

log = structlog.get_logger("liftbridge.operator")


class Releases:
    """What one process knows of the other releases.

    Attributes:
        rival: Release that leads over the same namespaces, as it was seen last; empty for none.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        watched: Collection[str],
        clock: Clock,
    ) -> None:
        """Nobody is known yet.

        Args:
            kube: A port without a fence.
            namespace: Of the own Lease.
            name: Of the own Lease.
            watched: Namespaces that are looked after; all when empty.
            clock: Measures.
        """
        self.rival = ""
        self._kube = kube
        self._own = (namespace, name)
        self._watched = frozenset(watched)
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[str, float]] = {}
        self._may_look = True

    @property
    def marks(self) -> dict[str, dict[str, str]]:
        """Labels and annotations of the own Lease."""
        watches = ",".join(sorted(self._watched)) or EVERYWHERE
        return {"labels": {RELEASE: "operator"}, "annotations": {WATCHES: watches}}

    async def look(self) -> str:
        """The release that leads over the same namespaces; empty for none.

        Raises:
            KubeError: It is not known.
        """
        if not self._may_look:
            return ""
        try:
            found = await self._kube.list_all(LEASES, "", selector=f"{RELEASE}=operator")
        except ForbiddenError as error:
            self._may_look = False
            log.warning("releases_not_seen", error=error.message)
            return ""
        living = [one for one in found.items if self._is_rival(one)]
        rival = "/".join(_place(living[0])) if living else ""
        if rival != self.rival:
            self._tell(rival, living)
        self.rival = rival
        return rival

    def _tell(self, rival: str, living: list[Object]) -> None:
        if rival:
            watches = _watches(living[0])
            log.error(
                "release_conflict",
                rival=rival,
                watches=watches,
                remedy="uninstall one of the two, or give them different watchNamespaces",
            )
        else:
            log.info("release_conflict_over", former=self.rival)

    def _is_rival(self, lease: Object) -> bool:
        if _place(lease) == self._own:
            return False
        watches = _watches(lease).split(",")
        is_apart = (
            bool(self._watched) and EVERYWHERE not in watches and self._watched.isdisjoint(watches)
        )
        return not is_apart and self._lives(lease)

    def _lives(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        version, now = str(lease["metadata"].get("resourceVersion")), self._clock.now()
        seen, since = self._seen.get(_place(lease), ("", now))
        if seen != version:
            since = now
        self._seen[_place(lease)] = (version, since)
        duration_s = float(spec.get("leaseDurationSeconds") or DURATION_S)
        return bool(spec.get("holderIdentity")) and now - since < duration_s


def _place(lease: Object) -> tuple[str, str]:
    return str(lease["metadata"].get("namespace")), str(lease["metadata"].get("name"))


def _watches(lease: Object) -> str:
    """Namespaces that its release looks after; all when nothing says so."""
    return str((lease["metadata"].get("annotations") or {}).get(WATCHES) or EVERYWHERE)
