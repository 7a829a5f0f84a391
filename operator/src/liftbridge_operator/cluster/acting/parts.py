"""Maintain labels and owners of claims and pods, which a controller creates from the set.

Objects are found by their labels, a pod also by its set. An object that lost its labels is found
by its name (`cluster.observing.reads`), and gets them back. Nothing that the set does not define
changes.
"""

from typing import Any

from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.acting.supplied import Supplied, refusal_noted
from liftbridge_operator.cluster.acting.whole import UNKNOWN_MANAGER, shown
from liftbridge_operator.cluster.observing.objects import claim_of, is_owned_by, metadata_of
from liftbridge_operator.cluster.observing.reads import (
    claim_names,
    data_claims,
    pod_names,
    unmarked_claims,
)
from liftbridge_operator.cluster.rendering.subject import labels
from liftbridge_operator.kube.intent import Difference
from liftbridge_operator.kube.kinds import CLAIMS, PODS, kind_of
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND
from liftbridge_operator.model.storage import VolumeFate


async def supply_parts(context: ActionContext, done: Supplied) -> None:
    """Restore labels, owners and classes.

    Args:
        context: Context of the pass.
        done: Receives drift, refusals and the count of writes.

    Raises:
        KubeError: A call failed.
    """
    writes = done.writes
    await _marks(context, done)
    if done.writes > writes:
        return  # the reads are outdated: the next pass reads again
    await _owners_of_claims(context, done)
    await _classes_of_claims(context, done)


async def _marks(context: ActionContext, done: Supplied) -> None:
    """Restore labels of claims and pods, and the mark of volumes that are only kept."""
    reads, wanted = context.reads, labels(context.cluster, context.inputs)
    unmarked = unmarked_claims(reads)
    for kind, found, expected in (
        (CLAIMS, reads.claims, claim_names(reads.resource, reads.set)),
        (PODS, reads.pods, pod_names(reads.resource, reads.set)),
    ):
        for one in found:
            name = str(metadata_of(one)["name"])
            if name not in expected or _is_going(one):
                continue
            present = metadata_of(one).get("labels") or {}
            lost = {key: value for key, value in wanted.items() if present.get(key) != value}
            since = unmarked.get(name) if kind == CLAIMS else None
            changes = {"labels": lost} if lost else {}
            changes |= {"annotations": {names.RETIRED: since}} if since else {}
            if not changes:
                continue
            if await _patch(context, done, one, {"metadata": changes}, Preconditions.of(one)):
                done.drift += [
                    (shown(one), Difference(f".metadata.{part}.{key}", UNKNOWN_MANAGER))
                    for part, values in changes.items()
                    for key in values
                ]


async def _owners_of_claims(context: ActionContext, done: Supplied) -> None:
    """Set the owner reference on claims that are deleted with the resource, on no other claims."""
    cluster = context.cluster
    is_deleted = cluster.spec.storage.retention.when_deleted is VolumeFate.DELETE
    for claim in context.reads.claims:
        if is_owned_by(claim, cluster.uid) == is_deleted or _is_going(claim):
            continue
        others = [
            owner_reference
            for owner_reference in metadata_of(claim).get("ownerReferences") or ()
            if owner_reference.get("kind") != CLUSTER_KIND
        ]
        owner: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_KIND,
            "name": cluster.name,
            "uid": cluster.uid,
        }
        owners = [*others, owner] if is_deleted else others
        changes = {"metadata": {"ownerReferences": owners}}
        await _patch(context, done, claim, changes, Preconditions.of(claim))


async def _classes_of_claims(context: ActionContext, done: Supplied) -> None:
    """Set the desired VolumeAttributesClass; without one, volumes keep theirs."""
    storage = context.cluster.spec.storage
    given = {names.DATA_VOLUME: storage.data, names.RAFT_VOLUME: storage.raft}
    for claim in context.reads.claims:
        name = str(metadata_of(claim)["name"])
        kind = next((one for one in given if name.startswith(f"{one}-{context.cluster.name}-")), "")
        volume = given.get(kind)
        wanted = volume.volume_attributes_class_name if volume is not None else None
        spec = claim.get("spec") or {}
        if wanted is None or _is_going(claim) or spec.get("volumeAttributesClassName") == wanted:
            continue
        if not claim_of(claim).is_bound:
            continue  # an unbound claim cannot change: it is recreated
        changes = {"spec": {"volumeAttributesClassName": wanted}}
        await _patch(context, done, claim, changes, Preconditions(metadata_of(claim)["uid"]))


async def _patch(
    context: ActionContext,
    done: Supplied,
    body: Object,
    changes: dict[str, Any],
    meant: Preconditions,
) -> bool:
    """Patch a claim or a pod, unless a recent refusal holds; return whether it was done."""
    name = shown(body)
    if name in context.held:
        done.refusals[name] = context.held[name]
        return False
    async with refusal_noted(done, name):
        await context.kube.patch(
            kind_of(body),
            context.cluster.namespace,
            str(metadata_of(body)["name"]),
            changes,
            preconditions=meant,
        )
        done.writes += 1
        return True
    return False


def _is_going(body: Object) -> bool:
    return bool(metadata_of(body).get("deletionTimestamp"))


async def release_volumes(context: ActionContext, replicas: int) -> int:
    """Delete volumes of removed brokers, if the specification requests that.

    Only while the cluster is ready: then it has no brokers beyond the set.

    Args:
        context: Context of the pass.
        replicas: Pods of the set.

    Returns:
        Number of deleted claims.

    Raises:
        KubeError: A call failed.
    """
    cluster = context.cluster
    if cluster.spec.storage.retention.when_scaled is not VolumeFate.DELETE:
        return 0
    left = [
        claim_of(one).ordinal
        for one in data_claims(list(context.reads.claims), cluster.name)
        if claim_of(one).is_retired and claim_of(one).ordinal >= replicas
    ]
    gone = {
        names.claim(cluster.name, ordinal, volume)
        for ordinal in left
        for volume in (names.DATA_VOLUME, names.RAFT_VOLUME)
    }
    count = 0
    for claim in context.reads.claims:
        name = str(metadata_of(claim)["name"])
        if name in gone and not _is_going(claim):
            await context.kube.delete(
                CLAIMS, cluster.namespace, name, preconditions=Preconditions.of(claim)
            )
            count += 1
    return count
