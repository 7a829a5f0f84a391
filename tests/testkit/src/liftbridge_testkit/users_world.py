"""The user reconciler between an API server and brokers, both in memory.

world = UserWorld()
world.cluster()
world.user(access=[{"resource": "Stream", "name": "orders", "operations": ["Publish"]}])
await world.settle()
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from liftbridge_operator.cluster.certificates.port import Pair
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS, SECRETS, USERS
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import wall_ms
from liftbridge_operator.users.clusters import Clusters
from liftbridge_operator.users.marks import CONFIRM_DELETE
from liftbridge_operator.users.port import UserBrokers
from liftbridge_operator.users.reconciler import UserReconciler
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.streams_memory import HeardEvents, ManualClock, OpenFence, SeenBoard
from liftbridge_testkit.users_memory import MemoryUsers

PASSES_MAX: Final = 40


class UserWorld:
    """The user part of an operator, with its surroundings.

    Attributes:
        brokers: The brokers in memory.
        authority: CA for clients of the cluster that was created last.
        real: Connects to other brokers instead; their time is that of the machine.
    """

    def __init__(self, real: Callable[[], UserBrokers] | None = None) -> None:
        """Create a world without clusters."""
        self.kube, self.clock = MemoryKube(), ManualClock()
        self.wall = self.clock if real is None else SystemClock()
        self.real = real
        self.brokers = MemoryUsers(self.now_s)
        self.events, self.fence, self.board = HeardEvents(), OpenFence(), SeenBoard()
        self.issuer = CryptographyIssuer()
        self.asked: set[Key] = set()
        self.due: dict[Key, float] = {}
        self.connected = 0
        self.kube.on_change = self._changed
        for name in ("shop", "elsewhere"):
            self.kube.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.restart()

    def now_s(self) -> int:
        """Return the time in Unix seconds."""
        return wall_ms(self.wall) // 1_000

    def restart(self) -> None:
        """Start the operator again: it knows only what API server and brokers know."""

        async def connect(body: Object) -> UserBrokers:
            assert body["kind"] == "LiftbridgeCluster"
            self.connected += 1
            return self.brokers if self.real is None else self.real()

        clusters = Clusters(self.kube, connect, self.issuer.describe, self.wall, ())
        self.reconciler = UserReconciler(
            self.kube,
            clusters,
            self.issuer,
            self.events,
            self.wall,
            fence=self.fence,
            board=self.board,
        )
        self.asked = {
            Key(USERS, body["metadata"]["namespace"], body["metadata"]["name"])
            for body in self.kube.all_of(USERS)
        }
        self.due.clear()

    def _changed(self, _event: str, body: Object) -> None:
        if body["kind"] == "LiftbridgeUser":
            metadata = body["metadata"]
            self.asked.add(Key(USERS, metadata["namespace"], metadata["name"]))

    # -- as a user ------------------------------------------------------------------------------

    def cluster(self, *, authority: int = 1, **spec: Any) -> Object:
        """Create the cluster `c` with a CA for clients, and return it.

        Args:
            authority: Number of the CA; another number is another CA.
            spec: Further fields of its specification.
        """
        made = self.issuer.make_authority(
            f"ca-{authority}", not_before_s=self.now_s() - 300, not_after_s=self.now_s() + 10**9
        )
        self.authority = made
        self.secret("c-ca", {names.CA_KEY: made.cert, names.AUTHORITY_KEY: made.key})
        self.secret("c-tls", {names.CA_KEY: made.cert})
        given = {
            "version": "0.1.0",
            "nats": {"embedded": {}},
            "storage": {"data": {"size": "1Gi"}},
            "tls": {"mode": "Generated", "clientAuth": "Optional"},
            "access": {
                "tokens": True,
                "jwt": {
                    "issuer": "i",
                    "audience": "a",
                    "keys": {"configMapKeyRef": {"name": "k", "key": "k"}},
                },
            },
            "listeners": [{"name": "plain"}, {"name": "tls", "port": 9393, "tls": True}],
            **spec,
        }
        return self.kube.put(
            {
                "apiVersion": CLUSTERS.api_version,
                "kind": CLUSTERS.kind,
                "metadata": {"name": "c", "namespace": "shop"},
                "spec": given,
            }
        )

    def secret(self, name: str, files: dict[str, bytes], namespace: str = "shop") -> Object:
        """Create or replace a Secret that no user owns, and return it."""
        return self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "data": {key: b64encode(text).decode() for key, text in files.items()},
            }
        )

    def user(self, name: str = "billing", namespace: str = "shop", **spec: Any) -> Object:
        """Create a user of the cluster `c` with a token, and return it."""
        given = {
            "clusterRef": {"name": "c", "namespace": "shop"},
            "authentication": {"token": {"lifetime": "2160h"}},
            **spec,
        }
        return self.kube.put(
            {
                "apiVersion": USERS.api_version,
                "kind": USERS.kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": given,
            }
        )

    async def delete(self, name: str = "billing", namespace: str = "shop") -> None:
        """Delete a user."""
        body = await self.body(name, namespace)
        await self.kube.delete(USERS, namespace, name, preconditions=Preconditions.of(body))

    def change(self, name: str = "billing", **spec: Any) -> None:
        """Change fields of the specification of a user; None removes one."""

        def edit(body: Object) -> None:
            given = {**body["spec"], **spec}
            body["spec"] = {key: value for key, value in given.items() if value is not None}
            body["metadata"]["generation"] += 1

        self.kube.edit(USERS, "shop", name, edit)

    def confirm(self, value: str, name: str = "billing") -> None:
        """Give up the deletion of a user."""

        def annotate(body: Object) -> None:
            body["metadata"]["annotations"] = {CONFIRM_DELETE: value}

        self.kube.edit(USERS, "shop", name, annotate)

    # -- time -----------------------------------------------------------------------------------

    async def settle(self, seconds: float = 0.0) -> None:
        """Advance the time, and run all passes that are due by then."""
        ends = self.clock.now() + seconds
        while True:
            await self.run()
            coming = min(self.due.values(), default=ends)
            if coming > ends:
                break
            self.clock.seconds = max(coming, self.clock.seconds)
            self.asked |= {key for key, due in self.due.items() if due <= self.clock.now()}
            if not self.asked:
                break
        self.clock.seconds = ends

    async def run(self) -> None:
        """Run requested passes, and those that follow them at once."""
        for _ in range(PASSES_MAX):
            keys, self.asked = sorted(self.asked, key=str), set()
            if not keys:
                return
            for key in keys:
                self.due.pop(key, None)
                again = await self.reconciler.reconcile(key)
                if again is not None and again.seconds == 0:
                    self.asked.add(key)
                elif again is not None:
                    self.due[key] = self.wall.now() + again.seconds
        raise AssertionError("passes follow passes without an end")

    # -- what is there --------------------------------------------------------------------------

    async def body(self, name: str = "billing", namespace: str = "shop") -> Object:
        """Return a user as stored."""
        return await self.kube.get(USERS, namespace, name)

    async def condition(self, kind: str = "Ready", name: str = "billing") -> tuple[str, str]:
        """Return reason and message of a condition; empty for none."""
        body = await self.body(name)
        found = [one for one in body["status"]["conditions"] if one["type"] == kind]
        return (found[0]["reason"], found[0]["message"]) if found else ("", "")

    async def reason(self, kind: str = "Ready", name: str = "billing") -> str:
        """Return the reason of a condition; empty for none."""
        return (await self.condition(kind, name))[0]

    async def files(self, name: str = "billing", namespace: str = "shop") -> dict[str, bytes]:
        """Return the files of a Secret; none for no Secret."""
        try:
            body = await self.kube.get(SECRETS, namespace, name)
        except NotFoundError:
            return {}
        return {key: b64decode(text) for key, text in body["data"].items()}

    async def token(self, name: str = "billing") -> str:
        """Return the public part of the token in a Secret; empty for none."""
        return (await self.files(name)).get("token", b"").decode()[4:16]

    async def pair(self, name: str = "billing") -> Pair:
        """Return the certificate in a Secret."""
        files = await self.files(name)
        return Pair(files[names.CERT_KEY], files[names.KEY_KEY])
