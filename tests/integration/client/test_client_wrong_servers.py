"""Whoever names a server that is no broker, or the wrong port of one, is told so with a remedy."""

from datetime import timedelta

import pytest

from liftbridge_client import (
    LiftbridgeError,
    RetriableError,
    ServerError,
    TlsFiles,
    UnimplementedError,
    connect,
    connect_admin,
    connect_admin_sync,
    connect_sync,
)
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.wrong_servers import KINDS, WrongServer

OFTEN = ["http1", "nats", "silent", "closing", "https", "http2 not found"]
USELESS = {kind.advice for kind in (RetriableError, ServerError, UnimplementedError)}
WORDS_OF_GRPC = (
    "frame",
    "OPENSSL",
    "TSI_",
    "ipv4",
    "Deadline",
    "header",
    "No status",
    "Method not found",
)
CLIENTS = {connect: "metadata", connect_admin: "brokers"}
TWINS = {connect_sync: "metadata", connect_admin_sync: "brokers"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(request, authority):
    with WrongServer(KINDS[request.param], authority) as running:
        yield running


def limits(kind):
    """Times of a client; who is silent is not waited for long."""
    return {
        "timeout": timedelta(seconds=0.3 if kind == "silent" else 20),
        "retry_time": timedelta(0),
    }


def assert_told(error, address):
    """An error says where, what is wrong there and what to do, and gives no words of gRPC."""
    assert address in str(error)
    assert not [one for one in WORDS_OF_GRPC if one in str(error)], str(error)
    assert error.advice not in USELESS, str(error)
    assert error.advice.endswith(".")


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("tls", ["plain", "tls", "other ca", "other name"])
@pytest.mark.parametrize(("server", "kind"), [(one, one) for one in KINDS], indirect=["server"])
async def test_a_wrong_server_is_told(server, kind, tls, make, authority, tmp_path):
    files = {
        "plain": None,
        "tls": TlsFiles(ca=authority.cert),
        "other ca": TlsFiles(ca=Authority(tmp_path / "other").cert),
        "other name": TlsFiles(ca=authority.cert, server_name="another.example"),
    }
    with pytest.raises(LiftbridgeError) as caught:
        async with make(server.address, tls=files[tls], **limits(kind)) as client:
            await getattr(client, CLIENTS[make])()
    assert_told(caught.value, server.address)


@pytest.mark.parametrize("make", TWINS)
@pytest.mark.parametrize(("server", "kind"), [(one, one) for one in OFTEN], indirect=["server"])
def test_blocking_clients_tell_of_a_wrong_server(server, kind, make):
    with (
        pytest.raises(LiftbridgeError) as caught,
        make(server.address, **limits(kind)) as client,
    ):
        getattr(client, TWINS[make])()
    assert_told(caught.value, server.address)


@pytest.mark.parametrize("make", CLIENTS)
async def test_ports_of_a_broker_are_told_apart(broker, make):
    address = broker.address if make is connect_admin else broker.admin_address
    with pytest.raises(LiftbridgeError) as caught:
        async with make(address) as client:
            await getattr(client, CLIENTS[make])()
    assert_told(caught.value, address)
