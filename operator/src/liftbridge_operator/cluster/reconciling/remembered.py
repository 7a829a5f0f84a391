"""Memory of a cluster between passes, and the findings of one pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from liftbridge_operator.cluster.acting.context import ActionContext, Done, Trouble
from liftbridge_operator.cluster.acting.on_objects import keep_token, larger
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.acting.supply import Monitored
from liftbridge_operator.cluster.acting.whole import Kept
from liftbridge_operator.cluster.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.cluster.observing.answers import Answers
from liftbridge_operator.cluster.observing.desired import Specification
from liftbridge_operator.cluster.observing.reads import Reads
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning import refusals
from liftbridge_operator.cluster.planning.decision import Decision, Memory, Wait
from liftbridge_operator.cluster.planning.observation import Observation
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.planning.status import with_wait
from liftbridge_operator.cluster.reconciling.inputs import Subject
from liftbridge_operator.cluster.reconciling.ports import Connection, Issued, Served
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.kinds import CLAIMS, CLUSTERS
from liftbridge_operator.kube.port import Fence, Kube, Preconditions
from liftbridge_operator.model.cluster_status import DriftEntry, RestartStatus


@dataclass(slots=True)
class Remembered:
    """Memory of a cluster from former passes of this process.

    Attributes:
        monitored: State of the objects for the Prometheus operator.
        served: Files that brokers report as loaded; None before any broker was asked.
        moving: Partitions seen moving since a pass last saw none.
        restarts: Restarts that the status does not contain yet, by broker.
        drift: Reverted drift that the status does not contain yet.
        untidied: Refusal to remove obsolete objects of a cluster at rest.
        undone: The last action, if it failed, and the cause; empty otherwise.
        kept: Objects as last applied.
        is_missed: Whether the pass before lacked answers, though all pods were ready.
    """

    uid: str
    memory: Memory
    connection: Connection | None = None
    tls: TlsMaterial | None = None
    tokens: dict[str, bytes] = field(default_factory=dict)
    monitored: Monitored = field(default_factory=Monitored)
    served: Served | None = None
    moving: set[str] = field(default_factory=set)
    restarts: dict[str, RestartStatus] = field(default_factory=dict)
    drift: list[DriftEntry] = field(default_factory=list)
    untidied: Trouble | None = None
    undone: tuple[str, str] = ("", "")
    kept: dict[str, Kept] = field(default_factory=dict)
    is_missed: bool = False

    def count_by(self, now_ms: int) -> None:
        """Reset start times that lie in the future, after the clock was set back."""
        ahead = {name: one for name, one in self.kept.items() if one.since_ms > now_ms}
        self.kept |= {name: replace(one, since_ms=now_ms) for name, one in ahead.items()}


class Moment(TypedDict):
    """Generation of the specification and time of day under which refusals are noted."""

    generation: int
    now_ms: int


@dataclass(slots=True)
class Pass:
    """Findings of a pass so far.

    Attributes:
        trouble: Problem that forbids any action.
        lacking: Problem that keeps pods from starting, while other objects are still maintained.
    """

    reads: Reads
    given: Specification
    subject: Subject | None
    issued: Issued
    answers: Answers
    seen: Observation
    trouble: Trouble | None = None
    lacking: Trouble | None = None

    @property
    def moment(self) -> Moment:
        """Generation and time of day under which refusals are noted."""
        return Moment(generation=self.seen.desired.generation, now_ms=self.seen.now_ms)

    @property
    def is_remade(self) -> bool:
        """Return whether the set is being recreated around its pods, which keep running."""
        return self.seen.recorded.shape is not None


def is_first_miss(known: Remembered, found: Pass) -> bool:
    """Return whether a ready cluster lacks answers for the first pass in a row.

    All its pods are ready: a late or lost answer is requested once more before the operator
    reports it or acts.
    """
    seen, resource = found.seen, found.reads.resource
    ready = [pod for pod in seen.pods if pod.is_ready and not pod.is_terminating]
    has_all = seen.metadata is not None and len(seen.reports) >= len(ready)
    size = seen.brokers.replicas if seen.brokers is not None else 0
    was_ready = any(
        (condition["type"], condition["status"], condition.get("observedGeneration"))
        == ("Ready", "True", seen.desired.generation)
        for condition in (resource.get("status") or {}).get("conditions") or ()
    )
    before = known.is_missed
    known.is_missed = was_ready and not has_all and len(ready) == len(seen.pods) == size
    return known.is_missed and not before


def reason_of(found: Pass, action: act.DeletePod) -> str:
    """Return the reason for the deletion of a pod, in one word."""
    seen = found.seen
    under_way = seen.recorded.disruption
    if any(replacement.broker == action.name for replacement in seen.desired.replace):
        return "VolumeReplaced"
    if under_way is None or under_way.pod_uid != action.uid:
        return "NotRunning"
    pod = next((one for one in seen.pods if one.uid == action.uid), None)
    is_asked = pod is not None and pod.revision == seen.desired.revision
    return "RestartRequested" if is_asked else "RollingUpdate"


def moved_of(known: Remembered, seen: Observation, before: Mapping[str, Any]) -> int:
    """Count the moved partitions once all moves have ended; 0 before."""
    if seen.metadata is None:
        return 0
    moving = {partition.name for partition in seen.metadata.partitions if partition.target}
    if moving:
        known.moving |= moving
        return 0
    count = len(known.moving) or int((before.get("partitions") or {}).get("moving") or 0)
    known.moving.clear()
    return count


def until_done(decision: Decision, known: Remembered, now_ms: int) -> Decision:
    """Add a wait to the decision when its action failed in the pass before.

    Args:
        decision: The planner's decision.
        known: Memory of the cluster.
        now_ms: Time of this pass.
    """
    name, why = known.undone
    if not name or type(decision.action).__name__ != name:
        return decision
    return with_wait(decision, Wait("ActionRefused", name, why), known.memory, now_ms)


def held_of(memory: Memory, kind: str, *, generation: int, now_ms: int) -> dict[str, Refusal]:
    """Return objects whose writes were refused and are not retried yet.

    Args:
        memory: Memory of the planner.
        kind: Kind of write in place of an action, such as `KEEPING`.
        generation: Generation of the specification; refusals of former ones do not count.
        now_ms: Time of day.
    """
    return {
        refusal.object: Refusal(refusal.reason, refusal.text, refusal.needs_person)
        for refusal in refusals.current(memory, generation).refused
        if refusal.action == kind and now_ms < refusal.until_ms
    }


def note_refusals(
    memory: Memory,
    kind: str,
    fresh: Mapping[str, Refusal],
    held: Mapping[str, Refusal],
    *,
    generation: int,
    now_ms: int,
) -> Memory:
    """Replace the refusals of a kind in the memory by those of this pass."""
    left = (one for one in memory.refused if one.action != kind or one.object in fresh)
    memory = replace(memory, refused=tuple(left))
    for name, refusal in fresh.items():
        if name not in held:
            memory = refusals.noted(memory, kind, name, refusal, generation=generation, now=now_ms)
    return memory


def refuse(memory: Memory, found: Pass, action: act.Action, refusal: Refusal) -> Memory:
    """Add the refusal of an action to the memory."""
    return refusals.noted(
        memory,
        type(action).__name__,
        refusals.object_of(action),
        refusal,
        generation=found.seen.desired.generation,
        now=found.seen.now_ms,
    )


def note_status_write(memory: Memory, found: Pass, error: KubeError | None) -> Memory:
    """Note whether the status was written; the next status that is written reports a refusal."""
    name = f"{CLUSTERS.kind}/{found.reads.name}"
    refusal = refusal_of(error) if error is not None else None
    if refusal is None:
        return refusals.settled(memory, refusals.STATUS, name)
    generation, now_ms = found.moment["generation"], found.moment["now_ms"]
    return refusals.noted(memory, refusals.STATUS, name, refusal, generation=generation, now=now_ms)


async def keep_consent(
    known: Remembered, context: ActionContext, action: act.Record, fence: Fence
) -> Refusal | None:
    """Store the token before the status names it; return the refusal, if any."""
    restart = action.recorded.disruption
    token = known.tokens.get(restart.token) if restart is not None else None
    if restart is None or token is None:
        return None
    fence.check(context.cluster.namespace)
    return await keep_token(context, restart.token, token)


async def would_grow(
    kube: Kube, known: Remembered, found: Pass, action: act.GrowClaim
) -> Refusal | None:
    """Return the API server's refusal of a larger volume by a dry run, once for each size.

    Raises:
        KubeError: It does not answer, or the claim has changed.
    """
    if refusals.of(known.memory, action) is not None:
        return None  # a retry is due
    try:
        await kube.patch(
            CLAIMS,
            found.reads.namespace,
            action.name,
            larger(action),
            preconditions=Preconditions(action.uid),
            dry_run=True,
        )
    except KubeError as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return refusal
    return None


def note_done(known: Remembered, found: Pass, action: act.Action, done: Done) -> None:
    """Remember whether an action was refused."""
    name, object_ = type(action).__name__, refusals.object_of(action)
    known.undone = (name, done.text) if done.text and done.refusal is None else ("", "")
    if done.refusal is not None:
        known.memory = refuse(known.memory, found, action, done.refusal)
    elif not done.text:
        known.memory = refusals.settled(known.memory, name, object_)


def until_issued(decision: Decision, found: Pass, former: Memory) -> Decision:
    """Postpone the creation of the set while its pods would wait for a missing Secret.

    Args:
        decision: The planner's decision.
        found: Findings on which it is based.
        former: Memory of the pass before, with the start of each wait.
    """
    is_first = isinstance(decision.action, act.CreateSet) and not found.is_remade
    if not (found.issued.is_waiting and is_first):
        return decision
    what = found.issued.certificates.secret or found.seen.desired.name
    wait = Wait("CertificateIssuing", what, found.issued.certificates.detail)
    return with_wait(replace(decision, action=None), wait, former, found.seen.now_ms)
