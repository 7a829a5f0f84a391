"""Every method of every service, called with every kind of proof in every condition, over TLS.

Methods come from the descriptors of the services: a new one is called here without a further line.
What rules let exactly one call through is `tests/unit/api/test_access.py`; here all of the broker's
server is between caller and rules.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import pytest
from grpc import aio

from liftbridge_broker.access.certificate_rules import parse_rules
from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.rules import super_rules
from liftbridge_broker.adapters.clock import SystemClock
from liftbridge_broker.api.access.needs import NEEDS, OPEN
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.grpc_raw import EOF, raw
from liftbridge_testkit.guarded_calls import (
    API,
    DATA,
    GuardedBroker,
    guarded_broker,
    raw_of,
    request_of,
)
from liftbridge_testkit.identities import ALL_PROOFS, Guarded, Issuer

ALLOWED, DENIED, STRANGER = "allowed", "denied", "stranger"
LONG: Final = 100 * 86_400
REFILL_SECONDS: Final = 3
"""Time that gives an address another failed attempt."""

SECONDS: Final = 20.0
UNACKED_SECONDS: Final = 0.5
"""Deadlines of calls; no stream stores the subject, so that nobody sends the ack."""

PATHS: Final = sorted(NEEDS)
HEALTH: Final = "/grpc.health."
Status = grpc.StatusCode
REFUSED: Final = (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED)


class Site(NamedTuple):
    """A broker that serves all methods at one port, with everything that proves identities."""

    broker: GuardedBroker
    proofs: Guarded
    authority: Authority
    port: int

    @asynccontextmanager
    async def caller(self, kind: Proof, principal: str) -> AsyncIterator["Caller"]:
        """A caller with a proof that lasts for long, perhaps longer than the test allows."""
        token, client = "", None
        if kind is Proof.CERTIFICATE:
            client = self.authority.issue(principal, common_name=principal)
        elif kind is Proof.JWT:
            end = self.proofs.issuer.now + LONG
            token = self.proofs.issuer.token("ES256", sub=principal, exp=end)
        elif kind is Proof.TOKEN:
            token = self.proofs.add_token(principal, expires=self.proofs.issuer.now + LONG)
        pair = (None, None) if client is None else (client.key, client.cert)
        key, cert = (None if one is None else one.read_bytes() for one in pair)
        credentials = grpc.ssl_channel_credentials(self.authority.cert.read_bytes(), key, cert)
        async with aio.secure_channel(f"localhost:{self.port}", credentials) as channel:
            yield Caller(self, channel, token)


class Caller(NamedTuple):
    """A connection and what is sent with each call."""

    site: Site
    channel: aio.Channel
    token: str

    async def ask(self, path: str) -> grpc.StatusCode:
        """Make a call; return its status, or that of its first message, OK for an answer."""
        self.site.proofs.clock.seconds += REFILL_SECONDS
        metadata = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        request, seconds = raw_of(request_of(path)), SECONDS
        if path == API + "PublishToSubject":
            seconds = UNACKED_SECONDS
        # One message and the end of the request: all kinds of methods look alike.
        call = raw(self.channel).unary_stream(path)(request, metadata=metadata, timeout=seconds)
        try:
            first = await call.read()
        except aio.AioRpcError as error:
            return error.code()
        if first is EOF:
            return Status.OK
        call.cancel()
        return _status_in(path, bytes(first))

    async def all_statuses(self) -> dict[str, grpc.StatusCode]:
        """Call every method."""
        return {path: await self.ask(path) for path in PATHS}


def _status_in(path: str, message: bytes) -> grpc.StatusCode:
    """Return the status of the first message of a call, which may be refused by itself."""
    is_denied = False
    if path == API + "PublishAsync":
        code = api_pb2.PublishResponse.FromString(message).asyncError.code
        is_denied = code == api_pb2.PublishAsyncError.PERMISSION_DENIED
    elif path == DATA + "PublishBatch":
        error = data_pb2.PublishBatchResponse.FromString(message).error
        is_denied = error == data_pb2.PublishBatchResponse.PERMISSION_DENIED
    return Status.PERMISSION_DENIED if is_denied else Status.OK


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server")
    proofs = Guarded(tmp_path, issuer=Issuer(SystemClock().wall_ns() // SECOND_NS))
    broker = guarded_broker(proofs.authenticator, has_turns=True)
    everything = super_rules(DENIED)
    broker.change(
        *super_rules(ALLOWED),
        *everything,
        *(one._replace(is_denied=True) for one in everything),
    )
    files = TlsFiles(certificate=server.cert, key=server.key, client_ca=authority.cert)
    listening = broker.served.server
    port = await listening.start("localhost", 0, ServerTls(files))
    loop, pace = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

    def go_on() -> None:
        broker.world.run(10)
        pace[:] = [loop.call_later(0.002, go_on)]

    go_on()
    yield Site(broker, proofs, authority, port)
    pace[0].cancel()
    await listening.close()
    proofs.hasher.close()


def _wrong(found: dict[str, grpc.StatusCode], expected: grpc.StatusCode) -> dict[str, str]:
    """Return the methods whose status is another; everyone may call what is open."""
    outcomes = {}
    for path, status in found.items():
        may_call = path.startswith(HEALTH)
        may_call |= expected is Status.PERMISSION_DENIED and NEEDS[path] == OPEN
        is_right = status not in REFUSED if may_call else status is expected
        if not is_right:
            outcomes[path] = status.name
    return outcomes


@pytest.mark.parametrize("kind", ALL_PROOFS)
async def test_every_call_with_every_proof_in_every_condition(site: Site, kind: Proof) -> None:
    for principal in (DENIED, STRANGER):
        async with site.caller(kind, principal) as caller:
            assert _wrong(await caller.all_statuses(), Status.PERMISSION_DENIED) == {}
    async with site.caller(kind, ALLOWED) as caller:
        assert await caller.ask(DATA + "WhoAmI") is Status.OK
        with _revoked(site):
            assert _wrong(await caller.all_statuses(), Status.UNAUTHENTICATED) == {}
        before = site.proofs.clock.seconds
        site.proofs.clock.seconds += 2 * LONG
        assert _wrong(await caller.all_statuses(), Status.UNAUTHENTICATED) == {}
        site.proofs.clock.seconds = before
        for path in PATHS:
            assert await caller.ask(path) not in REFUSED, path
            site.broker.turn_on()  # it may have been turned off
    assert site.broker.world[1].node.state.access.is_on


@contextmanager
def _revoked(site: Site) -> Iterator[None]:
    """All proofs are revoked for a while: rules, keys and tokens are others."""
    proofs = site.proofs
    rules, tokens, keys = proofs.options.rules, dict(proofs.tokens), proofs.keys_file.read_bytes()
    proofs.write_keys([Issuer(proofs.issuer.now).jwk("ES256")])
    proofs.tokens.clear()
    proofs.set_options(rules=parse_rules(["O:nobody => nobody"]))
    yield
    proofs.keys_file.write_bytes(keys)
    proofs.tokens.update(tokens)
    proofs.set_options(rules=rules)


async def test_every_call_without_a_proof(site: Site) -> None:
    async with site.caller(Proof.ANONYMOUS, "") as caller:
        assert _wrong(await caller.all_statuses(), Status.UNAUTHENTICATED) == {}
        site.proofs.set_options(proofs=(*ALL_PROOFS, Proof.ANONYMOUS))
        assert _wrong(await caller.all_statuses(), Status.PERMISSION_DENIED) == {}
        site.broker.change(*super_rules("*"))
        for path in PATHS:
            assert await caller.ask(path) not in REFUSED, path
            site.broker.turn_on()


async def test_a_wrong_token_is_refused_although_the_certificate_is_right(site: Site) -> None:
    async with site.caller(Proof.CERTIFICATE, ALLOWED) as caller:
        both = caller._replace(token="lbt_wrong")
        assert _wrong(await both.all_statuses(), Status.UNAUTHENTICATED) == {}


def test_conditions_are_those_of_the_promise() -> None:
    """Anonymous callers have no proof that could end."""
    kinds: Sequence[Proof] = (*ALL_PROOFS, Proof.ANONYMOUS)
    assert set(kinds) == set(Proof)
