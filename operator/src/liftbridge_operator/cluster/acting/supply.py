"""Apply, maintain and prune all objects around the set.

An object is compared first and written only when it differs, so that a cluster at rest costs no
write. Foreign objects are never touched, whatever their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.acting.in_force import configs_in_force
from liftbridge_operator.cluster.acting.keeping import kept_beside
from liftbridge_operator.cluster.acting.ownership import foreign, owner_text
from liftbridge_operator.cluster.acting.parts import supply_parts
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.acting.supplied import Supplied, refusal_noted
from liftbridge_operator.cluster.acting.whole import fought_for, keep_whole, shown
from liftbridge_operator.cluster.observing.objects import (
    belongs_to,
    is_owned_by,
    metadata_of,
)
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.rendering import workload
from liftbridge_operator.cluster.rendering.volumes import named_configs
from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    KubeError,
    NotFoundError,
)
from liftbridge_operator.kube.intent import Difference
from liftbridge_operator.kube.kinds import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PROMETHEUS_RULES,
    SERVICE_MONITORS,
    SERVICES,
    Kind,
    kind_of,
)
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names

PRUNED: Final = (SERVICES, NETWORK_POLICIES)
"""Kinds with objects that are rendered only for some specifications."""

MONITORS: Final = (SERVICE_MONITORS, PROMETHEUS_RULES)
"""Kinds of the Prometheus operator, which need extra rights and CRDs; brokers run without them."""


async def supply(context: ActionContext) -> Supplied:
    """Apply all objects beside the set as rendered.

    Raises:
        KubeError: A call failed.
    """
    done = Supplied()
    configs = (*await configs_in_force(context), *context.rendered.configs)
    await _configs(
        context, {metadata_of(config)["name"]: config for config in configs}.values(), done
    )
    kinds = dict.fromkeys((*PRUNED, *(kind_of(one) for one in context.rendered.objects)))
    for kind in kinds:
        if kind in MONITORS:
            continue
        async with refusal_noted(done, kind.kind):
            await _of_kind(context, kind, _rendered(context, kind), done)
    for body, live in kept_beside(context):
        async with refusal_noted(done, shown(body)):
            await _bring(context, kind_of(body), body, live, done)
    await supply_parts(context, done)
    return done


@dataclass(frozen=True, slots=True)
class Monitored:
    """State of the objects for the Prometheus operator.

    Attributes:
        reason: Reason of the condition `MonitoringReady`.
        values: Values of the condition's text.
        drift: As in `Supplied`.
        refusal: Refusal of the API server; the write is retried later.
    """

    reason: str = "NotReconciled"
    values: Mapping[str, str] = field(default_factory=dict)
    drift: tuple[tuple[str, Difference], ...] = ()
    refusal: Refusal | None = None


async def supply_monitors(context: ActionContext, *, may_exist: bool) -> Monitored:
    """Apply the objects for the Prometheus operator as rendered.

    Missing rights or CRDs are reported and block nothing: brokers run without monitoring.

    Args:
        context: Context of the pass.
        may_exist: Whether obsolete monitoring objects may exist.

    Raises:
        KubeError: A call failed for another reason than a missing right or CRD.
    """
    is_wanted = any(kind_of(body) in MONITORS for body in context.rendered.objects)
    if not is_wanted and not may_exist:
        return Monitored("NotWanted")
    done = Supplied()
    for kind in MONITORS:
        wanted = _rendered(context, kind)
        try:
            await _of_kind(context, kind, wanted, done, keeps_on=False)
        except KubeError as error:
            hindered = _hindered(kind, error)
            if wanted:
                return hindered
    for name, refusal in done.refusals.items():
        return Monitored(refusal.reason, {"object": name, "detail": refusal.text})
    return Monitored("Kept" if is_wanted else "NotWanted", drift=tuple(done.drift))


def _hindered(kind: Kind, error: KubeError) -> Monitored:
    """Return why an object for the Prometheus operator could not be written.

    Raises:
        KubeError: The error is no refusal.
    """
    if isinstance(error, NotFoundError):
        return Monitored("NotInstalled", {"object": kind.qualified})
    refusal = refusal_of(error)
    if refusal is None:
        raise error
    if refusal.reason == "MissingRights":
        values = {"verb": "keep", "object": kind.qualified}
        return Monitored("MissingRights", values, refusal=refusal)
    values = {"object": kind.qualified, "detail": error.message}
    return Monitored("Refused", values, refusal=refusal)


def _rendered(context: ActionContext, kind: Kind) -> list[Object]:
    return [body for body in context.rendered.objects if kind_of(body) == kind]


async def supply_configs(context: ActionContext) -> Supplied:
    """Restore the ConfigMaps of present pods, while the specification is refused.

    Raises:
        KubeError: A call failed.
    """
    done = Supplied()
    await _configs(context, await configs_in_force(context), done)
    return done


async def _configs(context: ActionContext, wanted: Iterable[Object], done: Supplied) -> None:
    """Create or maintain immutable ConfigMaps, which a pod may need at any moment."""
    for body in wanted:
        name = str(metadata_of(body)["name"])
        try:
            live = await context.kube.get(CONFIG_MAPS, context.cluster.namespace, name)
        except NotFoundError:
            pass
        else:
            async with refusal_noted(done, shown(body)):
                await _keep_config(context, body, live, done)
            continue
        if shown(body) in context.held:
            done.refusals[shown(body)] = context.held[shown(body)]
            continue
        with suppress(AlreadyExistsError):
            async with refusal_noted(done, shown(body)):
                await context.kube.create(body)
                done.writes += 1


async def _keep_config(context: ActionContext, body: Object, live: Object, done: Supplied) -> None:
    """Maintain the metadata of an existing ConfigMap, whose contents are immutable."""
    if not belongs_to(live, context.cluster.uid):
        _report_owner(context, shown(body), live, done)
        return
    noted = {name: value for name, value in live.items() if name != "metadata"}
    await _bring(context, CONFIG_MAPS, {**noted, "metadata": body["metadata"]}, live, done)


async def _of_kind(
    context: ActionContext,
    kind: Kind,
    wanted: Sequence[Object],
    done: Supplied,
    *,
    keeps_on: bool = True,
) -> None:
    """Apply all objects of a kind; with `keeps_on`, continue after a refusal."""
    selector = f"{names.CLUSTER}={context.cluster.name}"
    listed = await context.kube.list_all(kind, context.cluster.namespace, selector=selector)
    live = {metadata_of(item)["name"]: item for item in listed.items}
    for body in wanted:
        present = live.pop(metadata_of(body)["name"], None)
        async with refusal_noted(done, shown(body)) if keeps_on else nullcontext():
            await _bring(context, kind, body, present, done)
    if kind in PRUNED or kind in MONITORS:
        await _prune(context, kind, live.values(), done)


async def _bring(
    context: ActionContext, kind: Kind, body: Object, live: Object | None, done: Supplied
) -> None:
    name = shown(body)
    if live is None:
        live = await _unlabelled(context, kind, str(metadata_of(body)["name"]))
    if live is not None and not belongs_to(live, context.cluster.uid):
        _report_owner(context, name, live, done)
        return
    if name in context.held:
        done.refusals[name] = context.held[name]
    elif live is None:
        is_begun = kind == SERVICES and await _begin_with_ports(context, body)
        await context.kube.apply(body, force=is_begun)
        done.writes += 1
    else:
        found = (
            await keep_whole(context.kube, context.kept, body, live, now_ms=context.now_ms)
        ).found
        done.writes += len(found)
        done.drift += [(name, one) for one in found]
        rival = fought_for(context.kept, name, context.now_ms) if found else None
        if rival is not None:
            done.refusals[name] = rival


def _report_owner(context: ActionContext, name: str, live: Object, done: Supplied) -> None:
    """Report a conflict: a foreign object has the name of an object of the cluster."""
    if foreign(live, context.cluster) is not None:
        done.refusals[name] = Refusal("Conflict", owner_text(live))


async def _begin_with_ports(context: ActionContext, service: Object) -> bool:
    """Create a Service with node ports in a minimal form; return whether it has such ports.

    When an apply that creates is cut off because this process is killed, the API server may keep
    the ports allocated without the Service, and refuses them until it notices, minutes later.
    A create releases them. Every later apply names these fields, and can change them.
    """
    spec, meta = service["spec"], metadata_of(service)
    if not any("nodePort" in port for port in spec["ports"]):
        return False
    kept = ("name", "namespace", "ownerReferences")
    begun = service | {
        "metadata": {name: meta[name] for name in kept},
        # The apply requests the load balancer, together with its restrictions.
        "spec": {"type": "NodePort", "selector": spec["selector"], "ports": spec["ports"]},
    }
    await context.kube.create(begun)
    return True


async def _unlabelled(context: ActionContext, kind: Kind, name: str) -> Object | None:
    """Read an object of the name that lacks the label of the cluster."""
    try:
        return await context.kube.get(kind, context.cluster.namespace, name)
    except NotFoundError:
        return None


async def _prune(
    context: ActionContext, kind: Kind, left: Iterable[Object], done: Supplied
) -> None:
    """Delete objects that were rendered for a former specification."""
    for one in left:
        if not belongs_to(one, context.cluster.uid) or metadata_of(one).get("deletionTimestamp"):
            continue
        name = str(metadata_of(one)["name"])
        uid = Preconditions(metadata_of(one)["uid"])
        await context.kube.delete(kind, context.cluster.namespace, name, preconditions=uid)
        done.writes += 1


# -- former revisions -----------------------------------------------------------------------------


async def forget_revisions(context: ActionContext, kept: Iterable[str]) -> int:
    """Delete templates, configurations and listeners that no pod and no kept revision names.

    Args:
        context: Context of the pass.
        kept: Revisions of pods and of the set, and those to which the set may be reverted.

    Returns:
        Number of deleted objects.

    Raises:
        KubeError: A call failed.
    """
    cluster = context.cluster
    selector = f"{names.CLUSTER}={cluster.name}"
    listed = await context.kube.list_all(CONFIG_MAPS, cluster.namespace, selector=selector)
    live = {str(metadata_of(item)["name"]): item for item in listed.items}
    wanted = {names.revision(cluster.name, one) for one in kept if one}
    templates = [pod["spec"] for pod in context.reads.pods]
    templates += [
        workload.read_revision(live[name]).template["spec"] for name in wanted if name in live
    ]
    if context.reads.set is not None:
        templates.append(context.reads.set["spec"]["template"]["spec"])
    rendered = (*context.rendered.configs, *context.rendered.objects)
    wanted |= {metadata_of(one)["name"] for one in rendered if kind_of(one) == CONFIG_MAPS}
    wanted = wanted.union(*(named_configs(template) for template in templates))
    stems = (names.revision(cluster.name, ""), names.config(cluster.name, ""))
    listeners = names.listeners(cluster.name)
    gone = [
        one
        for name, one in live.items()
        if (name.startswith(stems) or name == listeners)
        and name not in wanted
        and is_owned_by(one, cluster.uid)
    ]
    for one in gone:
        uid = Preconditions(metadata_of(one)["uid"])
        name = str(metadata_of(one)["name"])
        await context.kube.delete(CONFIG_MAPS, cluster.namespace, name, preconditions=uid)
    return len(gone)
