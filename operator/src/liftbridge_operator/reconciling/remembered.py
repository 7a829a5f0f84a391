"""What a process knows of a cluster from pass to pass, and what a pass finds out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from liftbridge_operator.acting.hands import Trouble
from liftbridge_operator.acting.supply import Monitored
from liftbridge_operator.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.model.cluster_status import DriftEntry, RestartStatus
from liftbridge_operator.observing.answers import Answers
from liftbridge_operator.observing.reads import Reads
from liftbridge_operator.observing.wishes import Specification
from liftbridge_operator.planning import actions as act
from liftbridge_operator.planning.decision import Decision, Memory, Wait
from liftbridge_operator.planning.observation import Observation
from liftbridge_operator.planning.status import with_wait
from liftbridge_operator.reconciling.ports import Connection, Issued, Served
from liftbridge_operator.reconciling.sight import Subject


@dataclass(slots=True)
class Remembered:
    """What this process knows of a cluster from the passes before.

    Attributes:
        monitored: How the objects for the Prometheus operator stand.
        served: What brokers said of their certificates; None when nobody was asked yet.
        moving: Partitions that were seen to be moved since none was.
        restarts: Restarts that the status does not tell of yet, by broker.
        drift: Changes that were changed back, of which the status does not tell yet.
        undone: The action that was not done, and why; empty when it was.
    """

    uid: str
    memory: Memory
    connection: Connection | None = None
    tls: TlsMaterial | None = None
    tokens: dict[str, bytes] = field(default_factory=dict)
    refused: Trouble | None = None
    monitored: Monitored = field(default_factory=Monitored)
    served: Served | None = None
    moving: set[str] = field(default_factory=set)
    restarts: dict[str, RestartStatus] = field(default_factory=dict)
    drift: list[DriftEntry] = field(default_factory=list)
    undone: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Pass:
    """What a pass has found out so far.

    Attributes:
        trouble: Why nothing may be done.
    """

    reads: Reads
    given: Specification
    subject: Subject | None
    issued: Issued
    answers: Answers
    seen: Observation
    trouble: Trouble | None = None


def reason_of(found: Pass, action: act.DeletePod) -> str:
    """Why a pod was ended, in one word."""
    seen = found.seen
    under_way = seen.recorded.disruption
    if any(one.broker == action.name for one in seen.wanted.replace):
        return "VolumeReplaced"
    if under_way is None or under_way.pod_uid != action.uid:
        return "NotRunning"
    pod = next((one for one in seen.pods if one.uid == action.uid), None)
    is_asked = pod is not None and pod.revision == seen.wanted.revision
    return "RestartRequested" if is_asked else "RollingUpdate"


def moved_of(known: Remembered, seen: Observation, before: Mapping[str, Any]) -> int:
    """Partitions whose moves have all ended since the last pass."""
    if seen.metadata is None:
        return 0
    moving = {one.name for one in seen.metadata.partitions if one.target}
    if moving:
        known.moving |= moving
        return 0
    count = len(known.moving) or int((before.get("partitions") or {}).get("moving") or 0)
    known.moving.clear()
    return count


def until_done(decision: Decision, known: Remembered, now_ms: int) -> Decision:
    """The decision, with what keeps its action from being done, pass after pass.

    Args:
        decision: What was decided.
        known: With the memory of the pass before.
        now_ms: Of this pass.
    """
    name, why = known.undone
    if not name or type(decision.action).__name__ != name:
        return decision
    return with_wait(decision, Wait("ActionRefused", name, why), known.memory, now_ms)


def until_issued(decision: Decision, found: Pass, former: Memory) -> Decision:
    """The decision, put off while pods would wait for a Secret that is not there yet.

    Args:
        decision: What was decided.
        found: What it was decided on.
        former: Memory of the pass before, which knows since when something is waited for.
    """
    if not (found.issued.is_waiting and isinstance(decision.action, act.CreateSet)):
        return decision
    what = found.issued.certificates.secret or found.seen.wanted.name
    wait = Wait("CertificateIssuing", what, found.issued.certificates.detail)
    return with_wait(replace(decision, action=None), wait, former, found.seen.now_ms)
