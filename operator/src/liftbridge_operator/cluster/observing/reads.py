"""Reads of one pass over a cluster.

Objects that may not be read are left out: nodes and volumes need rights that are optional.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from liftbridge_operator.cluster.observing import failed_creates
from liftbridge_operator.cluster.observing.objects import Json, label_of, metadata_of
from liftbridge_operator.cluster.planning.decision import Wait
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_operator.kube.errors import ForbiddenError, NotFoundError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    SETS,
    STREAMS,
    VOLUMES,
    Kind,
)
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model import names

TOKEN_ID_KEY: Final = "restart-id"  # noqa: S105 - name of a key
TOKEN_KEY: Final = "token"  # noqa: S105 - name of a key
_INTERNAL: Final = "Internal"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reads:
    """Objects of a cluster in JSON form.

    Attributes:
        nodes: None when they may not be read.
        volumes: Volumes by name, of claims whose pods wait for a node.
        revision: ConfigMap with the template of the set.
        refused: ConfigMap with the reverted template.
        restart: ConfigMap with the token of the recorded restart.
        services: Services, when the cluster has external listeners.
        automatic: Streams whose replication factor follows the number of brokers.
        failed_creates: Pods that the StatefulSet fails to create, each with the cause.
    """

    resource: Object
    identity: Object | None = None
    set: Object | None = None
    pods: tuple[Object, ...] = ()
    claims: tuple[Object, ...] = ()
    budget: Object | None = None
    nodes: tuple[Object, ...] | None = None
    volumes: Mapping[str, Object] = field(default_factory=dict)
    revision: Object | None = None
    refused: Object | None = None
    restart: Object | None = None
    services: tuple[Object, ...] = ()
    automatic: tuple[str, ...] = ()
    failed_creates: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Of the cluster."""
        return str(metadata_of(self.resource)["name"])

    @property
    def namespace(self) -> str:
        """Of the cluster."""
        return str(metadata_of(self.resource)["namespace"])

    def token(self, restart_id: str) -> bytes | None:
        """Return the token stored under an id; None when it is lost."""
        data = (self.restart or {}).get("data") or {}
        if not restart_id or data.get(TOKEN_ID_KEY) != restart_id:
            return None
        try:
            return base64.b64decode(str(data.get(TOKEN_KEY) or ""), validate=True)
        except (binascii.Error, ValueError):
            return None


def restart_name(cluster: str) -> str:
    """Return the name of the ConfigMap for a restart token, which is too large for a status."""
    return f"{cluster}-restart"


async def read(kube: Kube, resource: Object, waits: Sequence[Wait] = ()) -> Reads:
    """Read everything that belongs to a cluster.

    Args:
        kube: The API server.
        resource: The cluster.
        waits: Waits of the pass before.

    Raises:
        KubeError: A necessary object could not be read.
    """
    name, namespace = metadata_of(resource)["name"], metadata_of(resource)["namespace"]
    selector = f"{names.CLUSTER}={name}"
    has_restart = bool((resource.get("status") or {}).get("disruption"))
    # Owners are read before their objects: a pod is never read earlier than its set.
    identity, brokers, budget, restart = await asyncio.gather(
        _one(kube, CONFIG_MAPS, namespace, names.identity(name)),
        _one(kube, SETS, namespace, names.brokers(name)),
        _one(kube, BUDGETS, namespace, names.brokers(name)),
        _one(kube, CONFIG_MAPS, namespace, restart_name(name)) if has_restart else _none(),
    )
    claims, pods, nodes = await asyncio.gather(
        _parts(kube, CLAIMS, resource, claim_names(resource, brokers)),
        _parts(kube, PODS, resource, pod_names(resource, brokers)),
        _allowed(kube.list_all(NODES, "")),
    )
    volumes = await _volumes(kube, pods, claims) if nodes is not None else {}
    return Reads(
        resource=resource,
        identity=identity,
        set=brokers,
        pods=pods,
        claims=claims,
        budget=budget,
        nodes=nodes.items if nodes is not None else None,
        volumes=volumes,
        revision=await _revision(kube, namespace, name, brokers, names.REVISION),
        refused=await _revision(kube, namespace, name, brokers, names.BAD_REVISION),
        restart=restart,
        services=await _services(kube, resource, selector),
        automatic=await _automatic(kube, resource, brokers),
        failed_creates=await _failed_creates(kube, resource, brokers, pods, waits),
    )


def pod_names(resource: Json, brokers: Json | None) -> list[str]:
    """Return the expected names of a cluster's pods, whatever their labels."""
    name = str(metadata_of(resource)["name"])
    return [names.broker(name, ordinal) for ordinal in range(_size(resource, brokers))]


def claim_names(resource: Json, brokers: Json | None) -> list[str]:
    """Return the expected names of a cluster's claims: those of the set and of the status."""
    name, status = str(metadata_of(resource)["name"]), resource.get("status") or {}
    storage = (resource.get("spec") or {}).get("storage") or {}
    volumes = [names.DATA_VOLUME, *([names.RAFT_VOLUME] if storage.get("raft") else [])]
    if brokers is not None:
        templates = (brokers.get("spec") or {}).get("volumeClaimTemplates") or ()
        volumes = [str(metadata_of(template).get("name")) for template in templates]
    size = _size(resource, brokers)
    found = [names.claim(name, ordinal, volume) for ordinal in range(size) for volume in volumes]
    known = [one for broker in status.get("brokers") or () for one in broker.get("volumes") or ()]
    known += status.get("retainedVolumes") or ()
    return [*found, *(str(one["name"]) for one in known if one["name"] not in found)]


def _size(resource: Json, brokers: Json | None) -> int:
    """Return the number of pods of the set; without a set, the number to be restored."""
    if brokers is not None:
        return int((brokers.get("spec") or {}).get("replicas") or 0)
    sizes = (resource.get("status") or {}).get("size"), (resource.get("spec") or {}).get("replicas")
    return max(int(size or 0) for size in sizes)


async def _parts(
    kube: Kube, kind: Kind, resource: Json, expected: Sequence[str]
) -> tuple[Object, ...]:
    """Read objects with the label of a cluster, and by name those that lost the label.

    A foreign pod with such a name is ignored.
    """
    name, namespace = metadata_of(resource)["name"], str(metadata_of(resource)["namespace"])
    listed = await kube.list_all(kind, namespace, selector=f"{names.CLUSTER}={name}")
    known = {metadata_of(item)["name"] for item in listed.items}
    left = [one for one in expected if one not in known]
    bodies = await asyncio.gather(*(_allowed(kube.get(kind, namespace, one)) for one in left))
    lost = [body for body in bodies if body is not None]
    if kind == PODS:
        lost = [
            one for one in lost if names.REVISION in (metadata_of(one).get("annotations") or ())
        ]
    return (*listed.items, *lost)


async def _none() -> None:
    return None


async def _one(kube: Kube, kind: Kind, namespace: str, name: str) -> Object | None:
    try:
        return await kube.get(kind, namespace, name)
    except NotFoundError:
        return None


async def _allowed(call: Awaitable[_T]) -> _T | None:
    try:
        return await call
    except (ForbiddenError, NotFoundError):
        return None


async def _services(kube: Kube, resource: Json, selector: str) -> tuple[Object, ...]:
    """Read Services of a cluster with external listeners, for their assigned addresses."""
    listeners = (resource.get("spec") or {}).get("listeners") or ()
    if all(listener.get("type", _INTERNAL) == _INTERNAL for listener in listeners):
        return ()
    namespace = str(metadata_of(resource)["namespace"])
    return (await kube.list_all(SERVICES, namespace, selector=selector)).items


async def _volumes(kube: Kube, pods: Sequence[Json], claims: Sequence[Json]) -> dict[str, Object]:
    """Read volumes of claims whose pods are unscheduled: their node affinity may be the cause."""
    waiting = {
        metadata_of(one)["name"] for one in pods if not (one.get("spec") or {}).get("nodeName")
    }
    wanted = [
        str(claim["spec"]["volumeName"])
        for claim in claims
        if (claim.get("spec") or {}).get("volumeName")
        and any(str(metadata_of(claim)["name"]).endswith(f"-{pod}") for pod in waiting)
    ]
    found = await asyncio.gather(*(_allowed(kube.get(VOLUMES, "", name)) for name in wanted))
    return {name: volume for name, volume in zip(wanted, found, strict=True) if volume is not None}


async def _revision(
    kube: Kube, namespace: str, name: str, brokers: Json | None, annotation: str
) -> Object | None:
    """Read the stored template that an annotation of the set names."""
    if brokers is None:
        return None
    template = (brokers.get("spec") or {}).get("template") or {}
    named = [
        (metadata_of(one).get("annotations") or {}).get(annotation) for one in (brokers, template)
    ]
    # The set and its template name the same revision, unless either was changed.
    for has in dict.fromkeys(filter(None, named)):
        found = await _one(kube, CONFIG_MAPS, namespace, names.revision(name, str(has)))
        if found is not None:
            return found
    return None


async def _failed_creates(
    kube: Kube,
    resource: Json,
    brokers: Json | None,
    pods: Sequence[Json],
    waits: Sequence[Wait],
) -> tuple[tuple[str, str], ...]:
    """Return causes of failed pod creations; read only when pods are missing."""
    if brokers is None:
        return ()
    present = {metadata_of(pod)["name"] for pod in pods}
    missing = [one for one in pod_names(resource, brokers) if one not in present]
    return await failed_creates.causes_of(kube, brokers, missing, waits)


async def _automatic(kube: Kube, resource: Json, brokers: Json | None) -> tuple[str, ...]:
    """Return streams whose replication factor follows the brokers; read only for a scale-in."""
    wanted = int((resource.get("spec") or {}).get("replicas") or 0)
    has = int(((brokers or {}).get("spec") or {}).get("replicas") or 0)
    if has <= wanted:
        return ()
    metadata = metadata_of(resource)
    listed = await _allowed(kube.list_all(STREAMS, str(metadata["namespace"])))
    streams = []
    for one in listed.items if listed is not None else ():
        spec = one.get("spec") or {}
        is_mine = (spec.get("clusterRef") or {}).get("name") == metadata["name"]
        if is_mine and spec.get("replicationFactor") == -1:
            streams.append(str(spec.get("streamName") or metadata_of(one)["name"]))
    return tuple(streams)


def data_claims(claims: Sequence[Object], cluster: str) -> list[Object]:
    """Return claims for data of brokers, without separate claims for metadata."""
    return _claims_of(claims, f"{names.DATA_VOLUME}-{cluster}-")


def unmarked_claims(reads: Reads) -> dict[str, str]:
    """Return claims that lost their mark as kept: by name, since when the status lists them.

    A returning broker removes the mark too, but then it is within the desired number.
    """
    status, spec = reads.resource.get("status") or {}, reads.resource.get("spec") or {}
    size = max(_size(reads.resource, reads.set), int(spec.get("replicas") or 0))
    since = {volume["uid"]: str(volume["since"]) for volume in status.get("retainedVolumes") or ()}
    return {
        str(metadata_of(claim)["name"]): since[metadata_of(claim)["uid"]]
        for claim in data_claims(reads.claims, reads.name)
        if metadata_of(claim)["uid"] in since
        and names.RETIRED not in (metadata_of(claim).get("annotations") or {})
        and ordinal_of(str(metadata_of(claim)["name"])) >= size
    }


def raft_claims(claims: Sequence[Object], cluster: str) -> list[Object]:
    """Return separate claims for metadata of brokers."""
    return _claims_of(claims, f"{names.RAFT_VOLUME}-{cluster}-")


def _claims_of(claims: Sequence[Object], stem: str) -> list[Object]:
    return [
        claim
        for claim in claims
        if str(metadata_of(claim)["name"]).startswith(stem)
        and str(metadata_of(claim)["name"]).removeprefix(stem).isdigit()
    ]


def broker_pods(pods: Sequence[Object], cluster: str) -> list[Object]:
    """Return pods of brokers, sorted by ordinal."""
    stem = f"{cluster}-"
    found = [
        pod
        for pod in pods
        if str(metadata_of(pod)["name"]).startswith(stem)
        and str(metadata_of(pod)["name"]).removeprefix(stem).isdigit()
        and label_of(pod, "app.kubernetes.io/component") in ("", "broker")
    ]
    return sorted(found, key=lambda one: int(str(metadata_of(one)["name"]).removeprefix(stem)))
