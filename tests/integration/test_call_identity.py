"""Identities of calls on a real server: before a service sees a call, and while it runs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc import aio

from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.principals import ANONYMOUS, Principal
from liftbridge_broker.adapters.clock import SystemClock
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.certs import Authority, Certificate
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server, eventually
from liftbridge_testkit.grpc_raw import raw
from liftbridge_testkit.identities import ALL_PROOFS, Guarded, Issuer

OPS = Principal("billing", ("ops",))


class Site(NamedTuple):
    """A server with its authenticator, and the authority of its certificate."""

    echo: EchoServer
    guarded: Guarded
    authority: Authority

    def channel(self, client: Certificate | None = None) -> aio.Channel:
        """Connect, with a certificate if one is given."""
        pair = (None, None) if client is None else (client.key, client.cert)
        key, cert = (None if one is None else one.read_bytes() for one in pair)
        credentials = grpc.ssl_channel_credentials(self.authority.cert.read_bytes(), key, cert)
        return aio.secure_channel(f"localhost:{self.echo.port}", credentials)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """An issuer of today, as certificates are."""
    return Issuer(SystemClock().wall_ns() // SECOND_NS)


@pytest.fixture
async def site(authority: Authority, issuer: Issuer, tmp_path: Path) -> AsyncIterator[Site]:
    server = authority.issue("server")
    files = TlsFiles(certificate=server.cert, key=server.key, client_ca=authority.cert)
    guarded = Guarded(tmp_path, issuer=issuer)
    async with echo_server(tls=ServerTls(files), authenticator=guarded.authenticator) as echo:
        yield Site(echo, guarded, authority)
    guarded.hasher.close()


def with_token(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def ask(channel: aio.Channel, token: str = "", request: bytes = b"x") -> bytes:
    metadata = with_token(token) if token else ()
    answer = raw(channel).unary_unary(SERVICE + "Unary")(request, timeout=10, metadata=metadata)
    return bytes(await answer)


async def refusal(channel: aio.Channel, token: str = "") -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await ask(channel, token)
    trailers = caught.value.trailing_metadata() or ()
    codes = [str(one[1]) for one in trailers if one[0] == "liftbridge-error"]  # type: ignore[index]  # a tuple
    return caught.value.code(), caught.value.details() or "", "".join(codes)


async def test_services_see_who_calls(site: Site) -> None:
    client = site.authority.issue("shop", common_name="shop")
    async with site.channel(client) as channel:
        await ask(channel)
        await ask(channel, site.guarded.issuer.token("ES256", groups=["a"]))
        await ask(channel, site.guarded.add_token())
        await ask(channel)
    assert site.echo.log.principals == [
        Principal("shop"),
        Principal("billing", ("a",)),
        OPS,
        Principal("shop"),
    ]


async def test_call_without_identity_reaches_no_service(site: Site) -> None:
    async with site.channel() as channel:
        code, text, name = await refusal(channel)
        assert (code, name) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert text == "the call has no identity; this port accepts: certificate, jwt, token"
        code, text, _ = await refusal(channel, "lbt_wrong")
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert text == "the API token is mistyped or cut off"
        token = site.guarded.issuer.token("ES256")
        twice = (*with_token(token), *with_token(token))
        call = raw(channel).unary_unary(SERVICE + "Unary")(b"", timeout=10, metadata=twice)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
    assert site.echo.log.opened == []


async def test_health_is_open(site: Site) -> None:
    Health().register(site.echo.server)
    async with site.channel() as channel:
        check = raw(channel).unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=10)


async def test_anonymous_callers_are_let_in_where_that_is_accepted(site: Site) -> None:
    site.guarded.set_options(proofs=(Proof.ANONYMOUS,))
    async with site.channel() as channel:
        await ask(channel)
        await ask(channel, "ignored-as-before")
    assert site.echo.log.principals == [ANONYMOUS, ANONYMOUS]


async def test_messages_wait_for_the_verification_and_keep_their_order(site: Site) -> None:
    token = site.guarded.add_token()
    async with site.channel() as channel:
        call = raw(channel).stream_stream(SERVICE + "Bidi")(timeout=10, metadata=with_token(token))
        sent = [b"%d" % number for number in range(200)]
        for message in sent:
            await call.write(message)
        await call.done_writing()
        assert [bytes(one) async for one in call] == sent


async def test_many_calls_of_one_token_are_verified_once(site: Site) -> None:
    token = site.guarded.add_token()
    async with site.channel() as channel:
        requests = [b"%d" % number for number in range(50)]
        answers = await asyncio.gather(*(ask(channel, token, one) for one in requests))
    assert answers == requests
    assert site.guarded.authenticator.counts == {("token", "accepted"): 1}


async def test_call_may_end_before_its_identity_is_known(site: Site) -> None:
    token = site.guarded.add_token()
    async with site.channel() as channel:
        call = raw(channel).stream_stream(SERVICE + "Hang")(metadata=with_token(token))
        await eventually(lambda: bool(site.guarded.authenticator._waiters))
        call.cancel()
        await eventually(lambda: site.echo.server.stats.streams_open == 0)
        await eventually(lambda: not site.guarded.authenticator._waiters)
        assert await ask(channel, token) == b"x"
    assert site.echo.log.opened == [SERVICE + "Unary"]


def steps_that_set(event: asyncio.Event) -> Iterator[None]:
    event.set()
    yield


async def hanging(
    site: Site, channel: aio.Channel, token: str = ""
) -> "aio.StreamStreamCall[bytes, bytes]":
    """A streaming call that a service has."""
    metadata = with_token(token) if token else ()
    call: aio.StreamStreamCall[bytes, bytes] = raw(channel).stream_stream(SERVICE + "Hang")(
        metadata=metadata
    )
    await eventually(lambda: bool(site.echo.log.hanging))
    return call


async def test_revoked_token_ends_running_calls_within_two_seconds(site: Site) -> None:
    token = site.guarded.add_token()
    async with site.channel() as channel:
        call = await hanging(site, channel, token)
        site.guarded.tokens.clear()
        async with asyncio.timeout(2):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await call.details() == "the token was revoked"
        code, text, _ = await refusal(channel, token)
        assert (code, text) == (
            grpc.StatusCode.UNAUTHENTICATED,
            "the API token was revoked, or never existed",
        )


async def test_expired_web_token_ends_running_calls(site: Site) -> None:
    token = site.guarded.issuer.token("ES256", exp=site.guarded.issuer.now + 60)
    other = site.guarded.issuer.token("ES256", exp=site.guarded.issuer.now + 600)
    async with site.channel() as channel:
        call = await hanging(site, channel, token)
        stays = raw(channel).stream_stream(SERVICE + "Bidi")(metadata=with_token(other))
        await stays.write(b"1")
        assert await stays.read() == b"1"
        site.guarded.clock.seconds += 66
        async with asyncio.timeout(3):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await call.details() == "the jwt has expired"
        await stays.write(b"2")
        assert await stays.read() == b"2"
        stays.cancel()


async def test_expired_certificate_ends_calls_and_the_client_connects_again(site: Site) -> None:
    client = site.authority.issue("brief", common_name="brief")
    async with site.channel(client) as channel:
        call = await hanging(site, channel)
        site.guarded.clock.seconds += 400 * 86_400
        code, text, _ = await refusal(channel)
        assert (code, text) == (grpc.StatusCode.UNAUTHENTICATED, "the certificate has expired")
        async with asyncio.timeout(3):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        # The real clock is behind: the handshake of a new connection still accepts it.
        await eventually(lambda: site.echo.server.stats.connections_open == 0)
        site.guarded.clock.seconds -= 400 * 86_400
        assert await ask(channel) == b"x"
    assert site.echo.server.stats.connections_total == 2


async def test_new_rules_name_open_connections_anew(site: Site) -> None:
    client = site.authority.issue("shop", common_name="shop")
    async with site.channel(client) as channel:
        await ask(channel)
        site.guarded.set_options(proofs=(Proof.ANONYMOUS,))
        await ask(channel)
        site.guarded.set_options(proofs=ALL_PROOFS)
        await ask(channel)
    assert site.echo.log.principals == [Principal("shop"), ANONYMOUS, Principal("shop")]


async def test_unary_call_in_progress_is_not_cut_off(site: Site) -> None:
    """Whether it did its work would be unknown to its client."""
    token = site.guarded.add_token()
    async with site.channel() as channel:
        await hanging(site, channel, token)
        site.echo.server._unary_methods.add(SERVICE + "Hang")
        site.guarded.tokens.clear()
        (call,) = site.echo.log.hanging
        looked = asyncio.Event()
        # Comes after the connections that were there before.
        site.echo.server.outlived.watch(looked, partial(steps_that_set, looked))
        await looked.wait()
        assert call.is_open
