"""A name with several addresses: what is wrong with a certificate is told, whoever is asked last.

gRPC tells of the last address only, so `localhost` (::1 and 127.0.0.1) was told to refuse where a
broker presents a faulty certificate at one of the two.
"""

import asyncio
import contextlib
import socket
from datetime import timedelta
from itertools import permutations
from typing import NamedTuple

import grpc.aio
import pytest

from liftbridge_client import LiftbridgeError, RetriableError, TlsFiles, connect
from liftbridge_client.aio.listening import Hub
from liftbridge_client.resolving import targets_of
from liftbridge_client.transport import ADDRESSES_MAX, Method, Transport
from liftbridge_proto import api_pb2
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.wrong_servers import KINDS, WrongServer

METHOD = Method(
    "/proto.API/FetchMetadata", api_pb2.FetchMetadataRequest, api_pb2.FetchMetadataResponse
)
SECONDS = 10.0
SHORT = timedelta(seconds=2)


class Fault(NamedTuple):
    """What is wrong with a certificate, and the words that tell it."""

    names: tuple[str, ...] = ("localhost",)
    days: int = 30
    is_trusted: bool = True
    told: str = "presents a certificate that is not trusted"


FAULTS = {
    "other authority": Fault(is_trusted=False),
    "expired": Fault(days=-1),
    "other name": Fault(names=("other.example",), told="presents a certificate for another name"),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("strangers"))


@contextlib.asynccontextmanager
async def serving(signed_by, host, fault, port=0):
    """A server with a certificate; its port."""
    made = signed_by.issue("server", names=fault.names, days=fault.days)
    server = grpc.aio.server()
    pair = (made.key.read_bytes(), made.cert.read_bytes())
    found = server.add_secure_port(f"{host}:{port}", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)


@contextlib.contextmanager
def refusing():
    """An address that nobody listens at, kept from others meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


async def told_by(transport, address):
    """The error of a call."""
    with pytest.raises(LiftbridgeError) as caught:
        await transport.unary(address, METHOD, METHOD.request(), SECONDS)
    await transport.close()
    return caught.value


def transport_to(tls, targets):
    """A transport for which a name has these addresses."""

    async def resolve(_address):
        return targets

    transport = Transport(tls, Hub(), resolve)
    transport.open()
    return transport


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(
    "order", list(permutations(["faulty", "refusing", "without TLS"])), ids=str
)
async def test_fault_of_a_certificate_is_told_in_any_order(fault, order, authority, strangers):
    tls = TlsFiles(ca=authority.cert, server_name="localhost")
    signed_by = authority if fault.is_trusted else strangers
    with refusing() as refuses, WrongServer(KINDS["nats"], authority) as plain:
        async with serving(signed_by, "127.0.0.2", fault) as port:
            places = {
                "faulty": f"127.0.0.2:{port}",
                "refusing": refuses,
                "without TLS": plain.address,
            }
            targets = [f"ipv4:{places[one]}" for one in order]
            address = "ipv4:" + ",".join(places[one] for one in order)
            error = await told_by(transport_to(tls, targets), address)
    assert isinstance(error, RetriableError)
    assert str(error).startswith(f"{places['faulty']} {fault.told}")
    assert error.advice != RetriableError.advice
    assert not error.may_be_done


@pytest.mark.parametrize("order", list(permutations(["faulty", "silent"])), ids=str)
async def test_fault_of_a_certificate_is_told_beside_an_address_that_says_nothing(
    order, authority, strangers
):
    tls = TlsFiles(ca=authority.cert, server_name="localhost")
    fault = FAULTS["other authority"]
    with WrongServer(KINDS["silent"], authority) as silent:
        async with serving(strangers, "127.0.0.2", fault) as port:
            places = {"faulty": f"127.0.0.2:{port}", "silent": silent.address}
            targets = [f"ipv4:{places[one]}" for one in order]
            address = "ipv4:" + ",".join(places[one] for one in order)
            error = await told_by(transport_to(tls, targets), address)
    assert str(error).startswith(f"{places['faulty']} {fault.told}")


@pytest.mark.parametrize("order", list(permutations(["127.0.0.1", "127.0.0.2"])), ids=str)
@pytest.mark.parametrize("kind", [*FAULTS, "none"])
async def test_name_of_the_address_is_what_certificates_are_held_to(
    kind, order, authority, strangers
):
    """The name leads gRPC to 127.0.0.1 alone, which refuses; a right certificate is no fault."""
    fault = FAULTS.get(kind, Fault(told=""))
    signed_by = authority if fault.is_trusted else strangers
    async with serving(signed_by, "127.0.0.2", fault) as port:
        targets = [f"ipv4:{one}:{port}" for one in order]
        transport = transport_to(TlsFiles(ca=authority.cert), targets)
        error = await told_by(transport, f"localhost:{port}")
    assert (fault.told or "Connection refused") in str(error)


@pytest.mark.parametrize("before", [ADDRESSES_MAX - 1, ADDRESSES_MAX])
async def test_so_many_addresses_are_asked_and_no_more(before, authority, strangers):
    fault = FAULTS["other authority"]
    with refusing() as refuses:
        async with serving(strangers, "127.0.0.2", fault) as port:
            targets = [f"ipv4:{refuses}"] * before + [f"ipv4:127.0.0.2:{port}"]
            transport = transport_to(TlsFiles(ca=authority.cert), targets)
            error = await told_by(transport, refuses)
    assert (fault.told in str(error)) == (before < ADDRESSES_MAX)


@pytest.mark.parametrize("silent", ["resolver", "address"])
async def test_what_says_nothing_does_not_use_up_the_time_of_the_call(silent, authority):
    async def never(_address):
        await asyncio.Event().wait()

    with refusing() as refuses, WrongServer(KINDS["silent"], authority) as says_nothing:
        targets = [f"ipv4:{refuses}", f"ipv4:{says_nothing.address}"]
        transport = transport_to(TlsFiles(ca=authority.cert), targets)
        if silent == "resolver":
            transport = Transport(TlsFiles(ca=authority.cert), Hub(), never)
            transport.open()
        async with asyncio.timeout(SECONDS / 2):
            assert "Connection refused" in str(await told_by(transport, refuses))


async def test_client_without_tls_asks_no_further_address():
    asked = []

    async def resolve(address):
        asked.append(address)
        return []

    with refusing() as address:
        transport = Transport(None, Hub(), resolve)
        transport.open()
        assert "Connection refused" in str(await told_by(transport, address))
    assert asked == []


async def test_addresses_of_a_name_are_targets_of_grpc():
    assert "ipv4:127.0.0.1:9292" in await targets_of("localhost:9292")
    assert await targets_of("127.0.0.1:9292") == ["ipv4:127.0.0.1:9292"]
    assert await targets_of("[::1]:9292") == ["ipv6:[::1]:9292"]


async def test_name_that_is_not_known_is_told_as_before(authority):
    async with asyncio.timeout(SECONDS):
        with pytest.raises(RetriableError):
            await connect(
                "nobody.invalid:1", tls=TlsFiles(ca=authority.cert), timeout=SHORT, retry_time=SHORT
            ).__aenter__()
