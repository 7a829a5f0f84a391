"""Watches: every change of a relevant object puts the key of its resource into a queue.

kopf provides the watches, with bookmarks, time-outs and renewed credentials, and nothing else: it
has only raw event handlers. It writes nothing: handlers that would need a finalizer, an annotation
or an Event are not used, and its posting is off. A watch that fails permanently ends kopf, which
ends the process; the resync finds changes that a watch missed.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import kopf

from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    PIPELINES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SETS,
    STREAMS,
    USERS,
    Kind,
)
from liftbridge_operator.model import names
from liftbridge_operator.process.metrics import Metrics
from liftbridge_operator.process.reconciler import Key

RESOURCES: Final = (CLUSTERS, STREAMS, PIPELINES, USERS)
"""Kinds that have passes."""

OF_CLUSTERS: Final = (
    *(PODS, SETS, CLAIMS, CONFIG_MAPS, SERVICES, SERVICE_ACCOUNTS, BUDGETS, NETWORK_POLICIES),
)
"""Kinds whose objects are parts of clusters; Secrets are read by name, never watched."""

OF_PIPELINES: Final = (DEPLOYMENTS, JOBS, CRON_JOBS)
"""Kinds whose objects run pipelines."""

OWNED: Final = (*OF_CLUSTERS, *OF_PIPELINES)

_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REQUEST_SECONDS_MAX: Final = 30.0
_IDENTITY: Final[Any] = "liftbridge-operator"
BACKOFFS_S: Final = (0.5, 1, 2, 4, 8)
"""Waits between attempts, long enough for a restart of the API server."""


class _NothingKept(kopf.DiffBaseStorage):
    """Keeps no former state of objects, since no handler needs differences.

    Without it kopf copies and compares the whole object at each event, a third of its time when
    thousands are listed (`make operator-scale`).
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return an empty essence for any object."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return None, since nothing is stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


Notice = Callable[[Key], None]


class Watches:
    """The watches of one process.

    Owned by the process; it requests passes by `notice`, on the event loop.
    """

    def __init__(
        self,
        *,
        namespaces: Collection[str],
        notice: Notice,
        metrics: Metrics,
        settings: kopf.OperatorSettings,
    ) -> None:
        """Create watches, which `run` starts.

        Args:
            namespaces: Namespaces to watch; all when empty.
            notice: Called with each key whose resource, or part of it, has changed.
            metrics: Counts events.
            settings: Settings of kopf; see `watch_settings`.
        """
        self._namespaces = tuple(namespaces)
        self._notice = notice
        self._metrics = metrics
        self._settings = settings
        self._owners = Owners()
        self._registry = kopf.OperatorRegistry()
        kopf.on.login(registry=self._registry)(log_in)
        for kind in (*RESOURCES, *OWNED):
            self._observe(kind)

    async def run(self, on_begin: Callable[[], None]) -> None:
        """Watch until cancelled, or until a watch fails permanently.

        Args:
            on_begin: Called once kopf has installed its signal handlers, so that the process can
                install its own again.

        Raises:
            Exception: Error that ended a watch.
        """
        others = asyncio.all_tasks()  # at its end kopf cancels all tasks except those ignored
        tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=self._settings,
            # Without an identity kopf looks up the user name, which a container lacks.
            identity=_IDENTITY,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )
        on_begin()
        await kopf.run_tasks(tasks, ignored=others)

    def _observe(self, kind: Kind) -> None:
        """Register a handler for every event of a kind."""

        async def seen(
            *, namespace: str | None, name: str, labels: Mapping[str, str], **event: Any
        ) -> None:
            self._metrics.count("watch_events_total", kind.qualified)
            key = key_of(kind, namespace or "", name, labels)
            place = (kind, namespace or "", name)
            for one in self._owners.of(place, key, is_gone=event["type"] == "DELETED"):
                self._notice(one)

        kopf.on.event(
            kind.group, kind.version, kind.plural, id=kind.qualified, registry=self._registry
        )(seen)


class Owners:
    """Resource to which each object belonged when it was last seen.

    Removing a label from an object changes a part of the resource that the label named.
    """

    def __init__(self) -> None:
        """Start with no known objects."""
        self._known: dict[tuple[Kind, str, str], Key] = {}

    def of(
        self, place: tuple[Kind, str, str], key: Key | None, *, is_gone: bool = False
    ) -> tuple[Key, ...]:
        """Return resources that need a pass when an object changes.

        Args:
            place: Kind, namespace and name of the object.
            key: The resource that it belongs to now; None for none.
            is_gone: Whether it was deleted.
        """
        former = self._known.pop(place, None)
        if key is not None and not is_gone:
            self._known[place] = key
        return tuple(dict.fromkeys(one for one in (key, former) if one is not None))


def key_of(kind: Kind, namespace: str, name: str, labels: Mapping[str, str]) -> Key | None:
    """Return the resource that needs a pass when an object changes; None for unrelated objects."""
    if kind in RESOURCES:
        return Key(kind, namespace, name)
    if kind in OF_PIPELINES:
        pipeline = labels.get(names.PIPELINE)
        return Key(PIPELINES, namespace, pipeline) if pipeline else None
    cluster = labels.get(names.CLUSTER)
    return Key(CLUSTERS, namespace, cluster) if cluster else None


def watch_settings(backoffs_s: Collection[float] = BACKOFFS_S) -> kopf.OperatorSettings:
    """Return settings with which kopf only watches.

    Args:
        backoffs_s: Waits between attempts of a request, after which a watch fails permanently.
    """
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True  # no rights to list namespaces and CRDs
    found.persistence.finalizer = (
        "liftbridge.io/unused"  # kopf removes this finalizer where it finds it
    )
    found.persistence.diffbase_storage = _NothingKept()
    found.process.ultimate_exiting_timeout = None  # the process bounds its own shutdown
    found.networking.request_timeout = _REQUEST_SECONDS_MAX
    found.networking.connect_timeout = 5.0
    found.networking.error_backoffs = tuple(backoffs_s)
    found.watching.chunk_size = 500
    found.queueing.idle_timeout = 1.0
    found.queueing.exit_timeout = 0.5
    for kind in OWNED:
        label = names.PIPELINE if kind in OF_PIPELINES else names.CLUSTER
        found.watching.label_selectors[kind.group, kind.version, kind.plural] = label
    return found


async def log_in(settings: kopf.OperatorSettings, **_: object) -> kopf.ConnectionInfo:
    """Return credentials of the pod, else of the user's kubeconfig, like the client.

    kopf calls this again when the API server refuses them, so that a renewed token is read.

    Raises:
        kopf.LoginError: There are no credentials.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    token = _FOLDER / "token"
    if host and port and token.exists():
        shown = f"[{host}]" if ":" in host else host
        return kopf.ConnectionInfo(
            server=f"https://{shown}:{port}",
            ca_path=str(_FOLDER / "ca.crt"),
            scheme="Bearer",
            token=token.read_text(encoding="utf-8").strip(),
        )
    found: Any = kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise kopf.LoginError("neither a service account nor a kubeconfig is there")
    assert isinstance(found, kopf.ConnectionInfo), "kopf gives what it takes"
    return found
