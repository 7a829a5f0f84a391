"""Build the whole status of a cluster, as it is applied; stable when nothing has changed.

Its times do not move with the clock: they are starts, such as of a wait or a restart, and ends of
validity. So the same observation gives the same status, which is not written again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from liftbridge_operator.cluster.observing.times import exact_text, moment_text, since_text
from liftbridge_operator.cluster.planning.observation import Partition, Recorded
from liftbridge_operator.cluster.reporting.account import Account
from liftbridge_operator.cluster.reporting.conditions import conditions, unread
from liftbridge_operator.model import cluster_status as model
from liftbridge_operator.model.base import Model, camel
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.operations import DisruptionMode, Gate

WAIT_SHOWN_MS: Final = 30_000
"""Age from which a wait is reported; every change has shorter ones."""
NOTE_MAX: Final = 256
BROKERS_MAX: Final = 100
_FIELDS: Final = frozenset(camel(name) for name in model.ClusterStatus.model_fields)
_KEYS: Final = {"brokers": "id", "conditions": "type", "listeners": "name"}
"""Associative lists of the status, with their keys."""


@dataclass(frozen=True, slots=True)
class News:
    """Restarts and drift since the last write of the status, for the next one.

    Attributes:
        restarts: By broker: time and reason of the deletion of its pod.
        drift: Reverted fields, oldest first.
    """

    restarts: Mapping[str, model.RestartStatus] = field(default_factory=dict)
    drift: tuple[model.DriftEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Fields of the status about objects that the planner does not observe.

    Attributes:
        selector: Labels of the pods, as a text.
        version, image, operator_version: Values in force.
        listeners: Name, address and addresses of brokers.
        volumes: By broker: name, uid, capacity and phase of each claim.
        retained: Claims that no broker uses any more: name, uid, since when.
        news: Restarts and drift since the last write of the status.
        held: Revision that waits for the next change, and the differences; empty for none.
    """

    selector: str = ""
    version: str = ""
    image: str = ""
    operator_version: str = ""
    restart_request: str = ""
    listeners: tuple[model.ListenerStatus, ...] = ()
    volumes: Mapping[str, tuple[model.VolumeStatus, ...]] | None = None
    retained: tuple[model.RetainedVolume, ...] = ()
    news: News = field(default_factory=News)
    held: tuple[str, tuple[str, ...]] = ("", ())


def status_of(
    account: Account, recorded: Recorded, around: Surroundings, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the status.

    Args:
        account: Inputs of the status.
        recorded: State to keep for the next pass, as read or as changed by this pass.
        around: Fields about further objects.
        before: The present status of the resource, for times.
    """
    seen, view, status = account.seen, account.view, account.status
    made = model.ClusterStatus(
        observed_generation=status.generation,
        cluster_id=seen.identity.cluster_id if seen.identity else None,
        version=around.version or None,
        target_version=account.spec.version if account.spec else None,
        image=around.image or None,
        feature_level=(seen.metadata.feature_level or None)
        if seen.metadata
        else before.get("featureLevel"),
        replicas=min(len(seen.pods), BROKERS_MAX),
        ready_replicas=min(status.ready_replicas, BROKERS_MAX),
        size=None if recorded.size is None else min(recorded.size, BROKERS_MAX),
        updated_replicas=min(
            sum(1 for pod in view.pods.values() if pod.revision == view.revision), BROKERS_MAX
        ),
        selector=around.selector,
        revision=seen.brokers.revision if seen.brokers else None,
        current_revision=_current_revision(account, recorded, before),
        metadata_leader=(seen.metadata.leader or None) if seen.metadata else None,
        brokers=_brokers(account, around, before),
        partitions=_partitions(account),
        plan=_plan(account),
        held=_held(around),
        disruption=_disruption(account, recorded),
        remaking=_remaking(recorded),
        failed_revision=account.failed,
        waits=_waits(account),
        drift=_drift(around.news, before.get("drift")),
        listeners=around.listeners,
        certificates=_certificates(account, before.get("certificates") or {}),
        retained_volumes=around.retained[: model.VOLUMES_MAX],
        last_restart_request=around.restart_request or None,
        operator_version=around.operator_version or None,
    )
    return made.manifest() | {"conditions": conditions(account, before)}


def unread_status(resource: Mapping[str, Any], message: str, now_ms: int) -> dict[str, Any]:
    """Build the status of a cluster with a forbidden read; keep its recorded state.

    Args:
        resource: The cluster.
        message: Message of the API server about the forbidden read.
        now_ms: Time of day.
    """
    before = resource.get("status") or {}
    generation = int(resource["metadata"].get("generation") or 0)
    kept = {name: value for name, value in before.items() if name in _FIELDS}
    return kept | {"conditions": unread(before, message, generation=generation, now_ms=now_ms)}


def with_status(resource: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object to apply: a status for exactly this version of a resource."""
    named = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {key: resource["metadata"][key] for key in named},
        "status": status,
    }


def says_the_same(made: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether a status equals that of the resource.

    Associative lists are compared regardless of their order, which depends on former writes.
    """
    known = {name: value for name, value in before.items() if name in _FIELDS}
    return made.keys() == known.keys() and all(
        _in_order(name, made[name]) == _in_order(name, known[name]) for name in made
    )


def _in_order(name: str, value: Any) -> Any:
    key = _KEYS.get(name)
    return value if key is None else sorted(value, key=lambda one: str(one.get(key)))


def _current_revision(
    account: Account, recorded: Recorded, before: Mapping[str, Any]
) -> str | None:
    """Return the revision that all ready brokers have; the former one during a change."""
    view = account.view
    has = {pod.revision for name in view.names if (pod := view.pods.get(name)) and pod.is_ready}
    is_whole = all(name in view.pods and view.pods[name].is_ready for name in view.names)
    if has == {view.revision} and is_whole and recorded.disruption is None:
        return view.revision
    former: str | None = before.get("currentRevision")
    return former


_Kept = TypeVar("_Kept", bound=Model)


def _kept(kind: type[_Kept], before: Any) -> _Kept | None:
    """Parse a part of the former status; None when it is missing or malformed."""
    try:
        return kind.model_validate(before) if before else None
    except ValidationError:
        return None


def _drift(news: News, before: Mapping[str, Any] | None) -> model.Drift | None:
    former = _kept(model.Drift, before)
    if not news.drift:
        return former
    former = former or model.Drift()
    last = (*former.last, *news.drift)[-model.DRIFT_MAX :]
    return model.Drift(count=former.count + len(news.drift), last=last)


def _brokers(
    account: Account, around: Surroundings, before: Mapping[str, Any]
) -> tuple[model.BrokerStatus, ...]:
    view = account.view
    restarts = {
        broker.get("id"): _kept(model.RestartStatus, broker.get("lastRestart"))
        for broker in before.get("brokers") or ()
    } | dict(around.news.restarts)
    names = dict.fromkeys([*view.names, *view.pods])
    held: dict[str, list[Partition]] = {name: [] for name in names}
    for partition in view.partitions():
        for name in partition.replicas:
            held.setdefault(name, []).append(partition)
    return tuple(
        _broker(account, around, name, held[name]).model_copy(
            update={"last_restart": restarts.get(name)}
        )
        for name in list(names)[:BROKERS_MAX]
    )


def _broker(
    account: Account, around: Surroundings, name: str, held: list[Partition]
) -> model.BrokerStatus:
    view = account.view
    pod, known = view.pods.get(name), view.brokers.get(name)
    return model.BrokerStatus(
        id=name,
        pod_uid=pod.uid if pod else None,
        node=(pod.node or None) if pod else None,
        zone=(pod.zone or None) if pod else None,
        ready=pod is not None and pod.is_ready and not pod.is_terminating,
        voter=view.is_voter(name),
        cordoned=known is not None and known.is_cordoned,
        revision=(pod.revision or None) if pod else None,
        partitions=len(held),
        leaders=sum(1 for one in held if one.leader == name),
        under_replicated=sum(1 for one in held if name not in one.isr),
        volumes=(around.volumes or {}).get(name, ())[:2],
    )


def _partitions(account: Account) -> model.PartitionSummary | None:
    if account.seen.metadata is None:
        return None
    all_ = account.seen.metadata.partitions
    problems = [made for one in all_ if (made := _problem(one)) is not None]
    order = list(model.ProblemKind)
    problems.sort(key=lambda one: (order.index(one.problem), one.stream, one.partition))
    status = account.status
    return model.PartitionSummary(
        total=len(all_),
        offline=status.offline,
        under_replicated=status.under_replicated,
        below_min_isr=status.below_min_isr,
        moving=sum(1 for one in all_ if one.target),
        worst=tuple(problems[: model.WORST_MAX]),
    )


def _problem(one: Partition) -> model.PartitionProblem | None:
    missing = tuple(name for name in one.replicas if name not in one.isr)
    if not one.leader:
        kind = model.ProblemKind.OFFLINE
    elif len(one.isr) < min(one.min_isr, len(one.replicas)):
        kind = model.ProblemKind.BELOW_MIN_ISR
    elif missing:
        kind = model.ProblemKind.UNDER_REPLICATED
    else:
        return None
    return model.PartitionProblem(
        stream=one.stream[:NOTE_MAX], partition=one.number, problem=kind, missing=missing[:8]
    )


def _plan(account: Account) -> model.Plan | None:
    plan, desired, spec = account.status.plan, account.seen.desired, account.spec
    if not plan.hash:
        return None
    risks = load_catalogue().risks
    is_accepted = desired.allows_unavailable or desired.approved_hash == plan.hash
    return model.Plan(
        hash=plan.hash,
        generation=desired.generation,
        revision=desired.revision,
        replicas=desired.replicas,
        steps=tuple(
            model.PlanStep(
                action=step.what, object=step.object[:NOTE_MAX], cause=step.cause[:NOTE_MAX]
            )
            for step in plan.steps
        ),
        step_count=plan.step_count,
        risks=tuple(
            model.PlanRisk(
                kind=risk,
                text=(risks[risk].meaning if risk in risks else risk)[:NOTE_MAX],
                accepted=is_accepted,
            )
            for risk in plan.risks
        ),
        needs_approval=spec is not None
        and spec.disruption.mode is DisruptionMode.APPROVAL
        and plan.needs_consent,
        approved_hash=desired.approved_hash or None,
    )


def _held(around: Surroundings) -> model.HeldChange | None:
    revision, causes = around.held
    if not revision:
        return None
    cut = tuple(cause[:NOTE_MAX] for cause in causes[: model.CAUSES_MAX])
    return model.HeldChange(revision=revision, causes=cut)


def _disruption(account: Account, recorded: Recorded) -> model.DisruptionState | None:
    under_way = recorded.disruption
    if under_way is None:
        return None
    blockers = [
        f"{wait.what}: {wait.ends_when}"[:NOTE_MAX]
        for wait in account.status.waits
        if wait.object == under_way.broker
    ]
    return model.DisruptionState(
        pod=under_way.broker,
        uid=under_way.pod_uid,
        restart_id=under_way.token,
        since=exact_text(under_way.since_ms),
        expires=exact_text(under_way.expires_ms),
        partition_count=under_way.partitions,
        gate=Gate.FULL_ISR if account.seen.desired.needs_full_isr else Gate.MIN_ISR,
        blockers=tuple(blockers[: model.BLOCKERS_MAX]),
    )


def _remaking(recorded: Recorded) -> model.SetRemaking | None:
    shape = recorded.shape
    if shape is None:
        return None
    return model.SetRemaking(
        replicas=shape.replicas,
        revision=shape.revision,
        good_revision=shape.good_revision,
        bad_revision=shape.bad_revision,
    )


def _waits(account: Account) -> tuple[model.Wait, ...]:
    now = account.seen.now_ms
    return tuple(
        model.Wait(
            what=wait.what,
            object=wait.object[:NOTE_MAX],
            since=exact_text(wait.since_ms),
            ends_when=wait.ends_when[:NOTE_MAX],
            runbook=_runbook(wait.what),
        )
        for wait in account.status.waits
        if now - wait.since_ms >= WAIT_SHOWN_MS or wait.is_stalled
    )[: model.WAITS_MAX]


def _runbook(what: str) -> str:
    """Return the human-readable remedy for a wait."""
    word = load_catalogue().waits.get(what)
    return (word.runbook if word is not None else "")[:NOTE_MAX]


def _certificates(account: Account, before: Mapping[str, Any]) -> model.CertificateStatus | None:
    known = account.certificates
    if not known.not_after_ms:
        return None
    phase = known.phase or "Steady"
    is_same = before.get("phase") == phase and before.get("since")
    now_ms = account.seen.now_ms
    return model.CertificateStatus(
        phase=phase,
        authority=known.authority or None,
        not_after=moment_text(known.not_after_ms),
        since=since_text(before["since"], now_ms) if is_same else moment_text(now_ms),
        peer_keys=known.peer_keys or None,
    )
