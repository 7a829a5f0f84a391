"""Everything around the set: brought to what was rendered, kept so, and taken away when not needed.

An object is compared first and written only when it differs, so that a cluster at rest costs no
write. Objects of somebody else are never touched, whatever their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from liftbridge_operator.acting.hands import Hands, Trouble
from liftbridge_operator.acting.in_force import configs_in_force
from liftbridge_operator.acting.keeping import keep
from liftbridge_operator.acting.ownership import foreign
from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PROMETHEUS_RULES,
    SERVICE_MONITORS,
    SERVICES,
    Kind,
    kind_of,
)
from liftbridge_operator.kube.port import FIELD_MANAGER, Object, Preconditions
from liftbridge_operator.model.cluster import API_VERSION, CLUSTER_KIND
from liftbridge_operator.model.storage import VolumeFate
from liftbridge_operator.observing.objects import claim_of, is_owned_by, metadata_of
from liftbridge_operator.observing.reads import data_claims
from liftbridge_operator.rendering import names, workload
from liftbridge_operator.rendering.volumes import named_configs

PRUNED: Final = (SERVICES, NETWORK_POLICIES)
"""Kinds of which some are rendered only for some specifications."""

MONITORS: Final = (SERVICE_MONITORS, PROMETHEUS_RULES)
"""Kinds that need rights and definitions of their own; brokers do without them."""


@dataclass(slots=True)
class Supplied:
    """What was found and mended.

    Attributes:
        trouble: What a person has to mend; nothing further is done then.
        drift: Fields that somebody else had changed: object, field, manager.
        writes: Objects written.
    """

    trouble: Trouble | None = None
    drift: list[tuple[str, Difference]] = field(default_factory=list)
    writes: int = 0


async def supply(hands: Hands) -> Supplied:
    """Bring all objects beside the set to what was rendered.

    Raises:
        KubeError: A call failed.
    """
    done = Supplied()
    configs = (*await configs_in_force(hands), *hands.rendered.configs)
    await _configs(hands, {metadata_of(one)["name"]: one for one in configs}.values(), done)
    kinds = dict.fromkeys((*PRUNED, *(kind_of(one) for one in hands.rendered.objects)))
    for kind in kinds:
        if kind in MONITORS:
            continue
        await _of_kind(hands, kind, _rendered(hands, kind), done)
        if done.trouble is not None:
            return done
    kept = await keep(hands)
    done.writes += len(kept)
    done.drift += [(name, one) for name, one in kept if one.manager]
    await _owners_of_claims(hands, done)
    await _classes_of_claims(hands, done)
    return done


@dataclass(frozen=True, slots=True)
class Monitored:
    """How the objects for the Prometheus operator stand.

    Attributes:
        reason: Of the condition `MonitoringReady`.
        values: Of its text.
        drift: As in `Supplied`.
    """

    reason: str = "NotReconciled"
    values: Mapping[str, str] = field(default_factory=dict)
    drift: tuple[tuple[str, Difference], ...] = ()


async def supply_monitors(hands: Hands, *, may_exist: bool) -> Monitored:
    """Bring the objects for the Prometheus operator to what was rendered.

    What is missing for that is told, and stops nothing: brokers run without being watched.

    Args:
        hands: With what.
        may_exist: Whether there may be some that are not wanted any more.

    Raises:
        KubeError: A call failed for another reason than a missing right or definition.
    """
    is_wanted = any(kind_of(one) in MONITORS for one in hands.rendered.objects)
    if not is_wanted and not may_exist:
        return Monitored("NotWanted")
    done = Supplied()
    for kind in MONITORS:
        wanted = _rendered(hands, kind)
        try:
            await _of_kind(hands, kind, wanted, done)
        except (NotFoundError, ForbiddenError, InvalidError) as error:
            if wanted:
                return _hindered(kind, error)
    if done.trouble is not None:
        return Monitored(done.trouble.reason, done.trouble.values)
    return Monitored("Kept" if is_wanted else "NotWanted", drift=tuple(done.drift))


def _hindered(kind: Kind, error: NotFoundError | ForbiddenError | InvalidError) -> Monitored:
    """Why an object for the Prometheus operator is not there."""
    if isinstance(error, NotFoundError):
        return Monitored("NotInstalled", {"object": kind.qualified})
    if isinstance(error, InvalidError) or "quota" in error.message.lower():
        return Monitored("Refused", {"object": kind.qualified, "detail": error.message})
    return Monitored("MissingRights", {"verb": "keep", "object": kind.qualified})


def _rendered(hands: Hands, kind: Kind) -> list[Object]:
    return [one for one in hands.rendered.objects if kind_of(one) == kind]


async def supply_configs(hands: Hands) -> Supplied:
    """Put again what the present pods are made of, while what is asked for is refused.

    Raises:
        KubeError: A call failed.
    """
    done = Supplied()
    await _configs(hands, await configs_in_force(hands), done)
    return done


async def _configs(hands: Hands, wanted: Iterable[Object], done: Supplied) -> None:
    """Immutable ConfigMaps that a pod may need any moment."""
    for body in wanted:
        name = str(metadata_of(body)["name"])
        try:
            live = await hands.kube.get(CONFIG_MAPS, hands.cluster.namespace, name)
        except NotFoundError:
            pass
        else:
            done.trouble = done.trouble or foreign(live, hands.cluster)
            continue
        try:
            await hands.kube.create(body)
            done.writes += 1
        except AlreadyExistsError:
            continue


async def _of_kind(hands: Hands, kind: Kind, wanted: Sequence[Object], done: Supplied) -> None:
    selector = f"{names.CLUSTER}={hands.cluster.name}"
    listed = await hands.kube.list_all(kind, hands.cluster.namespace, selector=selector)
    live = {metadata_of(one)["name"]: one for one in listed.items}
    for body in wanted:
        await _bring(hands, kind, body, live.pop(metadata_of(body)["name"], None), done)
        if done.trouble is not None:
            return
    if kind in PRUNED or kind in MONITORS:
        await _prune(hands, kind, live.values(), done)


async def _bring(
    hands: Hands, kind: Kind, body: Object, live: Object | None, done: Supplied
) -> None:
    name = str(metadata_of(body)["name"])
    if live is None:
        live = await _unlabelled(hands, kind, name)
    if live is None:
        is_begun = kind == SERVICES and await _begin_with_ports(hands, body)
        await hands.kube.apply(body, force=is_begun)
        done.writes += 1
        return
    if not is_owned_by(live, hands.cluster.uid):
        done.trouble = foreign(live, hands.cluster)
        return
    found = differences(live, body)
    if kind == SERVICES and _ports(live) != _ports(body):
        # A port is told by its number: an apply would add ours and leave that of somebody else.
        ports = {"spec": {"ports": body["spec"]["ports"]}}
        await hands.kube.patch(
            kind, hands.cluster.namespace, name, ports, preconditions=Preconditions.of(live)
        )
        found = (Difference(".spec.ports", _owner_of_ports(live)), *found)
    if found:
        await hands.kube.apply(body, force=True)
        done.writes += 1
        done.drift += [(f"{kind.kind}/{name}", one) for one in found if one.manager]


async def _begin_with_ports(hands: Hands, service: Object) -> bool:
    """Create a Service that is given ports on nodes with no more than these; whether it is one.

    Of an apply that creates, and is cut off because this process is killed, the API server may keep
    the ports without the Service, and refuses them to everybody until it notices, minutes later.
    A create gives them back. Every later apply names what is created here, and can change it.
    """
    spec, meta = service["spec"], metadata_of(service)
    if not any("nodePort" in port for port in spec["ports"]):
        return False
    kept = ("name", "namespace", "ownerReferences")
    begun = service | {
        "metadata": {name: meta[name] for name in kept},
        # A load balancer is asked for by the apply, with all that restricts it.
        "spec": {"type": "NodePort", "selector": spec["selector"], "ports": spec["ports"]},
    }
    await hands.kube.create(begun)
    return True


def _ports(service: Object) -> set[tuple[int, str]]:
    return {(one["port"], one.get("protocol", "TCP")) for one in service["spec"].get("ports", ())}


def _owner_of_ports(service: Object) -> str:
    """Somebody else who wrote ports of a Service; empty for nobody."""
    for entry in metadata_of(service).get("managedFields") or ():
        owned = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if entry.get("manager") != FIELD_MANAGER and "f:ports" in owned:
            return str(entry.get("manager"))
    return ""


async def _unlabelled(hands: Hands, kind: Kind, name: str) -> Object | None:
    """An object of the name that does not say it is of this cluster."""
    try:
        return await hands.kube.get(kind, hands.cluster.namespace, name)
    except NotFoundError:
        return None


async def _prune(hands: Hands, kind: Kind, left: Iterable[Object], done: Supplied) -> None:
    """Take away what was rendered for a former specification."""
    for one in left:
        if not is_owned_by(one, hands.cluster.uid) or metadata_of(one).get("deletionTimestamp"):
            continue
        name = str(metadata_of(one)["name"])
        uid = Preconditions(metadata_of(one)["uid"])
        await hands.kube.delete(kind, hands.cluster.namespace, name, preconditions=uid)
        done.writes += 1


# -- claims -------------------------------------------------------------------------------------


async def _owners_of_claims(hands: Hands, done: Supplied) -> None:
    """Volumes that go with the resource name it as their owner; others name nobody."""
    cluster = hands.cluster
    is_deleted = cluster.spec.storage.retention.when_deleted is VolumeFate.DELETE
    for claim in hands.reads.claims:
        if is_owned_by(claim, cluster.uid) == is_deleted or _is_going(claim):
            continue
        others = [
            one
            for one in metadata_of(claim).get("ownerReferences") or ()
            if one.get("kind") != CLUSTER_KIND
        ]
        owner: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_KIND,
            "name": cluster.name,
            "uid": cluster.uid,
        }
        await hands.kube.patch(
            CLAIMS,
            cluster.namespace,
            str(metadata_of(claim)["name"]),
            {"metadata": {"ownerReferences": [*others, owner] if is_deleted else others}},
            preconditions=Preconditions.of(claim),
        )
        done.writes += 1


async def _classes_of_claims(hands: Hands, done: Supplied) -> None:
    """Volumes have the VolumeAttributesClass that is asked for; without one they keep theirs."""
    storage = hands.cluster.spec.storage
    given = {names.DATA_VOLUME: storage.data, names.RAFT_VOLUME: storage.raft}
    for claim in hands.reads.claims:
        name = str(metadata_of(claim)["name"])
        kind = next((one for one in given if name.startswith(f"{one}-{hands.cluster.name}-")), "")
        volume = given.get(kind)
        wanted = volume.volume_attributes_class_name if volume is not None else None
        spec = claim.get("spec") or {}
        if wanted is None or _is_going(claim) or spec.get("volumeAttributesClassName") == wanted:
            continue
        await hands.kube.patch(
            CLAIMS,
            hands.cluster.namespace,
            name,
            {"spec": {"volumeAttributesClassName": wanted}},
            preconditions=Preconditions(metadata_of(claim)["uid"]),
        )
        done.writes += 1


def _is_going(body: Object) -> bool:
    return bool(metadata_of(body).get("deletionTimestamp"))


async def release_volumes(hands: Hands, replicas: int) -> int:
    """Delete volumes of brokers that have left, where the specification says so.

    Only while the cluster is ready: then nobody beyond the set is a broker of it any more.

    Args:
        hands: With what.
        replicas: Pods of the set.

    Returns:
        How many claims were deleted.

    Raises:
        KubeError: A call failed.
    """
    cluster = hands.cluster
    if cluster.spec.storage.retention.when_scaled is not VolumeFate.DELETE:
        return 0
    left = [
        claim_of(one).ordinal
        for one in data_claims(list(hands.reads.claims), cluster.name)
        if claim_of(one).is_retired and claim_of(one).ordinal >= replicas
    ]
    gone = {
        names.claim(cluster.name, ordinal, volume)
        for ordinal in left
        for volume in (names.DATA_VOLUME, names.RAFT_VOLUME)
    }
    count = 0
    for claim in hands.reads.claims:
        name = str(metadata_of(claim)["name"])
        if name in gone and not _is_going(claim):
            await hands.kube.delete(
                CLAIMS, cluster.namespace, name, preconditions=Preconditions.of(claim)
            )
            count += 1
    return count


# -- former revisions -----------------------------------------------------------------------------


async def forget_revisions(hands: Hands, kept: Iterable[str]) -> int:
    """Delete templates and configurations that no pod and no kept revision names.

    Args:
        hands: With what.
        kept: Revisions of pods, of the set, and those it may go back to.

    Returns:
        How many objects were deleted.

    Raises:
        KubeError: A call failed.
    """
    cluster = hands.cluster
    selector = f"{names.CLUSTER}={cluster.name}"
    listed = await hands.kube.list_all(CONFIG_MAPS, cluster.namespace, selector=selector)
    live = {str(metadata_of(one)["name"]): one for one in listed.items}
    wanted = {names.revision(cluster.name, one) for one in kept if one}
    templates = [one["spec"] for one in hands.reads.pods]
    templates += [
        workload.read_revision(live[name]).template["spec"] for name in wanted if name in live
    ]
    if hands.reads.set is not None:
        templates.append(hands.reads.set["spec"]["template"]["spec"])
    wanted |= {metadata_of(one)["name"] for one in hands.rendered.configs}
    wanted = wanted.union(*(named_configs(template) for template in templates))
    stems = (names.revision(cluster.name, ""), names.config(cluster.name, ""))
    gone = [
        one
        for name, one in live.items()
        if name.startswith(stems) and name not in wanted and is_owned_by(one, cluster.uid)
    ]
    for one in gone:
        uid = Preconditions(metadata_of(one)["uid"])
        name = str(metadata_of(one)["name"])
        await hands.kube.delete(CONFIG_MAPS, cluster.namespace, name, preconditions=uid)
    return len(gone)
