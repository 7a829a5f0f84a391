"""Tokens from end to end: a real broker, real clients, and a token that is revoked at work."""

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

from liftbridge_broker.adapters.clock import SystemClock
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_client import Start, TlsFiles, Token, connect, connect_admin
from liftbridge_client.errors import UnauthenticatedError
from liftbridge_testkit.at_work import now_s, work
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.identities import AUDIENCE, ISSUER, Issuer
from liftbridge_testkit.processes import Broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer(SystemClock().wall_ns() // SECOND_NS)


@pytest.fixture(scope="module")
def broker(
    authority: Authority, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("identity")
    issuer.write_set(folder / "keys.json")
    server = authority.issue("server")
    config = {
        "tls.cert": str(server.cert),
        "tls.key": str(server.key),
        "auth.methods": "jwt,token",
        "auth.jwt.keys.file": str(folder / "keys.json"),
        "auth.jwt.issuer": ISSUER,
        "auth.jwt.audience": AUDIENCE,
    }
    started = Broker(folder, config=config)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", started.port)) == 0

    try:
        started.spawn()
        started.wait_until(listens, "listening")
        yield started
    finally:
        started.kill()


async def test_api_token_lives_until_it_is_revoked(broker: Broker, authority: Authority) -> None:
    tls = TlsFiles(ca=authority.cert)
    async with connect_admin(broker.admin_address) as admin:
        others = {token.id async for token in admin.tokens.list()}
        made = await admin.tokens.create("billing", groups=["ops"], lifetime=timedelta(hours=1))
        assert {token.id async for token in admin.tokens.list()} == {made.token.id, *others}
        token = Token(value=made.secret)
        async with connect(broker.address, tls=tls, token=token) as lb:
            caller = await lb.who_am_i()
            assert caller[4:7] == ("billing", ("ops",), "token")
            assert caller.expires == made.token.expires
            stream = await lb.streams.create("orders")
            await stream.publish(b"one")
            messages = aiter(stream.subscribe(start=Start.earliest()))
            assert (await anext(messages)).value == b"one"
            await admin.tokens.revoke(made.token.id)
            with pytest.raises(UnauthenticatedError, match="revoked, or never existed"):
                async with asyncio.timeout(4):
                    await anext(messages)
            with pytest.raises(UnauthenticatedError):
                await lb.who_am_i()
        assert made.token.id not in {token.id async for token in admin.tokens.list()}
    assert made.secret not in broker.log_text()


async def test_token_ends_at_work_and_no_call_fails(broker, authority, tmp_path) -> None:
    path, tls = tmp_path / "token", TlsFiles(ca=authority.cert)
    async with connect_admin(broker.admin_address) as admin:
        former, made = [await admin.tokens.create("billing") for _ in range(2)]
        path.write_text(former.secret)
        async with connect(broker.address, tls=tls, token=Token(file=path)) as lb:
            assert (await lb.who_am_i()).principal == "billing"

            async def change() -> int:
                path.write_text(made.secret)
                await admin.tokens.revoke(former.token.id, after=timedelta(seconds=2))
                return now_s() + 5

            await work(lb, await lb.streams.create("lasting"), change)
            assert lb.stats.retries > 0
        await admin.tokens.revoke(made.token.id)


async def test_web_token_from_a_file(broker: Broker, authority, issuer, tmp_path) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.token("RS256", kid="RS256-1", sub="system:serviceaccount:shop:pay"))
    async with connect(
        broker.address, tls=TlsFiles(ca=authority.cert), token=Token(file=path)
    ) as lb:
        caller = await lb.who_am_i()
        assert (caller.principal, caller.proof) == ("system:serviceaccount:shop:pay", "jwt")
        path.write_text(issuer.token("EdDSA", sub="next"))
        assert (await lb.who_am_i()).principal == "next"
    assert path.read_text() not in broker.log_text()


async def test_client_without_a_token_is_refused(broker: Broker, authority: Authority) -> None:
    with pytest.raises(UnauthenticatedError, match="this port accepts: jwt, token") as refusal:
        async with connect(broker.address, tls=TlsFiles(ca=authority.cert)):
            raise AssertionError("connected")
    assert not refusal.value.may_be_done
