"""Assemble reads and answers of a pass into the planner's observation."""

from collections.abc import Sequence
from dataclasses import replace

from liftbridge_operator.cluster.observing.answers import Answers
from liftbridge_operator.cluster.observing.desired import recorded_of
from liftbridge_operator.cluster.observing.objects import (
    ZONE_LABEL,
    belongs_to,
    budget_of,
    claim_of,
    identity_of,
    is_volume_lost,
    label_of,
    metadata_of,
    node_of,
    pod_of,
    set_of,
    uid_of,
    version_of,
)
from liftbridge_operator.cluster.observing.reads import Reads, broker_pods, data_claims, raft_claims
from liftbridge_operator.cluster.planning.observation import (
    BrokerSet,
    DesiredState,
    Identity,
    Observation,
    Pod,
)
from liftbridge_operator.model import names


def observation_of(
    reads: Reads,
    answers: Answers,
    desired: DesiredState,
    *,
    now_ms: int,
    fresh_cluster_id: str,
    odd: tuple[str, ...] = (),
) -> Observation:
    """Build the observation.

    Args:
        reads: Objects.
        answers: Answers of brokers.
        desired: The desired state.
        now_ms: Start of the pass.
        fresh_cluster_id: Random text.
        odd: Immutable fields of the set that differ from the rendered ones.

    Raises:
        ValueError: The operator did not write the identity of the cluster.
    """
    nodes = None if reads.nodes is None else tuple(node_of(node) for node in reads.nodes)
    return Observation(
        now_ms=now_ms,
        resource_version=version_of(reads.resource),
        fresh_cluster_id=fresh_cluster_id,
        desired=desired,
        recorded=recorded_of(reads.resource),
        identity=_identity(reads),
        brokers=_set(reads, odd),
        pods=pods_of(reads),
        claims=tuple(claim_of(claim) for claim in data_claims(reads.claims, reads.name)),
        budget=budget_of(reads.budget) if reads.budget is not None else None,
        nodes=nodes,
        reports=answers.reports,
        metadata=answers.metadata,
        verification=answers.verification,
        raft_claims=tuple(claim_of(claim) for claim in raft_claims(reads.claims, reads.name)),
        failed_creates=reads.failed_creates,
    )


def _identity(reads: Reads) -> Identity | None:
    return identity_of(reads.identity) if reads.identity is not None else None


def _set(reads: Reads, odd: tuple[str, ...]) -> BrokerSet | None:
    """Parse the set; that of a deleted resource of the same name counts as terminating."""
    if reads.set is None:
        return None
    parsed = replace(set_of(reads.set), odd=odd)
    if belongs_to(reads.set, uid_of(reads.resource)):
        return parsed
    return replace(parsed, is_terminating=True)


def pods_of(reads: Reads) -> tuple[Pod, ...]:
    """Parse pods of brokers, in the order of their ordinals."""
    zones = {
        str(metadata_of(node)["name"]): label_of(node, ZONE_LABEL) for node in reads.nodes or ()
    }
    return tuple(
        pod_of(
            one,
            zone=zones.get(str((one.get("spec") or {}).get("nodeName") or ""), ""),
            is_lost=_is_volume_lost(reads, str(metadata_of(one)["name"])),
        )
        for one in broker_pods(reads.pods, reads.name)
    )


def _is_volume_lost(reads: Reads, pod: str) -> bool:
    """Return whether a pod waits for a lost node that has its volume."""
    if not reads.volumes or reads.nodes is None:
        return False
    claim = f"{names.DATA_VOLUME}-{pod}"
    return any(
        metadata_of(one)["name"] == claim and is_volume_lost(one, reads.volumes, reads.nodes)
        for one in reads.claims
    )


def askable(pods: Sequence[Pod]) -> list[str]:
    """List brokers whose process may answer."""
    return [pod.name for pod in pods if pod.is_running]
