"""What a process knows of a cluster from pass to pass, and what a pass finds out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from liftbridge_operator.acting.context import ActionContext, Done, Trouble
from liftbridge_operator.acting.on_objects import keep_token, larger
from liftbridge_operator.acting.refused import refusal_of
from liftbridge_operator.acting.supply import Monitored
from liftbridge_operator.acting.whole import Kept
from liftbridge_operator.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.kinds import CLAIMS, CLUSTERS
from liftbridge_operator.kube.port import Fence, Kube, Preconditions
from liftbridge_operator.model.cluster_status import DriftEntry, RestartStatus
from liftbridge_operator.observing.answers import Answers
from liftbridge_operator.observing.desired import Specification
from liftbridge_operator.observing.reads import Reads
from liftbridge_operator.planning import actions as act
from liftbridge_operator.planning import refusals
from liftbridge_operator.planning.decision import Decision, Memory, Wait
from liftbridge_operator.planning.observation import Observation
from liftbridge_operator.planning.refusals import Refusal
from liftbridge_operator.planning.status import with_wait
from liftbridge_operator.reconciling.inputs import Subject
from liftbridge_operator.reconciling.ports import Connection, Issued, Served


@dataclass(slots=True)
class Remembered:
    """What this process knows of a cluster from the passes before.

    Attributes:
        monitored: How the objects for the Prometheus operator stand.
        served: What brokers said of their certificates; None when nobody was asked yet.
        moving: Partitions that were seen to be moved since none was.
        restarts: Restarts that the status does not tell of yet, by broker.
        drift: Changes that were changed back, of which the status does not tell yet.
        untidied: Why what is not needed any more cannot go from a cluster at rest.
        undone: The action that was not done, and why; empty when it was.
        kept: Objects as they were last brought to what was rendered.
        is_missed: Whether answers were missing in the pass before, though all pods are ready.
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
        """Count from now what was counted by a clock that was set back since."""
        ahead = {name: one for name, one in self.kept.items() if one.since_ms > now_ms}
        self.kept |= {name: replace(one, since_ms=now_ms) for name, one in ahead.items()}


class Moment(TypedDict):
    """What refusals are noted by: the specification, and the time of day."""

    generation: int
    now_ms: int


@dataclass(slots=True)
class Pass:
    """What a pass has found out so far.

    Attributes:
        trouble: Why nothing may be done.
        lacking: What keeps pods from starting, and nothing else from being kept.
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
        """What refusals are noted by."""
        return Moment(generation=self.seen.wanted.generation, now_ms=self.seen.now_ms)

    @property
    def is_remade(self) -> bool:
        """Whether the set is made again around its pods, which have what they need."""
        return self.seen.recorded.shape is not None


def is_first_miss(known: Remembered, found: Pass) -> bool:
    """Whether a cluster that was ready answers less than it should, for the first time in a row.

    All its pods are ready: one answer that is late or lost is asked for again, before anything is
    said or done.
    """
    seen, resource = found.seen, found.reads.resource
    ready = [pod for pod in seen.pods if pod.is_ready and not pod.is_terminating]
    has_all = seen.metadata is not None and len(seen.reports) >= len(ready)
    size = seen.brokers.replicas if seen.brokers is not None else 0
    was_ready = any(
        (one["type"], one["status"], one.get("observedGeneration"))
        == ("Ready", "True", seen.wanted.generation)
        for one in (resource.get("status") or {}).get("conditions") or ()
    )
    before = known.is_missed
    known.is_missed = was_ready and not has_all and len(ready) == len(seen.pods) == size
    return known.is_missed and not before


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


def held_of(memory: Memory, kind: str, *, generation: int, now_ms: int) -> dict[str, Refusal]:
    """Objects that were refused, and are not tried again yet.

    Args:
        memory: What is remembered.
        kind: Instead of an action: `KEEPING` and its like.
        generation: Of the specification; what a former one asked for does not count.
        now_ms: Time of day.
    """
    return {
        one.object: Refusal(one.reason, one.text, one.needs_person)
        for one in refusals.current(memory, generation).refused
        if one.action == kind and now_ms < one.until_ms
    }


def note_refusals(
    memory: Memory,
    kind: str,
    said: Mapping[str, Refusal],
    held: Mapping[str, Refusal],
    *,
    generation: int,
    now_ms: int,
) -> Memory:
    """The memory with the objects of a kind that were refused in this pass, and no others."""
    left = (one for one in memory.refused if one.action != kind or one.object in said)
    memory = replace(memory, refused=tuple(left))
    for name, refusal in said.items():
        if name not in held:
            memory = refusals.noted(memory, kind, name, refusal, generation=generation, now=now_ms)
    return memory


def refuse(memory: Memory, found: Pass, action: act.Action, said: Refusal) -> Memory:
    """The memory with the refusal of an action."""
    return refusals.noted(
        memory,
        type(action).__name__,
        refusals.object_of(action),
        said,
        generation=found.seen.wanted.generation,
        now=found.seen.now_ms,
    )


def note_status_write(memory: Memory, found: Pass, error: KubeError | None) -> Memory:
    """The memory with whether the status could be written: the next one that is tells."""
    name = f"{CLUSTERS.kind}/{found.reads.name}"
    said = refusal_of(error) if error is not None else None
    if said is None:
        return refusals.settled(memory, refusals.STATUS, name)
    generation, now_ms = found.moment["generation"], found.moment["now_ms"]
    return refusals.noted(memory, refusals.STATUS, name, said, generation=generation, now=now_ms)


async def keep_consent(
    known: Remembered, context: ActionContext, action: act.Record, fence: Fence
) -> Refusal | None:
    """The token must be kept before the status names it; what is in its place otherwise."""
    restart = action.recorded.disruption
    token = known.tokens.get(restart.token) if restart is not None else None
    if restart is None or token is None:
        return None
    fence.check(context.cluster.namespace)
    return await keep_token(context, restart.token, token)


async def would_grow(
    kube: Kube, known: Remembered, found: Pass, action: act.GrowClaim
) -> Refusal | None:
    """What the API server would say against a larger volume; asked once for each size.

    Raises:
        KubeError: It does not answer, or the claim has changed.
    """
    if refusals.of(known.memory, action) is not None:
        return None  # it is due to be tried again
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
        said = refusal_of(error)
        if said is None:
            raise
        return said
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
    """The decision, put off while pods would wait for a Secret that is not there yet.

    Args:
        decision: What was decided.
        found: What it was decided on.
        former: Memory of the pass before, which knows since when something is waited for.
    """
    is_first = isinstance(decision.action, act.CreateSet) and not found.is_remade
    if not (found.issued.is_waiting and is_first):
        return decision
    what = found.issued.certificates.secret or found.seen.wanted.name
    wait = Wait("CertificateIssuing", what, found.issued.certificates.detail)
    return with_wait(replace(decision, action=None), wait, former, found.seen.now_ms)
