"""TLS on the gRPC port: versions, ALPN, client certificates, and new certificates while running."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from grpc import aio

from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.errors import ConfigError
from liftbridge_testkit.certs import Authority, Certificate
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server
from liftbridge_testkit.grpc_raw import raw
from liftbridge_testkit.http2_peer import Http2Peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue("server")


@pytest.fixture
async def echo(certificate: Certificate) -> AsyncIterator[EchoServer]:
    tls = ServerTls(TlsFiles(certificate=certificate.cert, key=certificate.key))
    async with echo_server(tls=tls) as running:
        yield running


def trusting(authority: Authority, client: Certificate | None = None) -> grpc.ChannelCredentials:
    """Credentials of a client that trusts an authority."""
    if client is None:
        return grpc.ssl_channel_credentials(authority.cert.read_bytes())
    key, chain = client.key.read_bytes(), client.cert.read_bytes()
    return grpc.ssl_channel_credentials(authority.cert.read_bytes(), key, chain)


async def call(echo: EchoServer, credentials: grpc.ChannelCredentials) -> bytes:
    """One call on a connection of its own."""
    async with aio.secure_channel(f"localhost:{echo.port}", credentials) as channel:
        answer = raw(channel).unary_unary(SERVICE + "Peer")(b"", timeout=10)
        return bytes(await answer)


def client_context(authority: Authority) -> ssl.SSLContext:
    """A plain TLS client that trusts the authority."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.set_alpn_protocols(["h2"])
    return context


async def served_serial(echo: EchoServer, authority: Authority) -> str:
    """Serial number of the certificate that the server shows."""
    context = client_context(authority)
    _, writer = await asyncio.open_connection("localhost", echo.port, ssl=context)
    shown = writer.get_extra_info("peercert")
    writer.transport.abort()
    return str(shown["serialNumber"])


async def test_grpc_over_tls(echo: EchoServer, authority: Authority) -> None:
    assert await call(echo, trusting(authority)) == b""
    assert echo.log.certificates == [None]


async def test_alpn_chooses_h2(echo: EchoServer, authority: Authority) -> None:
    context = client_context(authority)
    context.set_alpn_protocols(["http/1.1", "h2"])
    _, writer = await asyncio.open_connection("localhost", echo.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.transport.abort()


async def test_http1_client_gets_an_answer_it_understands(
    echo: EchoServer, authority: Authority
) -> None:
    context = client_context(authority)
    context.set_alpn_protocols(["http/1.1"])
    reader, writer = await asyncio.open_connection("localhost", echo.port, ssl=context)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    writer.transport.abort()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_versions_from_1_2_on_are_taken(
    echo: EchoServer, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    reader, writer = await asyncio.open_connection("localhost", echo.port, ssl=context)
    writer.write(Http2Peer.hello())
    assert len(await reader.readexactly(9)) == 9
    writer.transport.abort()


async def test_older_versions_are_refused(echo: EchoServer, authority: Authority) -> None:
    context = client_context(authority)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("localhost", echo.port, ssl=context)


async def test_clear_text_is_not_taken_where_tls_is_on(echo: EchoServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    writer.write(Http2Peer.hello())
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer[:1] != b"\x00"  # no frame; at most a TLS alert
    writer.transport.abort()
    assert echo.server.stats.connections_total == 0


class TestClientCertificates:
    """Only clients whose certificate a given authority signed."""

    @pytest.fixture
    async def strict(
        self, authority: Authority, certificate: Certificate
    ) -> AsyncIterator[EchoServer]:
        files = TlsFiles(
            certificate=certificate.cert,
            key=certificate.key,
            client_ca=authority.cert,
            needs_client_certificate=True,
        )
        async with echo_server(tls=ServerTls(files)) as running:
            yield running

    async def test_client_with_one_is_known_to_the_service(
        self, strict: EchoServer, authority: Authority
    ) -> None:
        client = authority.issue("alice", names=("alice.example",))
        await call(strict, trusting(authority, client))
        (shown,) = strict.log.certificates
        assert isinstance(shown, dict)
        assert shown["subject"] == ((("commonName", "alice"),),)
        assert shown["subjectAltName"] == (("DNS", "alice.example"),)

    async def test_client_without_one_is_turned_away(
        self, strict: EchoServer, authority: Authority
    ) -> None:
        with pytest.raises(aio.AioRpcError) as refused:
            await call(strict, trusting(authority))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert strict.log.certificates == []

    async def test_client_of_another_authority_is_turned_away(
        self, strict: EchoServer, authority: Authority, tmp_path: Path
    ) -> None:
        mallory = Authority(tmp_path, "other").issue("mallory")
        with pytest.raises(aio.AioRpcError) as refused:
            await call(strict, trusting(authority, mallory))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert strict.log.certificates == []

    async def test_optional_certificate_is_shown_if_there_is_one(
        self, authority: Authority, certificate: Certificate
    ) -> None:
        files = TlsFiles(
            certificate=certificate.cert, key=certificate.key, client_ca=authority.cert
        )
        async with echo_server(tls=ServerTls(files)) as echo:
            await call(echo, trusting(authority))
            await call(echo, trusting(authority, authority.issue("bob")))
            assert [shown is None for shown in echo.log.certificates] == [True, False]


class TestReload:
    """New files are used for new connections; bad ones change nothing."""

    async def test_new_certificate_is_shown_and_old_connections_live_on(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        files = install(authority.issue("first"), tmp_path)
        tls = ServerTls(files)
        async with (
            echo_server(tls=tls) as echo,
            aio.secure_channel(f"localhost:{echo.port}", trusting(authority)) as channel,
        ):
            unary = raw(channel).unary_unary(SERVICE + "Unary")
            assert await unary(b"before") == b"before"
            before = await served_serial(echo, authority)
            install(authority.issue("second"), tmp_path)
            tls.reload()
            assert await served_serial(echo, authority) != before
            assert await unary(b"after") == b"after"
            assert echo.server.stats.connections_total == 3

    async def test_new_authority_of_clients_replaces_the_old_one(
        self, authority: Authority, certificate: Certificate, tmp_path: Path
    ) -> None:
        other = Authority(tmp_path / "other", "other")
        trusted = tmp_path / "clients.pem"
        shutil.copy(authority.cert, trusted)
        files = TlsFiles(
            certificate=certificate.cert,
            key=certificate.key,
            client_ca=trusted,
            needs_client_certificate=True,
        )
        tls = ServerTls(files)
        async with echo_server(tls=tls) as echo:
            await call(echo, trusting(authority, authority.issue("alice")))
            shutil.copy(other.cert, trusted)
            tls.reload()
            await call(echo, trusting(authority, other.issue("carol")))
            with pytest.raises(aio.AioRpcError):
                await call(echo, trusting(authority, authority.issue("alice")))

    async def test_bad_files_leave_the_old_certificate(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        files = install(authority.issue("good"), tmp_path)
        tls = ServerTls(files)
        async with echo_server(tls=tls) as echo:
            before, loaded = await served_serial(echo, authority), tls.loaded
            assert loaded == {files.certificate: sha256(files.certificate.read_bytes()).hexdigest()}
            files.certificate.write_text("not a certificate")
            with pytest.raises(ConfigError, match="holds no certificate"):
                tls.reload()
            files.certificate.unlink()
            with pytest.raises(ConfigError, match="No such file"):
                tls.reload()
            assert await served_serial(echo, authority) == before
            assert tls.loaded == loaded


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_outlives_the_authority_of_its_client(
    authority: Authority, certificate: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """A resumed session shows no certificate: nothing would be verified again."""
    trusted = tmp_path / "clients.pem"
    shutil.copy(authority.cert, trusted)
    files = TlsFiles(
        certificate=certificate.cert,
        key=certificate.key,
        client_ca=trusted,
        needs_client_certificate=True,
    )
    tls, context, alice = ServerTls(files), client_context(authority), authority.issue("alice")
    context.load_cert_chain(alice.cert, alice.key)
    context.minimum_version = context.maximum_version = version
    async with echo_server(tls=tls) as echo:
        session = await asyncio.to_thread(greeted, echo, context, None)
        shutil.copy(Authority(tmp_path / "other", "other").cert, trusted)
        tls.reload()
        with pytest.raises(OSError, match=r"EOF|alert|^$|reset"):
            await asyncio.to_thread(greeted, echo, context, session)
        assert echo.server.stats.connections_total == 1


async def test_clients_get_no_ticket_that_outlives_their_certificate(
    echo: EchoServer, authority: Authority
) -> None:
    """With TLS 1.3 each resumption would bring a new one, for ever."""
    session = await asyncio.to_thread(greeted, echo, client_context(authority), None)
    assert not session.has_ticket


def greeted(
    echo: EchoServer, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLSession:
    """The session after the server has said something, with which it lets a client in."""
    with (
        socket.create_connection(("127.0.0.1", echo.port), timeout=10) as client,
        context.wrap_socket(client, server_hostname="localhost", session=session) as tls,
    ):
        tls.sendall(Http2Peer.hello())
        if not tls.recv(9):
            raise ConnectionResetError
        assert tls.session is not None
        return tls.session


def install(certificate: Certificate, folder: Path) -> TlsFiles:
    """Put a certificate where the server looks for it."""
    files = TlsFiles(certificate=folder / "tls.crt", key=folder / "tls.key")
    shutil.copy(certificate.cert, files.certificate)
    shutil.copy(certificate.key, files.key)
    return files


async def test_handshakes_that_stall_or_fail_leave_nothing(echo: EchoServer) -> None:
    for first in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", bytes(500)):
        with socket.create_connection(("127.0.0.1", echo.port)) as client:
            client.sendall(first)
    assert echo.server.stats.connections_total == 0
