"""Access control of a real broker: certificates as names, rules that change, policy files."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

from liftbridge_client import (
    Client,
    PermissionDeniedError,
    RefusedError,
    Start,
    TlsFiles,
    connect,
    connect_admin,
)
from liftbridge_client.access_model import AccessRule, resource_of
from liftbridge_testkit.certs import Authority, Certificate
from liftbridge_testkit.processes import Broker, free_port

NAMES: Final = ("root", "alice", "bob")
MODEL: Final = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""


class Secured:
    """A broker that names its clients, on a port with TLS; the plain one is for probes."""

    def __init__(self, folder: Path, authority: Authority, settings: Mapping[str, object]) -> None:
        self.authority = authority
        self.certificates: dict[str, Certificate] = {name: authority.issue(name) for name in NAMES}
        server = authority.issue("server")
        self.port = free_port()
        self.broker = Broker(
            folder,
            config={
                "tls.cert": str(server.cert),
                "tls.key": str(server.key),
                "tls.client.auth.enabled": True,
                "tls.client.auth.ca": str(authority.cert),
                "listen.tls": False,
                "listeners": f"secure=127.0.0.1:{self.port}",
                **settings,
            },
        )

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        """A client with the certificate of a name; without a name, one on the plain port."""
        address, tls = self.broker.address, None
        if name:
            mine = self.certificates[name]
            address = f"localhost:{self.port}"
            tls = TlsFiles(ca=self.authority.cert, cert=mine.cert, key=mine.key)
        async with connect(address, tls=tls) as client:
            yield client


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Secured]:
    settings = {
        "access.enabled": True,
        "access.super.users": "root",
        "cursors.stream.partitions": 1,
    }
    found = Secured(tmp_path_factory.mktemp("access"), authority, settings)
    with found.broker:
        yield found


async def test_rules_take_effect_while_clients_are_connected(secured: Secured) -> None:
    begin = len(secured.broker.log_text())
    async with (
        connect_admin(secured.broker.admin_address) as admin,
        secured.client("root") as root,
    ):
        orders = await root.streams.create("orders")
        await orders.publish(b"one")
        for name in ("alice", ""):
            with pytest.raises(PermissionDeniedError, match="call FetchMetadata on resource"):
                async with secured.client(name):
                    pass
        reads = AccessRule("alice", resource_of("stream:orders"), ["read"])
        await admin.access.change(granted=[reads])
        assert (await admin.access.check("alice", "read", resource_of("stream:orders"))).is_allowed
        async with secured.client("alice") as alice:
            assert list((await alice.metadata()).streams) == ["orders"]
            with pytest.raises(PermissionDeniedError) as refused:
                await alice.streams.get("orders").publish(b"two")
            assert "call Publish on resource orders" in str(refused.value)
            assert not refused.value.may_be_done
            with pytest.raises(PermissionDeniedError):
                await alice.streams.create("other")
            reading = alice.streams.get("orders").subscribe(start=Start.earliest())
            assert (await anext(aiter(reading))).value == b"one"
            await admin.access.change(revoked=[reads])
            began = monotonic()
            with pytest.raises(PermissionDeniedError, match="on resource orders"):
                await anext(aiter(reading))
            assert monotonic() - began < 2
        found = await admin.access.rules()
        assert found.is_on
        assert {rule.principal for rule in found.rules} == {"root"}
    assert secured.broker.metric("liftbridge_access_denied_total") >= 4
    assert secured.broker.metric("liftbridge_access_enforced") == 1
    log = secured.broker.log_text()[begin:]
    assert "access_rules_changed" in log
    assert "access_denied" in log
    audited = [line for line in log.splitlines() if " audit " in line]
    made, denied = (
        [line for line in audited if all(part in line for part in parts)]
        for parts in (
            ("ChangeRules", "listener=admin", "outcome=OK", "revoked { principal: 'alice'"),
            ("CreateStream", "listener=secure", "outcome=PERMISSION_DENIED", "principal=alice"),
        )
    )
    assert (len(made), len(denied)) == (1, 1)


async def test_members_of_groups_need_rules_and_stop_without_them(secured: Secured) -> None:
    async with (
        connect_admin(secured.broker.admin_address) as admin,
        secured.client("root") as root,
    ):
        returns = await root.streams.create("returns")
        await returns.publish(b"one")
        reads = AccessRule("alice", resource_of("stream:returns"), ["read"])
        joins = AccessRule("alice", resource_of("group:billing"), ["join"])
        finds = AccessRule("alice", resource_of("stream:__cursors"), ["describe"])
        looks = AccessRule("alice", resource_of("cursor:returns/__group:billing"), ["read"])
        await admin.access.change(granted=[reads])
        async with secured.client("alice") as alice:
            with pytest.raises(PermissionDeniedError, match="call Heartbeat on resource billing"):
                async with alice.consumers.join("billing", ["returns"]):
                    pass
            await admin.access.change(granted=[joins, looks])
            async with alice.consumers.join("billing", ["returns"]) as consumer:
                with pytest.raises(RefusedError, match="knows no stream __cursors") as refused:
                    await anext(consumer)
            assert "describe the stream __cursors" in refused.value.advice
            await admin.access.change(granted=[finds])
            async with alice.consumers.join("billing", ["returns"]) as consumer:
                assert [message.value for message in await anext(consumer)] == [b"one"]
                await admin.access.change(revoked=[reads])
                with pytest.raises(PermissionDeniedError, match="on resource returns"):
                    await anext(consumer)
        await admin.access.change(revoked=[joins, looks, finds])


async def test_a_policy_of_the_original_is_read_again_at_sighup(
    tmp_path: Path, authority: Authority
) -> None:
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    policy.write_text("p, alice, *, FetchMetadata\np, alice, orders, CreateStream\n")
    settings = {
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model),
        "tls.client.authz.policy": str(policy),
    }
    secured = Secured(tmp_path, authority, settings)
    with secured.broker as broker:
        async with secured.client("alice") as alice:
            orders = await alice.streams.create("orders")
            with pytest.raises(PermissionDeniedError):
                await orders.publish(b"one")
            policy.write_text(policy.read_text() + "p, alice, orders, Publish\n")
            broker.signal(signal.SIGHUP)
            await _until(broker, "configuration_reloaded")
            assert (await orders.publish(b"one")).offset == 0
            with pytest.raises(PermissionDeniedError):
                async with secured.client("bob"):
                    pass
            policy.write_text("p, alice, orders, Fly\n")
            broker.signal(signal.SIGHUP)
            await _until(broker, "must be one of CreateStream")
            assert (await orders.publish(b"two")).offset == 1


async def _until(broker: Broker, text: str) -> None:
    """Wait until the log has a text."""
    await asyncio.to_thread(broker.wait_until, lambda: text in broker.log_text(), text)
