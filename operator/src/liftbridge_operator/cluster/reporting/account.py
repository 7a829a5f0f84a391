"""Inputs of a status, and the values of placeholders in texts of the catalogue."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.cluster.planning.clock import as_counted
from liftbridge_operator.cluster.planning.decision import Decision, Status, Wait
from liftbridge_operator.cluster.planning.observation import Observation, StuckCause
from liftbridge_operator.cluster.planning.refusals import REFUSALS
from liftbridge_operator.cluster.planning.view import View
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.cluster_status import FailedRevision
from liftbridge_operator.model.units import MILLISECOND_NS
from liftbridge_operator.model.values import duration_ns

NAMES_MAX: Final = 5
CLOCK_OFF_MS: Final = 15_000
"""Clock difference from which it is reported; answers come some seconds into a pass."""

_STEPS_SECONDS: Final = (15, 30, 60, 300, 900, 3_600, 14_400, 86_400)

GATED: Final = frozenset(
    {
        "AmbiguousIdentity",
        "AnotherDisruption",
        "BrokerDown",
        "IsrNotFull",
        "MetadataQuorumAtRisk",
        "MetadataUnknown",
        "MovingPartitions",
        "NatsUnreachable",
        "NodeCordoned",
        "RiskUnknown",
        "RoutesMissing",
        "Unreplicated",
        "VolumeFull",
    }
)
"""Kinds of waits by a closed gate."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """State of the certificates.

    Attributes:
        reason: Reason of the condition `CertificatesReady`.
        detail: Human-readable detail.
        phase: Phase of a rotation; empty for none.
        authority: SHA-256 of the authority that signs.
        not_after_ms: End of the certificate that expires first; 0 for unknown.
        secret: Secret with the problem, if any.
        peer_keys: Phase of an exchange of peer keys; empty for unknown.
    """

    reason: str = "Issuing"
    detail: str = "the Secret is not there yet"
    phase: str = ""
    authority: str = ""
    not_after_ms: int = 0
    secret: str = ""
    peer_keys: str = ""


@dataclass(frozen=True)
class Account:
    """All inputs of a status.

    Attributes:
        spec: None when it cannot be read.
        pending: Claims without a bound volume.
        unresized: Claims whose file system is smaller than their volume.
        next_window_ms: When disruptions are allowed again; 0 for unknown, or now.
        monitoring: Reason of `MonitoringReady` with its values.
        trouble: A reason of `Stalled` with its values, when the API server refused a write.
        failed: Revision with which a pod failed, and the cause.
    """

    spec: ClusterSpec | None
    seen: Observation
    decision: Decision
    certificates: Certificates = Certificates()
    pending: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unresized: tuple[str, ...] = ()
    next_window_ms: int = 0
    monitoring: tuple[str, Mapping[str, str]] = ("NotReconciled", {})
    trouble: tuple[str, Mapping[str, str]] | None = None
    failed: FailedRevision | None = None

    @property
    def status(self) -> Status:
        """Status from the planner."""
        return self.decision.status

    @cached_property
    def view(self) -> View:
        """Lookups of the observation by name."""
        return View(as_counted(self.seen, self.decision.memory)[0])

    @property
    def is_founded(self) -> bool:
        """Return whether founding of the cluster has started."""
        return self.seen.identity is not None and self.seen.identity.is_started

    @property
    def is_silent(self) -> bool:
        """Return whether no broker answers."""
        return not self.seen.reports

    @cached_property
    def stalled(self) -> str:
        """Reason that only a user can resolve; empty for none."""
        if self.trouble is not None:
            return self.trouble[0]
        if self.status.stalled:
            return self.status.stalled
        blocked = self.overdue
        if blocked is None or self.decision.action is not None:
            return ""
        return "NodeLost" if blocked.what == StuckCause.NODE_LOST else "GateBlocked"

    @cached_property
    def overdue(self) -> Wait | None:
        """Wait for a gate or a node that exceeds `spec.disruption.reportAfter`; None for none."""
        if self.spec is None:
            return None
        bound_ms = duration_ns(self.spec.disruption.report_after) // MILLISECOND_NS
        is_rolling = self.status.progressing == "RollingUpdate"
        for wait in self.status.waits:
            is_gate = is_rolling and wait.what in GATED
            is_late = self.seen.now_ms - wait.since_ms >= bound_ms
            if is_late and (is_gate or wait.what == StuckCause.NODE_LOST):
                return wait
        return None

    @cached_property
    def wait(self) -> Wait:
        """Wait to report first: one that only a user can end comes before other waits."""
        waits = self.status.waits
        stalled = [wait for wait in waits if wait.is_stalled]
        none = Wait("Reconciling", self.seen.desired.name, "the next step is done")
        return next(iter((*stalled, *waits)), none)

    @cached_property
    def clocks_off(self) -> dict[str, int]:
        """Brokers whose clocks are off, with the difference in coarse seconds."""
        off = {
            report.broker: abs(report.clock_ms - self.seen.now_ms) if report.clock_ms else 0
            for report in self.seen.reports
        }
        return {broker: coarse(ms // 1_000) for broker, ms in off.items() if ms >= CLOCK_OFF_MS}

    @property
    def progressing(self) -> str:
        """Reason of the work under way; empty for none, and while a user has to act."""
        if self.stalled or self.seen.desired.is_paused:
            return ""
        if self.status.progressing:
            return self.status.progressing
        is_acting = self.decision.action is not None and not self.status.is_ready
        return "Reconciling" if is_acting else ""

    @cached_property
    def values(self) -> dict[str, object]:
        """Values of all placeholders."""
        return {**self._counts(), **self._things(), **(self.trouble[1] if self.trouble else {})}

    def _counts(self) -> dict[str, object]:
        status, view = self.status, self.view
        partitions = list(view.partitions())
        voters = view.voters()
        moving = sum(1 for partition in partitions if partition.target)
        victims = view.names[status.replicas and self.seen.desired.replicas :]
        return {
            "ready": status.ready_replicas,
            "wanted": self.seen.desired.replicas,
            "generation": status.generation,
            "partitions": self._partition_count(len(partitions), moving),
            "replicas": sum(1 for one in partitions for name in one.replicas if name in victims),
            "updated": sum(1 for pod in view.pods.values() if pod.revision == view.revision),
            "running": sum(1 for pod in view.pods.values() if pod.is_running),
            "revision": self.seen.desired.revision,
            "alive": sum(1 for voter in voters if voter.is_alive) or len(self.seen.reports),
            "voters": len(voters)
            or len(self.seen.identity.founders if self.seen.identity else ())
            or len(view.names),
            "claims": len([claim for claim in view.claims.values() if not claim.is_retired]),
            "size": self.spec.storage.data.size if self.spec else "",
            "seconds": self._silence(),
            "hash": status.plan.hash,
        }

    def _partition_count(self, total: int, moving: int) -> int:
        status = self.status
        return status.offline or status.below_min_isr or status.under_replicated or moving or total

    def _silence(self) -> int:
        """Return for how long no broker has answered, coarse so that the text changes rarely."""
        since = [
            wait.since_ms
            for wait in self.status.waits
            if wait.what in ("MetadataUnknown", "BrokersNotReady")
        ]
        return coarse((self.seen.now_ms - min(since)) // 1_000) if since else 0

    def _things(self) -> dict[str, object]:
        view, wait = self.view, self.overdue or self.wait
        away = [name for name in view.names if not self._is_ready(name)]
        pod = view.pods.get(wait.object)
        blockers = self.status.disruption_blockers
        claims = [*view.claims.values(), *self.seen.raft_claims]
        growing = [one for one in claims if one.capacity_bytes < one.requested_bytes]
        claim = growing[0] if growing else None
        end_ms = self.next_window_ms or self.certificates.not_after_ms
        return {
            "what": wait.what,
            # For a missing right, the server's message is the full explanation.
            "object": f"{wait.object}: {wait.ends_when}"
            if wait.what == "MissingRights"
            else wait.object,
            "verb": "change",
            "class": next((one.class_name for one in claims if one.name == wait.object), "")
            or "of its volume",
            "detail": self._detail(wait),
            "cause": self.failed.cause if self.failed else "it is not ready",
            "pod": wait.object,
            "node": (pod.node if pod else "") or "unknown",
            "since": moment_text(wait.since_ms),
            "broker": next((one.broker for one in self.seen.desired.replace), wait.object),
            "brokers": listed(away),
            "worst": next((blocker for blocker in blockers if "/" in blocker), "none"),
            "claim": claim.name if claim else next(iter((*self.lost, *self.pending)), "none"),
            "from": claim.capacity_bytes if claim else 0,
            "to": claim.requested_bytes if claim else 0,
            "free": "no room",
            "phase": self.certificates.phase,
            "time": moment_text(end_ms),
            "secret": self.certificates.secret,
        }

    def _detail(self, wait: Wait) -> str:
        """Return the cause of a wait where known, else the condition that ends it."""
        if wait.what == "BadRevision" and self.failed is not None:
            return self.failed.cause
        if wait.what in REFUSALS or wait.what == "Conflict":
            return wait.ends_when or wait.what
        return f"until {wait.ends_when}" if wait.ends_when else wait.what

    def _is_ready(self, name: str) -> bool:
        pod, is_known = self.view.pods.get(name), self.seen.metadata is not None
        is_up = pod is not None and pod.is_ready and not pod.is_terminating
        return is_up and (not is_known or self.view.is_serving(name))

    @property
    def is_whole(self) -> bool:
        """Return whether all desired brokers are ready and, as far as known, serving."""
        desired = self.seen.desired.replicas
        return sum(map(self._is_ready, self.view.names)) >= desired


def coarse(seconds: int) -> int:
    """Round seconds down to a coarse step, so that texts change rarely."""
    return max((step for step in _STEPS_SECONDS if step <= seconds), default=0)


def listed(names: Iterable[str]) -> str:
    """Join the first `NAMES_MAX` names for a text."""
    found = list(names)
    more = len(found) - NAMES_MAX
    return (", ".join(found[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")) or "none"


def filled(values: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Select the values of a text's placeholders."""
    return {name: values[name] for name in fields}
