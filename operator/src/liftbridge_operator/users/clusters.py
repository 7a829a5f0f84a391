"""The clusters of users: one look at a cluster serves the passes of all its users for a while.

A pass that follows a change looks again. Which users exist is read once, so that two of one
principal are noticed whatever the order of their first passes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import ForbiddenError, KubeError, NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS, SECRETS, USERS
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import ClusterKey, wall_ms
from liftbridge_operator.streams.observation import ClusterState, SeenCluster
from liftbridge_operator.streams.port import BrokersError
from liftbridge_operator.users.observation import Snapshot
from liftbridge_operator.users.offers import cluster_spec_of, issues_certificates
from liftbridge_operator.users.port import UserBrokers
from liftbridge_operator.users.resources import cluster_of, principal_of
from liftbridge_operator.users.secrets import files_of

FRESH_SECONDS: Final = 5.0
"""Age up to which a look serves further passes."""
HEARD_SECONDS: Final = 30.0
"""Age up to which an answer of the brokers is used."""
CONNECTED_SECONDS: Final = 300.0
"""Age at which connections are reopened, with the present certificates and brokers."""
CHANGES_MAX: Final = 8
"""Maximum number of concurrent changes in one cluster."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A user that exists."""

    cluster: ClusterKey
    principal: str
    age: tuple[str, str]


@dataclass(slots=True, eq=False)
class Cluster:
    """Observed state of a cluster.

    Attributes:
        key: The LiftbridgeCluster.
        brokers: Connections to the brokers; None while not connected.
        snapshot: What brokers answered last; None before.
        spec: Its specification; None if it cannot be read.
        ca: Authorities that its clients trust, PEM.
        authority: Authority that signs certificates of its users; None for none.
        state: State of the resource.
        allowed: Namespaces of users that it admits besides its own.
        uid: UID of the resource.
        connected, connected_s: Generation for which connections were opened, and when.
        looked_s: Time of the last look.
        heard_s, heard_ms: Time of the last look that brokers answered, and time of day.
        room: Semaphore that bounds concurrent changes.
    """

    key: ClusterKey
    brokers: UserBrokers | None = None
    snapshot: Snapshot | None = None
    spec: ClusterSpec | None = None
    ca: bytes = b""
    authority: Known | None = None
    state: ClusterState = ClusterState.MISSING
    allowed: tuple[str, ...] = ()
    uid: str = ""
    connected: int = 0
    connected_s: float = 0.0
    looked_s: float = float("-inf")
    heard_s: float = float("-inf")
    heard_ms: int = 0
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHANGES_MAX))
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def seen(self, namespace: str, now_s: float) -> SeenCluster:
        """Return the state of the cluster for users of a namespace."""
        is_allowed = (
            namespace == self.key.namespace or "*" in self.allowed or namespace in self.allowed
        )
        return SeenCluster(
            f"{self.key.namespace}/{self.key.name}",
            self.state,
            is_allowed,
            moment_text(self.heard_ms) if self.snapshot is not None else "",
            self.snapshot is not None and now_s - self.heard_s < HEARD_SECONDS,
        )


class Clusters:
    """All clusters that have users, and the users by their principals.

    Args:
        kube: The API server.
        connect: Connects to the brokers of the cluster resource that it is given.
        describe: Parses certificates; see `Issuer.describe`.
        clock: Time.
        namespaces: Namespaces of the users; all when empty.
    """

    def __init__(
        self,
        kube: Kube,
        connect: Callable[[Object], Awaitable[UserBrokers]],
        describe: Callable[[bytes], tuple[Known, ...]],
        clock: Clock,
        namespaces: tuple[str, ...],
    ) -> None:
        self._kube = kube
        self._connect = connect
        self._describe = describe
        self._clock = clock
        self._namespaces = namespaces
        self._clusters: dict[ClusterKey, Cluster] = {}
        self._users: dict[Key, _Known] = {}
        self._listing = asyncio.Lock()
        self._is_listed = False

    async def close(self) -> None:
        """Close the connections to all brokers."""
        clusters, self._clusters = list(self._clusters.values()), {}
        for cluster in clusters:
            await _disconnect(cluster)

    # -- users --------------------------------------------------------------------------------

    async def enter(self, key: Key, body: Object) -> Cluster:
        """Register a user, and return its cluster.

        Raises:
            KubeError: This is the first user, and the others cannot be listed.
        """
        async with self._listing:
            if not self._is_listed:
                for namespace in self._namespaces or ("",):
                    for one in (await self._kube.list_all(USERS, namespace)).items:
                        metadata = one["metadata"]
                        self._register(Key(USERS, metadata["namespace"], metadata["name"]), one)
                self._is_listed = True
        self._register(key, body)
        ref = self._users[key].cluster
        return self._clusters.setdefault(ref, Cluster(ref))

    def _register(self, key: Key, body: Object) -> None:
        metadata: Mapping[str, Any] = body["metadata"]
        age = metadata.get("creationTimestamp", ""), metadata["uid"]
        self._users[key] = _Known(cluster_of(body), principal_of(body), age)

    async def leave(self, key: Key) -> None:
        """Forget a user; a cluster without users is disconnected."""
        known = self._users.pop(key, None)
        if known is None or any(one.cluster == known.cluster for one in self._users.values()):
            return
        cluster = self._clusters.pop(known.cluster, None)
        if cluster is not None:
            await _disconnect(cluster)

    def older(self, key: Key, cluster: Cluster) -> str:
        """Return the oldest user that has the principal of another one; empty for none."""
        mine, now = self._users[key], self._clock.now()
        others = [
            (known.age, f"{one.namespace}/{one.name}")
            for one, known in self._users.items()
            if (known.cluster, known.principal) == (mine.cluster, mine.principal)
            and known.age < mine.age
            and cluster.seen(one.namespace, now).is_allowed
        ]
        return min(others)[1] if others else ""

    # -- looks --------------------------------------------------------------------------------

    async def look(self, cluster: Cluster, after_s: float) -> None:
        """Read a cluster, unless that was done a moment ago.

        Args:
            cluster: The cluster.
            after_s: Time that the look must follow, by the clock.

        Raises:
            KubeError: The API server does not answer.
        """
        async with cluster.looking:
            now = self._clock.now()
            if cluster.looked_s > after_s and now - cluster.looked_s < FRESH_SECONDS:
                return
            try:
                body = await self._kube.get(CLUSTERS, cluster.key.namespace, cluster.key.name)
            except (ForbiddenError, NotFoundError) as error:
                is_gone = isinstance(error, NotFoundError)
                cluster.state = ClusterState.MISSING if is_gone else ClusterState.HIDDEN
                cluster.snapshot, cluster.spec, cluster.allowed = None, None, ()
                await _disconnect(cluster)
            else:
                await self._read(cluster, body, now)
            cluster.looked_s = now

    async def _read(self, cluster: Cluster, body: Object, now: float) -> None:
        metadata: Mapping[str, Any] = body["metadata"]
        given: Mapping[str, Any] = body.get("spec", {})
        cluster.state = ClusterState.PAUSED if given.get("paused") else ClusterState.PRESENT
        if metadata.get("deletionTimestamp"):
            cluster.state = ClusterState.DELETING
        cluster.allowed = tuple((given.get("access") or {}).get("allowedNamespaces", ()))
        cluster.spec = cluster_spec_of(body)
        if cluster.uid != metadata["uid"]:
            cluster.uid, cluster.snapshot = metadata["uid"], None
            await _disconnect(cluster)
        wanted = metadata.get("generation", 0)
        if cluster.connected != wanted or now - cluster.connected_s >= CONNECTED_SECONDS:
            await _disconnect(cluster)
        await self._read_certificates(cluster)
        try:
            if cluster.brokers is None:
                cluster.brokers = await self._connect(body)
                cluster.connected, cluster.connected_s = wanted, now
            cluster.snapshot = await cluster.brokers.look()
        except (BrokersError, KubeError):
            # The brokers may have other addresses now, or require another certificate.
            await _disconnect(cluster)
            return
        cluster.heard_s, cluster.heard_ms = now, wall_ms(self._clock)

    async def _read_certificates(self, cluster: Cluster) -> None:
        """Read the authorities of a cluster; its signing key is read only where it is used."""
        cluster.ca, cluster.authority = b"", None
        spec, place = cluster.spec, cluster.key
        if spec is None:
            return
        leaf = await self._files(place, spec.tls.secret_name or names.leaf(place.name))
        cluster.ca = leaf.get(names.CA_KEY, b"")
        if issues_certificates(spec.tls):
            signer = await self._files(place, names.authority(place.name))
            try:
                cluster.authority = next(iter(self._describe(signer.get(names.CA_KEY, b""))), None)
            except ValueError:
                return

    async def _files(self, place: ClusterKey, name: str) -> dict[str, bytes]:
        try:
            return files_of(await self._kube.get(SECRETS, place.namespace, name))
        except NotFoundError:
            return {}


async def _disconnect(cluster: Cluster) -> None:
    brokers, cluster.brokers = cluster.brokers, None
    if brokers is not None:
        await brokers.close()
