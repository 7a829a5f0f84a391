"""`support-bundle`: everything that shows what happened to a cluster, in a file without secrets.

Objects that the user may not read, or requests without an answer, are noted and left out: a bundle
is for when things go wrong. Small items come first, logs last, so that the limits of size and time
cut off logs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import Json, metadata_of
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import ForbiddenError, KubeError, NotFoundError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    SETS,
    Kind,
)
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model import names
from liftbridge_operator.model.units import MIB
from liftbridge_operator.plugin import describe, lookup
from liftbridge_operator.plugin.archive import Archive, as_json
from liftbridge_operator.plugin.lookup import name_of, namespace_of
from liftbridge_operator.plugin.port import Access
from liftbridge_operator.plugin.redaction import Redactor

FORMAT: Final = 1
NODES_MAX: Final = 100
OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=liftbridge-operator"
DISTRIBUTION: Final = "liftbridge-operator"

_OF_CLUSTER: Final = (
    ("pods", PODS),
    ("claims", CLAIMS),
    ("config-maps", CONFIG_MAPS),
    ("services", SERVICES),
    ("disruption-budgets", BUDGETS),
    ("network-policies", NETWORK_POLICIES),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a bundle.

    Attributes:
        size_bytes: Size of all files together, before compression.
        log_bytes: Size of one log; its end is kept.
        log_lines: Lines requested of one log; 0 for no logs.
        objects: Objects of one kind; further ones are only counted.
        events: Number of latest events.
        seconds: Time after which the bundle is finished with what was gathered.
    """

    size_bytes: int = 64 * MIB
    log_bytes: int = 2 * MIB
    log_lines: int = 10_000
    objects: int = 5_000
    events: int = 2_000
    seconds: float = 120.0


@dataclass(slots=True)
class Bundle:
    """A bundle in progress.

    Attributes:
        report: Reports each piece to the user.
        refused: Items that could not be read, each with the cause.
        left_out: Items beyond the limit of size or time.
    """

    access: Access
    archive: Archive
    bounds: Bounds
    report: Callable[[str], None]
    redactor: Redactor = field(default_factory=Redactor)
    refused: list[dict[str, str]] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)

    def add(self, name: str, value: Any) -> None:
        """Add an object, or a list of them, without secrets."""
        self.add_bytes(name, as_json(self.redactor.value(value)))

    def add_bytes(self, name: str, content: bytes, *, is_cut: bool = False) -> None:
        """Add a file as it is."""
        if self.archive.add(name, content, is_cut=is_cut):
            self.report(f"{name}: {_size(len(content))}" + (", its end" if is_cut else ""))
        else:
            self.leave_out(name, f"the bundle is full ({_size(self.bounds.size_bytes)})")

    def leave_out(self, what: str, why: str) -> None:
        """Note an item that the bundle lacks."""
        self.left_out.append({"what": what, "why": why})
        self.report(f"{what}: left out, {why}")

    async def ask(self, what: str, call: Awaitable[Any]) -> Any:
        """Await an answer; None if there is none, which is noted."""
        try:
            return await call
        except KubeError as error:
            if isinstance(error, NotFoundError):
                why = "not found"
            elif isinstance(error, ForbiddenError):
                why = "you are not allowed to read it"
            else:
                why = self.redactor.text(" ".join(error.message.split()))
            self.refused.append({"what": what, "why": why})
            self.report(f"{what}: {why}")
            return None


async def gather(bundle: Bundle, resource: Object, operator_namespace: str, now_ms: int) -> None:
    """Fill a bundle within its time limit, despite errors.

    Args:
        bundle: Empty bundle.
        resource: The cluster.
        operator_namespace: Namespace of the operator; empty to search all.
        now_ms: Current time, for ages in texts.
    """
    try:
        async with asyncio.timeout(bundle.bounds.seconds):
            await _gather(bundle, resource, operator_namespace, now_ms)
    except TimeoutError:
        bundle.leave_out("the rest", f"it took longer than {bundle.bounds.seconds:g} s")


async def _gather(bundle: Bundle, resource: Object, operator_namespace: str, now_ms: int) -> None:
    access, namespace, name = bundle.access, namespace_of(resource), name_of(resource)
    bundle.add("cluster.json", resource)
    streams = await bundle.ask("streams", lookup.streams(access, resource))
    for file, answer in (
        ("status.txt", describe.status(resource, streams, now_ms)),
        ("plan.txt", describe.plan(resource)),
    ):
        bundle.add_bytes(file, (bundle.redactor.text(answer.text) + "\n").encode())
    if streams:
        _add_list(bundle, "streams", streams)
    own = await bundle.ask("stateful set", access.get(SETS, namespace, names.brokers(name)))
    if own is not None:
        bundle.add("stateful-set.json", own)
    found = {what: await _listed(bundle, what, kind, namespace, name) for what, kind in _OF_CLUSTER}
    await _events(bundle, resource, streams or ())
    pods = found["pods"]
    await _nodes(bundle, pods)
    operators = await _operators(bundle, operator_namespace)
    await _versions(bundle, resource, [*pods, *operators])
    if bundle.bounds.log_lines:
        await _logs(bundle, [*pods, *operators])


async def _listed(bundle: Bundle, what: str, kind: Kind, namespace: str, name: str) -> list[Object]:
    """Gather the objects with the label of the cluster."""
    selector = f"{names.CLUSTER}={name}"
    call = bundle.access.list_all(kind, namespace, selector=selector)
    listing = await bundle.ask(what, call)
    if listing is None:
        return []
    _add_list(bundle, what, listing.items)
    return list(listing.items)


def _add_list(bundle: Bundle, what: str, items: Sequence[Json]) -> None:
    most = bundle.bounds.objects
    if len(items) > most:
        bundle.leave_out(what, f"{len(items) - most} of {len(items)}")
    bundle.add(f"{what}.json", items[:most])


async def _events(bundle: Bundle, resource: Json, streams: Iterable[Json]) -> None:
    """Gather the latest events about the cluster, its objects and its streams."""
    namespace, name = namespace_of(resource), name_of(resource)
    listing = await bundle.ask("events", bundle.access.list_all(EVENTS, namespace))
    if listing is None:
        return
    known = {name, *(name_of(stream) for stream in streams)}
    stems = (f"{name}-", f"{names.DATA_VOLUME}-{name}-", f"{names.RAFT_VOLUME}-{name}-")
    about = [
        item
        for item in listing.items
        if (who := str((item.get("regarding") or {}).get("name") or "")) in known
        or who.startswith(stems)
    ]
    about.sort(key=lambda one: str(one.get("eventTime") or _first_seen(one)))
    bundle.add("events.json", about[-bundle.bounds.events :])


def _first_seen(event: Json) -> str:
    return str(
        event.get("deprecatedLastTimestamp") or metadata_of(event).get("creationTimestamp") or ""
    )


async def _nodes(bundle: Bundle, pods: Sequence[Json]) -> None:
    """Gather the nodes of the pods, which few users may read."""
    wanted = dict.fromkeys(str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods)
    wanted.pop("", None)
    found = []
    for name in list(wanted)[:NODES_MAX]:
        node = await bundle.ask(f"node {name}", bundle.access.get(NODES, "", name))
        if node is not None:
            found.append(node)
    if found:
        bundle.add("nodes.json", found)


async def _operators(bundle: Bundle, namespace: str) -> list[Object]:
    """Gather the operator's pods, and the Lease that names their leader."""
    what = f"pods of the operator in {namespace or 'all namespaces (see --operator-namespace)'}"
    call = bundle.access.list_all(PODS, namespace, selector=OPERATOR_SELECTOR)
    listing = await bundle.ask(what, call)
    if listing is None:
        return []
    bundle.add("operator/pods.json", listing.items)
    for place in dict.fromkeys(namespace_of(item) for item in listing.items):
        leases = await bundle.ask(f"leases in {place}", bundle.access.list_all(LEASES, place))
        if leases is not None:
            own = [item for item in leases.items if "liftbridge" in name_of(item)]
            bundle.add(f"operator/leases-{place}.json", own)
    return list(listing.items)


async def _versions(bundle: Bundle, resource: Json, pods: Sequence[Json]) -> None:
    server = await bundle.ask("version of the API server", bundle.access.server_version())
    status = lookup.status_of(resource)
    images = {
        f"{namespace_of(pod)}/{name_of(pod)}": {
            one.get("name"): {"image": one.get("image"), "id": one.get("imageID")}
            for one in _container_statuses(pod)
        }
        for pod in pods
    }
    bundle.add(
        "versions.json",
        {
            "plugin": metadata.version(DISTRIBUTION),
            "apiServer": server,
            "operator": status.get("operatorVersion"),
            "brokers": status.get("version"),
            "images": images,
        },
    )


# -- logs -------------------------------------------------------------------------------------


def _container_statuses(pod: Json) -> list[Json]:
    status: Mapping[str, Any] = pod.get("status") or {}
    return [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]


async def _logs(bundle: Bundle, pods: Sequence[Json]) -> None:
    """Gather each container's log, and its previous one if it was restarted."""
    for pod in pods:
        for one in _container_statuses(pod):
            lives = (False, True) if one.get("restartCount") else (False,)
            for is_former in lives:
                await _log(bundle, pod, str(one.get("name")), is_former=is_former)


async def _log(bundle: Bundle, pod: Json, container: str, *, is_former: bool) -> None:
    namespace, name = namespace_of(pod), name_of(pod)
    file = f"logs/{namespace}/{name}/{container}" + (".former.log" if is_former else ".log")
    lines_max = bundle.bounds.log_lines
    call = bundle.access.log(namespace, name, container, is_former=is_former, lines_max=lines_max)
    content = await bundle.ask(file, call)
    if content is not None:
        text, is_cut = _end(content, bundle.bounds.log_bytes)
        bundle.add_bytes(file, bundle.redactor.text(text).encode(), is_cut=is_cut)


def _end(content: bytes, bytes_max: int) -> tuple[str, bool]:
    """Return the last complete lines of a log, and whether earlier ones are missing."""
    if len(content) <= bytes_max:
        return content.decode("utf-8", "replace"), False
    kept = content[-bytes_max:]
    return kept[kept.find(b"\n") + 1 :].decode("utf-8", "replace"), True


# -- the file ---------------------------------------------------------------------------------


def manifest_of(bundle: Bundle, resource: Json, made_ms: int) -> dict[str, Any]:
    """List the contents of a bundle, and the items left out."""
    return {
        "format": FORMAT,
        "made": moment_text(made_ms),
        "plugin": metadata.version(DISTRIBUTION),
        "cluster": {"namespace": namespace_of(resource), "name": name_of(resource)},
        "entries": [
            {"path": entry.path, "bytes": entry.size_bytes, "isCut": entry.is_cut}
            for entry in bundle.archive.entries
        ],
        "refused": bundle.refused,
        "leftOut": bundle.left_out,
        "redacted": bundle.redactor.count,
        "bounds": {
            "bytes": bundle.bounds.size_bytes,
            "logBytes": bundle.bounds.log_bytes,
            "logLines": bundle.bounds.log_lines,
            "seconds": bundle.bounds.seconds,
        },
    }


def file_name(resource: Json, now_ms: int) -> str:
    """Default name of a bundle."""
    moment = moment_text(now_ms).replace(":", "").replace("-", "")
    return f"liftbridge-{namespace_of(resource)}-{name_of(resource)}-{moment}.tar.gz"


async def write_bundle(
    access: Access,
    resource: Object,
    *,
    path: Path | None,
    bounds: Bounds,
    operator_namespace: str,
    now_ms: int,
    report: Callable[[str], None],
) -> tuple[Path, int, dict[str, Any]]:
    """Gather a bundle into a file.

    Returns:
        The file, its bytes, and its manifest.

    Raises:
        OSError: The file cannot be written, or exists already.
    """
    name = file_name(resource, now_ms)
    path = Path(name) if path is None else path
    archive = Archive(
        path,
        root=name.removesuffix(".tar.gz"),
        bytes_max=bounds.size_bytes,
        made_s=now_ms // 1_000,
    )
    is_whole = False
    try:
        bundle = Bundle(access, archive, bounds, report)
        await gather(bundle, resource, operator_namespace, now_ms)
        manifest = manifest_of(bundle, resource, now_ms)
        size = archive.finish(manifest)
        is_whole = True
    finally:
        if not is_whole:
            archive.discard()
    return path, size, manifest


def _size(count: int) -> str:
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.1f} KiB"
