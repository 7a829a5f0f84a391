"""Everything that depends on internals of nats-py; pinned by `test_natspy_pins.py`.

nats-py 2.16 does the handshake: INFO, CONNECT with password, token, nkey or JWT, the upgrade to
TLS, and the first PING. It gets a custom transport, so that it reads lines from the broker's
connection and never receives a message; afterwards its tasks only wait for the end. The broker also
reconnects by itself: nats-py gives up forever after most `-ERR` lines, and when a callback for
credentials fails.

Relied on:

- `Client._transport`, set before `connect`, is used unchanged when it is true.
- `connect` with `allow_reconnect=False` tries one server once when `Transport.connect` is a no-op.
- After the handshake `_read_loop` awaits `Transport.read` and ends at `at_eof`.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final
from urllib.parse import ParseResult

import nkeys  # type: ignore[import-untyped]  # it has none
from nats.aio.client import Client, RawCredentials
from nats.aio.transport import Transport
from nats.errors import Error as NatsError

from liftbridge_broker.adapters.nats.connection import Connection
from liftbridge_broker.adapters.nats.credentials import Credentials
from liftbridge_broker.wire.nats import info_fields

# nats-py's own pings are never due; the connection sends its own.
_NEVER_S: Final = 10**8

_INFO_KINDS: Final = {
    "client_id": int,
    "client_ip": str,
    "connect_urls": list,
    "max_payload": int,
    "nonce": str,
    "server_id": str,
    "version": str,
}


class HandshakeError(Exception):
    """The handshake failed: the server refused, or the peer is not a NATS server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """Parameters of a handshake.

    Attributes:
        url: URL of the server.
        tls_host: Name its certificate must contain.
        tls: Settings of TLS; when set, TLS is mandatory.
        credentials: Credentials to present.
        name: Name of the connection.
        no_echo: Whether subscriptions of this connection exclude messages published on it.
        timeout_s: Maximum wait for an answer.
    """

    url: str
    tls_host: str
    tls: ssl.SSLContext | None
    credentials: Credentials
    name: str
    no_echo: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that the server reported.

    Attributes:
        client_id: Number that the server assigned to the connection.
        payload_bytes_max: `max_payload` of the server.
        server_id: Changes with each start of the server.
        discovered: URLs of the servers of its cluster, itself included; none for a single server.
    """

    client_id: int
    payload_bytes_max: int
    server_id: str
    discovered: tuple[str, ...]


class Session:
    """A connection after its handshake, and the nats-py client that did it."""

    def __init__(self, client: Client, connection: Connection, facts: ServerFacts) -> None:
        self._client = client
        self.connection = connection
        self.facts = facts

    async def close(self, timeout_s: float) -> None:
        """Send all written bytes, then end the connection and nats-py's tasks."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.close()
        except TimeoutError:
            self.connection.abort("closed by the broker")
        await self.connection.wait_lost()


async def shake_hands(connection: Connection, handshake: Handshake) -> Session:
    """Introduce the broker on a connected socket.

    Raises:
        HandshakeError: The text has the reason; the caller ends the connection.
    """
    credentials = handshake.credentials
    client = Client()
    transport = _LineTransport(connection, is_tls_demanded=handshake.tls is not None)
    client._transport = transport  # noqa: SLF001 - the way in; see the module
    has_jwt = bool(credentials.jwt)
    try:
        await client.connect(
            [handshake.url],
            name=handshake.name,
            no_echo=handshake.no_echo,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=ceil(handshake.timeout_s),
            ping_interval=_NEVER_S,
            tls=handshake.tls,
            tls_hostname=handshake.tls_host,
            user=credentials.user or None,
            password=credentials.password if credentials.user else None,
            token=credentials.token or None,
            error_cb=_ignore,
            user_credentials=RawCredentials(_creds_text(credentials)) if has_jwt else None,
            nkeys_seed_str=None if has_jwt else credentials.seed or None,
        )
    except (OSError, NatsError, nkeys.NkeysError, ValueError) as error:
        raise HandshakeError(connection.reason or _text(error)) from error
    if not client.is_connected:
        raise HandshakeError("the server ended the connection during the handshake")
    info = client._server_info  # noqa: SLF001 - no public way to the server's id
    if info.get("headers") is not True:
        raise HandshakeError(
            "the server does not support message headers: nats-server 2.2 is the oldest that does"
        )
    facts = ServerFacts(
        client_id=client.client_id or 0,
        payload_bytes_max=client.max_payload,
        server_id=str(info.get("server_id", "")),
        discovered=tuple(f"nats://{url}" for url in info.get("connect_urls", ())),
    )
    return Session(client, connection, facts)


class _LineTransport(Transport):
    """Presents a connection as a transport of nats-py."""

    def __init__(self, connection: Connection, *, is_tls_demanded: bool) -> None:
        self._connection = connection
        self._is_tls_demanded = is_tls_demanded
        self._held = b""

    def __bool__(self) -> bool:
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """No-op: the socket is connected."""

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,  # noqa: ARG002 - part of the interface
        connect_timeout: int,
    ) -> None:
        """Upgrade the socket."""
        host = uri if isinstance(uri, str) else uri.hostname or ""
        await self._connection.start_tls(ssl_context, host, connect_timeout)

    def write(self, payload: bytes) -> None:
        """Write; the first write holds credentials and is refused in clear if TLS is mandatory."""
        if self._is_tls_demanded and not self._connection.is_secure:
            raise ConnectionRefusedError("the server does not ask for TLS, which is configured")
        if payload.startswith(b"CONNECT "):
            # Sent together with the PING that follows: a server that refuses CONNECT and closes
            # while a PING is in flight resets the connection, which would drop its -ERR.
            self._held = payload
            return
        self._connection.write(self._held + payload)
        self._held = b""

    def writelines(self, payload: list[bytes]) -> None:
        """Write."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> bytes:  # noqa: ARG002 - part of the interface
        """Wait for the end: nats-py must not read anything after the handshake."""
        await self._connection.wait_lost()
        return b""

    async def readline(self) -> bytes:
        """Return the next line of the handshake."""
        line = await self._connection.lines.read()
        if line.startswith(b"INFO "):
            _check_info(line[len(b"INFO ") :])
        return line

    async def drain(self) -> None:
        """No-op: the connection bounds its output."""

    async def wait_closed(self) -> None:
        """Wait for the end."""
        await self._connection.wait_lost()

    def close(self) -> None:
        """End the connection after all written bytes are sent."""
        self._connection.close()

    def at_eof(self) -> bool:
        """Return whether the connection ended."""
        return self._connection.is_lost


def _check_info(body: bytes) -> None:
    """Check that an `INFO` has the fields that nats-py assumes.

    Raises:
        ConnectionAbortedError: A field is missing.
    """
    info = info_fields(body)
    if info is None or not _is_sound(info):
        raise ConnectionAbortedError("the server is not a NATS server: malformed INFO")


def _is_sound(info: Mapping[str, object]) -> bool:
    if not all(isinstance(info.get(name, kind()), kind) for name, kind in _INFO_KINDS.items()):
        return False
    urls, payload_bytes_max = info.get("connect_urls", ()), info.get("max_payload", 1)
    assert isinstance(urls, list | tuple)
    assert isinstance(payload_bytes_max, int)
    return payload_bytes_max > 0 and all(isinstance(url, str) for url in urls)


async def _ignore(_error: Exception) -> None:
    """Ignore the error: nats-py also raises it."""


def _creds_text(credentials: Credentials) -> str:
    """Return a `.creds` file in the only form that nats-py reads safely."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{credentials.jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{credentials.seed}\n------END USER NKEY SEED------\n"
    )


def _text(error: Exception) -> str:
    """Return the reason in one line; nats-py's errors repeat its name and some have no own text."""
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    text = f"{error}".removeprefix("nats: ").strip("'")
    return text or type(error).__name__
