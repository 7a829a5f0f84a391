"""Actions that change objects of Kubernetes.

Deletions and changes of the number of pods are bound to exactly the state that was read; so is a
write of the template, since the next pod is created from it.
"""

import base64
from typing import Any

from liftbridge_operator.cluster.acting.context import ActionContext, Done, MissingTemplateError
from liftbridge_operator.cluster.acting.ownership import foreign, owner_text
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.acting.whole import keep_whole
from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.objects import belongs_to, metadata_of
from liftbridge_operator.cluster.observing.reads import TOKEN_ID_KEY, TOKEN_KEY, restart_name
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.observation import Member
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.rendering import guards, workload
from liftbridge_operator.cluster.rendering.identity import FOUNDERS_KEY, STATE_KEY, identity
from liftbridge_operator.cluster.rendering.subject import Inputs, Recorded, metadata
from liftbridge_operator.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from liftbridge_operator.kube.kinds import BUDGETS, CLAIMS, CONFIG_MAPS, PODS, SETS
from liftbridge_operator.kube.port import Object, Preconditions, Propagation
from liftbridge_operator.model import names


def _seen(uid: str, version: int) -> Preconditions:
    return Preconditions(uid, str(version))


# -- identity -----------------------------------------------------------------------------------


def _identity(
    context: ActionContext, cluster_id: str, founders: tuple[Member, ...], *, is_started: bool
) -> Object:
    inputs = Inputs(cluster_id, context.inputs.image)
    listed = tuple((founder.broker, founder.data_dir_id) for founder in founders)
    return identity(context.cluster, inputs, listed, is_started=is_started)


async def create_identity(context: ActionContext, action: act.CreateIdentity) -> Done:
    """Create the identity ConfigMap, if there is none."""
    body = _identity(context, action.cluster_id, (), is_started=action.is_started)
    await context.kube.create(body)
    return Done()


async def write_founders(context: ActionContext, action: act.WriteFounders) -> Done:
    """Write the final, immutable list of founders."""
    live = context.reads.identity
    assert live is not None, "founders are written to an identity that was read"
    body = _identity(context, context.inputs.cluster_id, action.founders, is_started=True)
    await context.kube.patch(
        CONFIG_MAPS,
        context.cluster.namespace,
        names.identity(context.cluster.name),
        {
            "data": {key: body["data"][key] for key in (FOUNDERS_KEY, STATE_KEY)},
            "immutable": True,
        },
        preconditions=_seen(metadata_of(live)["uid"], action.resource_version),
    )
    return Done()


# -- the set ------------------------------------------------------------------------------------


async def record_for(context: ActionContext, revision: str) -> Recorded:
    """Return the template of a revision: the rendered one, or a stored one.

    Raises:
        MissingTemplateError: It is not stored.
    """
    if revision == context.rendered.revision:
        return workload.record_of(context.rendered)
    name = names.revision(context.cluster.name, revision)
    try:
        kept = await context.kube.get(CONFIG_MAPS, context.cluster.namespace, name)
        return workload.read_revision(kept)
    except (NotFoundError, KeyError, ValueError) as error:
        raise MissingTemplateError(f"revision {revision} is not kept in {name}") from error


async def keep_revision(context: ActionContext, record: Recorded) -> None:
    """Store a template, so that it can be written again when a later one is bad."""
    body = workload.kept_revision(context.cluster, context.inputs, record)
    if metadata_of(body)["name"] in {
        metadata_of(config)["name"] for config in context.rendered.configs
    }:
        return  # this pass writes it with everything else that pods need
    try:
        await context.kube.create(body)
    except AlreadyExistsError:
        return  # stored before: it is named by its contents, and never changes


async def create_set(context: ActionContext, action: act.CreateSet) -> Done:
    """Create the set over the existing claims."""
    record = await record_for(context, action.revision)
    await keep_revision(context, record)
    await context.kube.create(_set_of(context, action, record))
    return Done()


def _set_of(context: ActionContext, action: act.CreateSet, record: Recorded) -> Object:
    return workload.stateful_set(
        context.cluster,
        context.inputs,
        record,
        workload.Marks(action.good_revision, action.bad_revision),
        replicas=action.replicas,
        claim_bytes=action.claim_bytes,
    )


async def set_template(context: ActionContext, action: act.SetTemplate) -> Done:
    """Replace the whole template, so that nothing of the former one is left over."""
    record = await record_for(context, action.revision)
    await keep_revision(context, record)
    made = workload.stateful_set(
        context.cluster,
        context.inputs,
        record,
        workload.Marks(action.good_revision, action.bad_revision),
        replicas=None,
        claim_bytes=0,
    )
    noted: dict[str, str] = made["metadata"]["annotations"]
    changes: list[dict[str, Any]] = [
        {"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}
        for key, value in noted.items()
    ]
    if _has_other_template(context, record.revision):
        template = made["spec"]["template"]
        changes.append({"op": "replace", "path": "/spec/template", "value": template})
    await context.kube.patch(
        SETS,
        context.cluster.namespace,
        names.brokers(context.cluster.name),
        changes,
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


def _has_other_template(context: ActionContext, revision: str) -> bool:
    """Return whether the set has another template, and not merely other annotations."""
    live = context.reads.set
    if live is None:
        return True
    annotations = metadata_of(live["spec"]["template"]).get("annotations") or {}
    return bool(annotations.get(names.REVISION) != revision)


async def set_replicas(context: ActionContext, action: act.SetReplicas) -> Done:
    """Set the number of pods, and keep the volumes of pods that are removed.

    The retention policy may have been changed since the set was last applied.
    """
    retained = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    await context.kube.patch(
        SETS,
        context.cluster.namespace,
        names.brokers(context.cluster.name),
        {
            "spec": {
                "replicas": action.replicas,
                "persistentVolumeClaimRetentionPolicy": retained,
            }
        },
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


async def orphan_set(context: ActionContext, action: act.OrphanSet) -> Done:
    """Delete the set and keep its pods, once a dry run shows that its successor is accepted.

    Raises:
        KubeError: The successor is refused and the set stays; or the set has changed.
    """
    await _check_set(context, action.again)
    await context.kube.delete(
        SETS,
        context.cluster.namespace,
        names.brokers(context.cluster.name),
        preconditions=_seen(action.uid, action.resource_version),
        propagation=Propagation.ORPHAN,
    )
    return Done()


async def _check_set(context: ActionContext, action: act.CreateSet) -> None:
    """Check by a dry run that the successor of the present set is accepted.

    Raises:
        KubeError: It is refused, except for a quota: the deleted set frees what it uses.
    """
    body = _set_of(context, action, await record_for(context, action.revision))
    try:
        await context.kube.create(body, dry_run=True)
    except AlreadyExistsError:
        return  # reported only when the API server accepts the set otherwise
    except KubeError as error:
        refusal = refusal_of(error)
        if refusal is None or refusal.reason != "QuotaExceeded":
            raise


# -- claims -------------------------------------------------------------------------------------


def larger(action: act.GrowClaim) -> Object:
    """Return the patch that requests a larger volume."""
    return {"spec": {"resources": {"requests": {"storage": str(action.size_bytes)}}}}


async def grow_claim(context: ActionContext, action: act.GrowClaim) -> Done:
    """Request a larger volume."""
    await context.kube.patch(
        CLAIMS,
        context.cluster.namespace,
        action.name,
        larger(action),
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


async def mark_claim(context: ActionContext, action: act.MarkClaim) -> Done:
    """Set or clear the mark of a claim whose broker was removed."""
    since = moment_text(context.now_ms) if action.is_retired else None
    await context.kube.patch(
        CLAIMS,
        context.cluster.namespace,
        action.name,
        {"metadata": {"annotations": {names.RETIRED: since}}},
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


async def delete_claim(context: ActionContext, action: act.DeleteClaim) -> Done:
    """Delete a data claim, after the metadata claim of its broker unless the action is alone."""
    broker = action.name.removeprefix(f"{names.DATA_VOLUME}-")
    other = f"{names.RAFT_VOLUME}-{broker}"
    for claim in context.reads.claims:
        is_other = metadata_of(claim)["name"] == other and not action.is_alone
        if is_other and not metadata_of(claim).get("deletionTimestamp"):
            await context.kube.delete(
                CLAIMS, context.cluster.namespace, other, preconditions=Preconditions.of(claim)
            )
    await context.kube.delete(
        CLAIMS,
        context.cluster.namespace,
        action.name,
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


# -- pods ---------------------------------------------------------------------------------------


async def delete_pod(context: ActionContext, action: act.DeletePod) -> Done:
    """Write the template of the new pod, if any, then delete the pod that was read."""
    if action.template is not None:
        await set_template(context, action.template)
    await context.kube.delete(
        PODS,
        context.cluster.namespace,
        action.name,
        preconditions=_seen(action.uid, action.resource_version),
        grace_seconds=0 if action.is_forced else None,
    )
    return Done()


async def keep_pod(context: ActionContext, action: act.KeepPod) -> Done:
    """Annotate the pod, so that every deletion decided before fails."""
    await context.kube.patch(
        PODS,
        context.cluster.namespace,
        action.name,
        {"metadata": {"annotations": {marks.KEPT: action.token}}},
        preconditions=_seen(action.uid, action.resource_version),
    )
    return Done()


# -- budget and record ----------------------------------------------------------------------------


async def set_budget(context: ActionContext, action: act.SetBudget) -> Done:
    """Write or delete the PodDisruptionBudget; leave a foreign one alone."""
    live = context.reads.budget
    if action.max_unavailable is None:
        if live is not None and belongs_to(live, context.cluster.uid):
            name = metadata_of(live)["name"]
            uid = Preconditions(metadata_of(live)["uid"])
            await context.kube.delete(BUDGETS, context.cluster.namespace, name, preconditions=uid)
        return Done()
    if live is not None and not belongs_to(live, context.cluster.uid):
        text = "a PodDisruptionBudget that is not of this resource is in its place"
        is_foreign = foreign(live, context.cluster) is not None
        return Done(
            text=text, refusal=Refusal("Conflict", owner_text(live)) if is_foreign else None
        )
    body = guards.disruption_budget(context.cluster, context.inputs, action.max_unavailable)
    if live is None:
        await context.kube.apply(body, force=True)
    else:
        await keep_whole(context.kube, context.kept, body, live, now_ms=context.now_ms)
    return Done()


async def keep_token(context: ActionContext, restart_id: str, token: bytes) -> Refusal | None:
    """Store a restart token before the status names it; return the refusal, if any."""
    name = restart_name(context.cluster.name)
    try:
        live = await context.kube.get(CONFIG_MAPS, context.cluster.namespace, name)
    except NotFoundError:
        pass
    else:
        if foreign(live, context.cluster) is not None:
            return Refusal("Conflict", owner_text(live))
    body: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(context.cluster, context.inputs, name),
        "data": {TOKEN_ID_KEY: restart_id, TOKEN_KEY: base64.b64encode(token).decode("ascii")},
    }
    try:
        await context.kube.apply(body, force=True)
    except KubeError as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return refusal
    return None
