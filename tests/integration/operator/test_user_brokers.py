"""Users of Kubernetes at a real broker: what a Secret opens, a rotation at work, and the end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from liftbridge_client import (
    Client,
    Message,
    PermissionDeniedError,
    Start,
    TlsFiles,
    Token,
    connect,
)
from liftbridge_client.errors import UnauthenticatedError
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.model.user import OPERATIONS, Effect, Operation, ResourceKind
from liftbridge_operator.streams.port import RefusedError
from liftbridge_operator.users.grpc_users import GrpcUsers
from liftbridge_operator.users.observation import Limits
from liftbridge_operator.users.rules import RuleKey
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.processes import Broker, free_port
from liftbridge_testkit.users_world import UserWorld

END_SECONDS = 5.0
ACCESS = [
    {"resource": "Stream", "name": "orders*", "operations": ["Create", "Publish", "Read"]},
    {"resource": "Subject", "name": "orders.>", "operations": ["Attach"]},
    {"resource": "Subject", "name": "orders", "operations": ["Attach"]},
]


class Cluster:
    """A broker that checks access, and a world whose operator manages its users."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        authority = Authority(folder)
        server = authority.issue("server")
        self.world = UserWorld(self._connected)
        self.world.cluster()
        self.world.secret("c-tls", {"ca.crt": authority.cert.read_bytes()})
        (folder / "clients.pem").write_bytes(self.world.authority.cert)
        self.broker = Broker(
            folder,
            config={
                "tls.cert": str(server.cert),
                "tls.key": str(server.key),
                "tls.client.auth.ca": str(folder / "clients.pem"),
                "listen.tls": False,
                "listeners": f"secure=127.0.0.1:{self.port}",
                "auth.methods": "certificate,token,anonymous",
                "access.enabled": True,
                "access.super.users": "root",
            },
        )

    def _connected(self) -> GrpcUsers:
        return GrpcUsers([Endpoint("c-0", self.broker.admin_address)])

    async def written(self, name: str) -> Path:
        """Write the files of a Secret into a folder, as a kubelet does."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for key, text in (await self.world.files(name)).items():
            (folder / key).write_bytes(text)
        return folder

    async def client(self, name: str) -> Client:
        """Return a client with nothing but what is in a Secret."""
        folder = await self.written(name)
        cert, key, token = (folder / one for one in ("tls.crt", "tls.key", "token"))
        tls = TlsFiles(ca=folder / "ca.crt")
        if cert.exists():
            tls = TlsFiles(ca=folder / "ca.crt", cert=cert, key=key)
        given = Token(file=token) if token.exists() else None
        return connect(f"localhost:{self.port}", tls=tls, token=given)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("users"))
    with found.broker:
        yield found


async def exhausted(messages: AsyncIterator[Message]) -> None:
    """Read messages until their call is ended, which takes less than `END_SECONDS`."""
    async with asyncio.timeout(END_SECONDS):
        while True:
            await anext(messages)


async def test_secret_opens_what_the_user_may_do_and_nothing_else(cluster: Cluster) -> None:
    world = cluster.world
    world.user("shop", authentication={"certificate": {}}, access=ACCESS)
    world.user(access=ACCESS[:1], quotas={"publishMessages": 5_000})
    await world.run()
    assert [await world.reason(name=name) for name in ("shop", "billing")] == ["Reconciled"] * 2
    assert await world.reason("Enforced") == "RulesApply"
    async with await cluster.client("shop") as shop, await cluster.client("billing") as billing:
        assert (await shop.who_am_i()).principal == "shop"
        orders = await shop.streams.create("orders")
        assert (await orders.publish(b"one")).offset == 0
        assert (await billing.who_am_i()).principal == "billing"
        stream = billing.streams.get("orders")
        assert (await stream.publish(b"two")).offset == 1
        with pytest.raises(PermissionDeniedError):
            await shop.streams.create("events")
        with pytest.raises(PermissionDeniedError):
            await billing.streams.create("orders.other")
        # A new token is written; the client with the former one goes on without a failure.
        former = await world.token()
        world.change(authentication={"token": {"lifetime": "24h"}})
        await world.run()
        assert await world.token() != former
        assert (await stream.publish(b"three")).offset == 2
        await cluster.written("billing")
        assert (await stream.publish(b"four")).offset == 3
        # The end of the resource is that of its calls.
        messages = aiter(stream.subscribe(start=Start.earliest()))
        assert [(await anext(messages)).value for _ in range(4)] == [
            b"one",
            b"two",
            b"three",
            b"four",
        ]
        await world.delete()
        await world.run()
        with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
            await exhausted(messages)
        with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
            await stream.publish(b"no")
        reading = aiter(shop.streams.get("orders").subscribe(start=Start.earliest()))
        await anext(reading)
        await world.delete("shop")
        await world.run()
        with pytest.raises(PermissionDeniedError):
            await exhausted(reading)
    left = await cluster._connected().look()
    assert not {"shop", "billing"} & {*left.rules, *left.quotas}
    assert left.tokens == ()


async def test_every_kind_of_rule_is_as_the_broker_gives_it_back(cluster: Cluster) -> None:
    brokers = GrpcUsers([Endpoint("c-0", cluster.broker.admin_address)])
    names = {
        ResourceKind.STREAM: ("orders", "orders*", "a.*.b"),
        ResourceKind.SUBJECT: ("orders", "a.*", "a.>"),
        ResourceKind.GROUP: ("g", "g*"),
        ResourceKind.CURSOR: ("orders/c", "orders/*"),
        ResourceKind.CLUSTER: ("cluster",),
    }
    rules = {
        RuleKey(kind, name, effect): frozenset(operations)
        for kind, found in names.items()
        for name in found
        for effect in Effect
        for operations in [(*OPERATIONS[kind], Operation.ALL)]
    }
    await brokers.change_rules("every", granted=rules, revoked={})
    assert (await brokers.look()).rules["every"] == rules
    await brokers.change_rules("every", granted={}, revoked=rules)
    assert "every" not in (await brokers.look()).rules
    wrong = {RuleKey(ResourceKind.STREAM, "a..b", Effect.ALLOW): frozenset([Operation.READ])}
    with pytest.raises(RefusedError, match="empty token"):
        await brokers.change_rules("every", granted=wrong, revoked={}, is_dry_run=True)
    limits = Limits(*range(1, 7))
    await brokers.set_quota("every", limits)
    assert (await brokers.look()).quotas["every"] == limits
    await brokers.set_quota("every", Limits())
    assert "every" not in (await brokers.look()).quotas
    await brokers.close()
