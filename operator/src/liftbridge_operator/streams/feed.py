"""Poll each cluster every ten seconds, for all of its streams.

A poll reads the resource of the cluster and all streams from its brokers. It requests a pass for
resources whose stream or cluster differs from the inputs of their last pass; without a change it
requests none. Decisions use only polls of the last half minute.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import ForbiddenError, KubeError, NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.reconciler import Key, Requests
from liftbridge_operator.streams.observation import (
    ClusterState,
    ObservedStream,
    SeenCluster,
    Snapshot,
)
from liftbridge_operator.streams.port import BrokersError, StreamBrokers

log = structlog.get_logger("liftbridge.operator.streams")

INTERVAL_SECONDS: Final = 10.0
"""Interval of polls of a cluster."""
HASTENED_SECONDS: Final = 1.0
"""Time until the next poll after a change."""
HEARD_SECONDS: Final = 30.0
"""Age up to which an answer of the brokers is used."""
CONNECTED_SECONDS: Final = 300.0
"""Age at which connections are reopened, with the present certificates and brokers."""
CHANGES_MAX: Final = 8
"""Maximum number of concurrent changes in one cluster."""
_TICK_SECONDS: Final = 0.5
_LOAD_SHARE: Final = 4.0
"""Minimum pause between polls, as a multiple of the duration of the last poll."""


class ClusterKey(NamedTuple):
    """A LiftbridgeCluster."""

    namespace: str
    name: str


class PassInputs(NamedTuple):
    """Inputs of a pass; a change of these requests another pass."""

    state: ClusterState
    allowed: tuple[str, ...]
    is_heard: bool
    stream: ObservedStream | None


@dataclass(slots=True)
class _Watch:
    """A resource of the cluster.

    Attributes:
        stream: Name of its stream.
        age: See `observation.Resource.age`.
        manages: Whether it changes the stream.
        since_s: When it was first seen with that stream.
        inputs: Inputs of its last pass.
    """

    stream: str
    age: tuple[str, str]
    manages: bool
    since_s: float
    inputs: PassInputs | None = None


class Cluster:
    """Polled state of a cluster.

    Attributes:
        key: The LiftbridgeCluster.
        brokers: Connections to the brokers; None while not connected.
        snapshot: Streams of the last answered poll.
        room: Semaphore that bounds concurrent changes.
    """

    def __init__(self, key: ClusterKey) -> None:
        self.key = key
        self.brokers: StreamBrokers | None = None
        self.snapshot: Snapshot | None = None
        self.room = asyncio.Semaphore(CHANGES_MAX)
        self.state = ClusterState.MISSING
        self.allowed: tuple[str, ...] = ()
        self.uid = ""
        self.connected, self.connected_s = 0, 0.0
        self.due_s = 0.0
        self.looked_s = -1.0
        self.cost_s = 0.0
        self.looking = asyncio.Lock()
        self.watches: dict[Key, _Watch] = {}
        self.by_stream: dict[str, set[Key]] = {}

    def is_heard(self, now_s: float) -> bool:
        """Return whether the brokers answered within `HEARD_SECONDS`."""
        return self.snapshot is not None and now_s - self.snapshot.now_s < HEARD_SECONDS

    def seen(self, namespace: str, now_s: float) -> SeenCluster:
        """Return the state of the cluster for resources of a namespace."""
        answered = moment_text(self.snapshot.wall_ms) if self.snapshot is not None else ""
        return SeenCluster(
            f"{self.key.namespace}/{self.key.name}",
            self.state,
            self.lets_in(namespace),
            answered,
            self.is_heard(now_s),
        )

    def lets_in(self, namespace: str) -> bool:
        """Return whether resources of a namespace may refer to this cluster."""
        return namespace == self.key.namespace or "*" in self.allowed or namespace in self.allowed

    def stream(self, name: str) -> ObservedStream | None:
        """Return a stream of the last answer; None for no such stream."""
        return self.snapshot.streams.get(name) if self.snapshot is not None else None

    def inputs(self, name: str, now_s: float) -> PassInputs:
        """Return the present inputs of a pass over a stream."""
        return PassInputs(self.state, self.allowed, self.is_heard(now_s), self.stream(name))

    def older(self, key: Key) -> str:
        """Return the oldest other resource with precedence for the same stream; empty for none."""
        mine = self.watches[key]
        others = [
            (self.watches[one].age, f"{one.namespace}/{one.name}")
            for one in self.by_stream.get(mine.stream, ())
            if one != key and self.watches[one].manages and self.lets_in(one.namespace)
        ]
        first = min(others, default=None)
        return first[1] if first is not None and first[0] < mine.age else ""

    def is_looked_at_for(self, key: Key) -> bool:
        """Return whether the last poll began after a resource was first seen.

        Before that it is unknown whether a stream existed before the resource.
        """
        watch = self.watches.get(key)
        snapshot = self.snapshot
        return watch is not None and snapshot is not None and snapshot.now_s >= watch.since_s

    def watch(
        self, key: Key, stream: str, age: tuple[str, str], now_s: float, *, manages: bool
    ) -> None:
        """Register a resource of this cluster."""
        before = self.watches.get(key)
        since_s = now_s
        if before is not None and before.stream != stream:
            self.leave(key)
        elif before is not None:
            since_s = before.since_s
        self.watches[key] = _Watch(stream, age, manages, since_s, before.inputs if before else None)
        self.by_stream.setdefault(stream, set()).add(key)

    def leave(self, key: Key) -> set[Key]:
        """Unregister a resource; return the other resources of its stream."""
        watch = self.watches.pop(key, None)
        if watch is None:
            return set()
        others = self.by_stream[watch.stream]
        others.discard(key)
        if not others:
            del self.by_stream[watch.stream]
        return set(others)


class StreamFeed:
    """Polls clusters; `run` does so for as long as the operator leads."""

    def __init__(
        self,
        kube: Kube,
        connect: Callable[[Object], Awaitable[StreamBrokers]],
        requests: Requests,
        clock: Clock,
    ) -> None:
        """Start without any cluster.

        Args:
            kube: The API server.
            connect: Connects to the brokers of the cluster resource that it is given.
            requests: Queue of requested passes.
            clock: Time.
        """
        self._kube = kube
        self._connect = connect
        self._requests = requests
        self._clock = clock
        self._clusters: dict[ClusterKey, Cluster] = {}
        self._places: dict[Key, ClusterKey] = {}

    async def run(self) -> None:
        """Poll every cluster at its interval until cancelled."""
        while True:
            now = self._clock.now()
            due = [one for one in self._clusters.values() if one.due_s <= now]
            looks = (self._look(one) for one in due)
            for cluster, outcome in zip(
                due, await asyncio.gather(*looks, return_exceptions=True), strict=True
            ):
                if isinstance(outcome, Exception):
                    # An error with one cluster must not end the polls of all others.
                    key = f"{cluster.key.namespace}/{cluster.key.name}"
                    log.error("look_failed", cluster=key, exc_info=outcome)
            await self._clock.sleep(_TICK_SECONDS)

    async def close(self) -> None:
        """Close the connections to all brokers."""
        clusters, self._clusters = list(self._clusters.values()), {}
        self._places.clear()
        for cluster in clusters:
            await _disconnect(cluster)

    async def enter(
        self, key: Key, cluster: ClusterKey, stream: str, age: tuple[str, str], *, manages: bool
    ) -> Cluster:
        """Register a resource with its cluster, and poll the cluster if it was never polled.

        Args:
            key: The resource.
            cluster: Its cluster.
            stream: Name of its stream.
            age: Its age, as `observation.Resource.age`.
            manages: Whether it changes the stream.

        Raises:
            KubeError: The cluster was never polled, and the API server does not answer.
        """
        if self._places.get(key, cluster) != cluster:
            await self.leave(key)
        self._places[key] = cluster
        found = self._clusters.get(cluster)
        if found is None:
            found = self._clusters[cluster] = Cluster(cluster)
        found.watch(key, stream, age, self._clock.now(), manages=manages)
        if found.looked_s < 0:
            async with found.looking:
                if found.looked_s < 0:
                    await self._look_now(found)
        watch = found.watches.get(key)
        if watch is not None:
            watch.inputs = found.inputs(stream, self._clock.now())
        return found

    async def leave(self, key: Key) -> tuple[Cluster, str] | None:
        """Unregister a resource, and request passes for the other resources of its stream.

        Returns:
            Its cluster and the name of its stream; None for an unknown resource.
        """
        place = self._places.pop(key, None)
        cluster = self._clusters.get(place) if place is not None else None
        if cluster is None or key not in cluster.watches:
            return None
        stream = cluster.watches[key].stream
        for other in cluster.leave(key):
            self._requests.request(other)
        return cluster, stream

    def hasten(self, cluster: Cluster) -> None:
        """Poll soon, after a change."""
        soon = max(HASTENED_SECONDS, cluster.cost_s * _LOAD_SHARE)
        cluster.due_s = min(cluster.due_s, self._clock.now() + soon)

    async def _look(self, cluster: Cluster) -> None:
        async with cluster.looking:
            if not cluster.watches:
                self._clusters.pop(cluster.key, None)
                await _disconnect(cluster)
                return
            with contextlib.suppress(KubeError):
                await self._look_now(cluster)
        now = self._clock.now()
        for key, watch in cluster.watches.items():
            if watch.inputs is not None and watch.inputs != cluster.inputs(watch.stream, now):
                self._requests.request(key)

    async def _look_now(self, cluster: Cluster) -> None:
        """Read the resource and the streams of a cluster; keep old streams if no broker answers.

        Raises:
            KubeError: The API server does not answer; the state stays unchanged.
        """
        began = self._clock.now()
        cluster.due_s = began + INTERVAL_SECONDS
        try:
            body = await self._kube.get(CLUSTERS, cluster.key.namespace, cluster.key.name)
        except (ForbiddenError, NotFoundError) as error:
            is_gone = isinstance(error, NotFoundError)
            cluster.state = ClusterState.MISSING if is_gone else ClusterState.HIDDEN
            cluster.snapshot, cluster.allowed = None, ()
            await _disconnect(cluster)
        else:
            await self._read(cluster, body, began)
        cluster.looked_s = began
        cluster.cost_s = self._clock.now() - began

    async def _read(self, cluster: Cluster, body: Object, began: float) -> None:
        spec: Mapping[str, Any] = body.get("spec", {})
        cluster.state = _state_of(body)
        cluster.allowed = tuple(sorted(spec.get("streams", {}).get("allowedNamespaces", ())))
        uid = body["metadata"]["uid"]
        if cluster.uid != uid:
            cluster.uid, cluster.snapshot = uid, None
            await _disconnect(cluster)
        wanted = body["metadata"].get("generation", 0)
        if cluster.connected != wanted or began - cluster.connected_s >= CONNECTED_SECONDS:
            await _disconnect(cluster)
        try:
            if cluster.brokers is None:
                cluster.brokers = await self._connect(body)
                cluster.connected, cluster.connected_s = wanted, began
            found = await cluster.brokers.streams()
        except (BrokersError, KubeError):
            # The brokers may have other addresses now, or require another certificate.
            await _disconnect(cluster)
            return
        before = cluster.snapshot.streams if cluster.snapshot is not None else {}
        # Unchanged streams keep their old object, so that thousands are held only once.
        streams = {
            name: old if (old := before.get(name)) == stream and old is not None else stream
            for name, stream in found.items()
        }
        cluster.snapshot = Snapshot(streams, began, wall_ms(self._clock))


def wall_ms(clock: Clock) -> int:
    """Return the time of day in Unix milliseconds."""
    return int(clock.wall().timestamp() * 1_000)


def _state_of(body: Object) -> ClusterState:
    if body["metadata"].get("deletionTimestamp"):
        return ClusterState.DELETING
    return ClusterState.PAUSED if body.get("spec", {}).get("paused") else ClusterState.PRESENT


async def _disconnect(cluster: Cluster) -> None:
    brokers, cluster.brokers = cluster.brokers, None
    if brokers is not None:
        await brokers.close()
