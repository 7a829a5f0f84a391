"""One supervised connection to NATS: connects, watches and reconnects.

State: the desired subscriptions, and the connection that carries them, if any. A connection counts
as up when the server has confirmed that all subscriptions are restored. Reconnecting never ends;
credentials and certificates are read again for each attempt.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import SplitResult, urlsplit

from liftbridge_broker.adapters.nats.connection import CLOSED_SILENTLY, Connection
from liftbridge_broker.adapters.nats.credentials import (
    CredentialsError,
    read_credentials,
    tls_context,
)
from liftbridge_broker.adapters.nats.headers import leave_out_wide
from liftbridge_broker.adapters.nats.natspy import Handshake, HandshakeError, Session, shake_hands
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.nats.pacing import PLAIN_WEIGHT, Deliver, Pacer, TurnBudget
from liftbridge_broker.errors import ConfigError, UnavailableError
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.wire.nats import info_fields, subscribe_line, unsubscribe_line

DISCOVERED_COUNT_MAX: Final = 64
CLOSE_SECONDS_MAX: Final = 2.0
BEHIND_SECONDS: Final = 5.0

HOLD_SECONDS: Final = 1.0
"""Time after the loss of a connection in which `publish` accepts frames for the next connection."""

_MILLISECONDS: Final = 1000
_PORT: Final = 4222


@dataclass(slots=True)
class LinkCounts:
    """Counters of one link since the start; plain integers, updated once per chunk or event.

    Attributes:
        messages_in: Messages that were delivered or had too many headers.
        messages_dropped: Messages of ended subscriptions.
        messages_wide: Messages dropped because they had too many headers.
        bytes_in: Bytes received on connections that have ended.
        bytes_out: Bytes sent on connections that have ended.
        publishes_refused: Calls of `publish` refused because the link was down or busy.
        connects: Connections established.
        attempts_failed: Failed connection attempts.
        slow_consumers: Times the server dropped the link because it read too slowly.
        server_errors: `-ERR` lines.
    """

    messages_in: int = 0
    messages_dropped: int = 0
    messages_wide: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    publishes_refused: int = 0
    connects: int = 0
    attempts_failed: int = 0
    slow_consumers: int = 0
    server_errors: int = 0


class _AttemptError(Exception):
    """One attempt to connect failed; the next may succeed."""


class Link:
    """Supervised connection to NATS.

    Args:
        options: Servers and settings of the connection.
        kind: Last part of the connection's name.
        no_echo: Whether subscriptions of this link exclude messages published on it.
        deliver: Receives messages of existing subscriptions.
        budget: What its deliveries may cost in a turn of the loop.
        on_change: Called after `is_up` changed, with a reason if it went down.
        observer: Receives transitions.
        plain_weight: Weight of a plain message, see `pacing`.
        holds_frames: Whether frames published shortly after a loss wait for the next connection.

    Attributes:
        counts: See `LinkCounts`.
        is_up: Whether the connection is up with all its subscriptions.
        payload_bytes_max: `max_payload` of the server, 1 MiB before the first connection.
    """

    def __init__(
        self,
        options: NatsOptions,
        kind: str,
        *,
        no_echo: bool,
        deliver: Deliver,
        budget: TurnBudget,
        on_change: Callable[[str], None],
        observer: Observer,
        plain_weight: int = PLAIN_WEIGHT,
        holds_frames: bool = False,
    ) -> None:
        self._options = options
        self._kind = kind
        self._name = f"LIFT.{options.namespace}.{options.server_id}.{kind}"
        self._no_echo = no_echo
        self._deliver = deliver
        self._pacer = Pacer(
            budget,
            self._hand_on,
            self._pause_reading,
            self._resume_reading,
            self.on_fault,
            plain_weight=plain_weight,
        )
        self._on_change = on_change
        self._observer = observer
        self._servers = _ServerPool(options.servers)
        self._subscriptions: dict[SubscriptionId, bytes] = {}
        self._connection: Connection | None = None
        self._opening: Connection | None = None
        self._session: Session | None = None
        self._is_closing = False
        self._hold_seconds = HOLD_SECONDS if holds_frames else 0.0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_until = 0.0
        self._changed = asyncio.Event()
        self._fault: Exception | None = None
        self._behind_at = ""
        self._last_failure = ""
        self.counts = LinkCounts()
        self.is_up = False
        self.payload_bytes_max = MIB

    @property
    def server(self) -> str:
        """Host and port of the connected server; empty while disconnected."""
        return self._servers.current_text if self.is_up else ""

    @property
    def server_cluster(self) -> tuple[str, ...]:
        """Hosts and ports of that server and its cluster peers; empty for a single server."""
        return self._servers.address_texts

    # Life

    async def start(self) -> None:
        """Establish the first connection.

        Raises:
            UnavailableError: No server could be reached in `connect_attempts_max` attempts, or one
                for each server if there are more.
        """
        attempts = max(self._options.connect_attempts_max, len(self._options.servers))
        for attempt in range(1, attempts + 1):
            try:
                await self._connect()
            except _AttemptError as error:
                if attempt == attempts:
                    raise UnavailableError(
                        f"cannot connect to NATS after {attempts} attempts: {error}"
                    ) from error
                await self._pause()
            else:
                break
        session = self._session
        if session is not None:
            self._report(
                "nats_connected",
                server=self._servers.current_text,
                client_id=session.facts.client_id,
            )

    async def run(self) -> None:
        """Watch the connection and reconnect, until `close`; run it in a task group.

        Raises:
            Exception: The receiver of messages raised: a bug.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._fault is not None:
                raise self._fault
            if self._is_closing:
                return
            if self.is_up:
                continue
            lost_at = loop.time()
            await self._end_session()
            if await self._reconnect():
                outage_ms = int((loop.time() - lost_at) * _MILLISECONDS)
                self._report(
                    "nats_reconnected", server=self._servers.current_text, outage_ms=outage_ms
                )

    async def drain(self) -> None:
        """End all subscriptions, and wait until everything that the server sent is delivered."""
        connection = self._connection
        if connection is not None and self._subscriptions:
            lines = b"".join(map(unsubscribe_line, self._subscriptions))
            connection.write(lines)
            try:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await connection.flushed()
                    is_idle = asyncio.Event()
                    self._pacer.when_idle(is_idle.set)
                    await is_idle.wait()
            except OSError:
                pass  # the link went down: nothing more can arrive (TimeoutError is an OSError too)
        self._subscriptions.clear()

    async def close(self) -> None:
        """Send waiting output, end the connection and `run`. Never fails; bounded by deadlines.

        Cancellation only skips the waiting output: `run` ends in any case; otherwise the process
        would never end.
        """
        self._is_closing = True
        connection = self._connection
        try:
            if connection is not None and self.is_up:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await connection.flushed()
        except OSError:
            pass  # as in `drain`
        finally:
            self.is_up = False
            self._connection = None
            if self._opening is not None:
                self._opening.abort("closed by the broker")
            self._changed.set()
            await self._end_session()

    # Traffic

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Add a desired subscription; `subject` and `queue` are valid."""
        line = subscribe_line(subject, queue, subscription)
        self._subscriptions[subscription] = line
        if self._connection is not None:
            self._connection.write(line)

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """Remove a desired subscription; messages in flight are dropped."""
        if self._subscriptions.pop(subscription, None) is not None and self._connection is not None:
            self._connection.write(unsubscribe_line(subscription))

    def publish(self, frames: Sequence[bytes]) -> None:
        """Write frames together with all other output of this turn of the loop.

        Raises:
            UnavailableError: The link is down, or the server does not read fast enough.
        """
        try:
            self._send(b"".join(frames))
        except UnavailableError:
            self.counts.publishes_refused += 1
            raise

    def _send(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None and self.is_up:
            connection.send(data)
        elif not self.takes_frames:
            raise UnavailableError("NATS connection is down")
        elif self._held_bytes > self._options.pending_bytes_max:
            raise UnavailableError("NATS connection busy")
        else:
            self._held.append(data)
            self._held_bytes += len(data)

    @property
    def takes_frames(self) -> bool:
        """Return whether the link is up, or was up until a moment ago.

        A server that drops the broker as a slow consumer accepts it again within milliseconds.
        """
        is_held = not self._is_closing and asyncio.get_running_loop().time() < self._held_until
        return self.is_up or is_held

    async def flushed(self) -> None:
        """Wait until the server has read everything requested and published so far.

        Raises:
            UnavailableError: The link is down or went down during the call.
        """
        connection = self._connection
        if connection is None or not self.is_up:
            raise UnavailableError("NATS connection is down")
        try:
            await connection.flushed()
        except OSError as error:
            raise UnavailableError(f"NATS connection is down: {error}") from error

    def set_pending_bytes_max(self, bytes_max: int) -> None:
        """Set the bound of bytes that are published and not yet taken by the socket."""
        self._options = replace(self._options, pending_bytes_max=bytes_max)
        for connection in (self._connection, self._opening):
            if connection is not None:
                connection.set_pending_bytes_max(bytes_max)

    @property
    def pending_bytes(self) -> int:
        """Bytes published and not yet taken by the socket."""
        live = 0 if self._connection is None else self._connection.pending_bytes
        return self._held_bytes + live

    @property
    def bytes_in(self) -> int:
        """Bytes received since the start."""
        live = 0 if self._connection is None else self._connection.bytes_in
        return self.counts.bytes_in + live

    @property
    def bytes_out(self) -> int:
        """Bytes sent since the start."""
        live = 0 if self._connection is None else self._connection.bytes_out
        return self.counts.bytes_out + live

    # Callbacks of a connection

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Take messages without too many headers, and deliver them as turns allow."""
        heard = len(payloads)
        arrivals, payloads = leave_out_wide(arrivals, payloads)
        wide = heard - len(payloads)
        self.counts.messages_wide += wide
        self.counts.messages_in += wide
        if payloads:
            self._pacer.take(subscription, arrivals, payloads)

    def _hand_on(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Deliver messages, unless the subscription has ended."""
        if subscription in self._subscriptions:
            self.counts.messages_in += len(payloads)
            self._deliver(subscription, arrivals, payloads)
        else:
            self.counts.messages_dropped += len(payloads)

    def _pause_reading(self) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def _resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def on_info(self, body: bytes) -> None:
        """Record other servers and limits."""
        info = info_fields(body)
        if info is None:
            self._report("nats_error", reason="INFO is not a JSON object")
            return
        limit = info.get("max_payload")
        if isinstance(limit, int) and limit > 0:
            self.payload_bytes_max = limit
        urls = info.get("connect_urls")
        if isinstance(urls, list):
            self._servers.discover([f"nats://{url}" for url in urls if isinstance(url, str)])
        if info.get("ldm") is True:
            self._report("nats_error", reason="the server is about to stop (lame duck mode)")

    def on_server_error(self, text: str) -> None:
        """Count and report an error; the end of the connection is reported separately."""
        self.counts.server_errors += 1
        if "slow consumer" in text.lower():
            self._report_slow(text)
        else:
            self._report("nats_error", reason=text)

    def on_fault(self, error: Exception) -> None:
        """Make `run` fail with the receiver's exception."""
        self._fault = self._fault or error
        self._changed.set()

    def on_lost(self, connection: Connection, reason: str) -> None:
        """Handle the end of the connection."""
        self.counts.bytes_in += connection.bytes_in
        self.counts.bytes_out += connection.bytes_out
        if connection is not self._connection:
            return
        self._connection = None
        if not self.is_up:
            return
        self.is_up = False
        # A server drops a slow consumer without a message, in the middle of its output; the same
        # server id after reconnecting distinguishes this from a server that stopped.
        now = asyncio.get_running_loop().time()
        self._held_until = now + self._hold_seconds
        age_s = now - connection.behind_at
        is_behind = age_s < BEHIND_SECONDS and (reason == CLOSED_SILENTLY or "reset" in reason)
        self._behind_at = self._session.facts.server_id if is_behind and self._session else ""
        self._report("nats_disconnected", reason=reason)
        self._changed.set()
        self._on_change(reason)

    # Inside

    async def _reconnect(self) -> bool:
        """Try until it succeeds or the link is closed; return whether it succeeded."""
        while not self._is_closing and self._fault is None:
            try:
                await self._connect()
            except _AttemptError as error:
                failure = f"{error}"
                if failure != self._last_failure:
                    self._report("nats_error", reason=failure)
                self._last_failure = failure
                await self._pause()
            else:
                self._last_failure = ""
                return True
        return False

    async def _connect(self) -> None:
        """Try the next server once.

        Raises:
            _AttemptError: With the server and the reason.
        """
        url = self._servers.next()
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / _MILLISECONDS):
                session = await self._open(url)
        except (OSError, HandshakeError, CredentialsError) as error:
            self.counts.attempts_failed += 1
            reason = "no answer in time" if isinstance(error, TimeoutError) else f"{error}"
            raise _AttemptError(f"{self._servers.current_text}: {reason}") from error
        if self._is_closing:
            self._connection = None
            await session.close(CLOSE_SECONDS_MAX)
            raise _AttemptError("closed by the broker")
        self._session = session
        self.counts.connects += 1
        self.is_up = True
        self._send_held()
        if self._behind_at and self._behind_at == session.facts.server_id:
            self._report_slow("the server dropped the connection while the broker was behind")
        self._behind_at = ""
        self._on_change("")

    def _send_held(self) -> None:
        # `send` may refuse, and then `run` would fail.
        if self._held and self._connection is not None:
            self._connection.write(b"".join(self._held))
            self._held, self._held_bytes = [], 0

    async def _open(self, url: SplitResult) -> Session:
        """Connect, introduce the broker, restore the subscriptions."""
        options, loop = self._options, asyncio.get_running_loop()
        credentials = read_credentials(options)
        tls = tls_context(options, is_demanded=url.scheme == "tls")
        connection = Connection(
            self,
            loop,
            pending_bytes_max=options.pending_bytes_max,
            ping_interval_s=options.ping_interval_ms / _MILLISECONDS,
        )
        handshake = Handshake(
            url=url.geturl(),
            tls_host=self._servers.tls_host(url),
            tls=tls,
            credentials=credentials,
            name=self._name,
            no_echo=self._no_echo,
            timeout_s=options.connect_timeout_ms / _MILLISECONDS,
        )
        self._opening = connection
        is_open = False
        try:
            await loop.create_connection(lambda: connection, url.hostname or "", url.port or _PORT)
            session = await shake_hands(connection, handshake)
            self.payload_bytes_max = session.facts.payload_bytes_max
            self._servers.discover(session.facts.discovered)
            # From here on, `subscribe` writes to this connection; earlier subscriptions are done.
            self._connection = connection
            connection.write(b"".join(self._subscriptions.values()))
            connection.begin()
            await connection.flushed()
            is_open = True
        finally:
            self._opening = None
            if not is_open:
                if self._connection is connection:
                    self._connection = None
                connection.abort("the attempt to connect failed")
        return session

    async def _end_session(self) -> None:
        """End nats-py's part of a connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close(CLOSE_SECONDS_MAX)

    async def _pause(self) -> None:
        """Wait between attempts; `close` and faults end it early."""
        try:
            async with asyncio.timeout(self._options.reconnect_wait_ms / _MILLISECONDS):
                while not self._is_closing and self._fault is None:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            return
        self._changed.set()

    def _report_slow(self, reason: str) -> None:
        self.counts.slow_consumers += 1
        self._report("nats_slow_consumer", reason=reason, pending_bytes=self.pending_bytes)

    def _report(self, kind: str, **fields: object) -> None:
        self._observer.transition(kind, {"connection": self._kind, **fields})


class _ServerPool:
    """Servers to try in turn: configured servers, then servers that a cluster announced.

    Attributes:
        current_text: Host and port of the latest server, without credentials.
        address_texts: Hosts and ports of its cluster as announced by a server, its own included.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._configured = [_parse(url) for url in urls]
        self._discovered: list[SplitResult] = []
        self._position = -1
        self.current_text = ""
        self.address_texts: tuple[str, ...] = ()

    def next(self) -> SplitResult:
        """Return the server to try now."""
        servers = self._configured + self._discovered
        self._position = (self._position + 1) % len(servers)
        url = servers[self._position]
        self.current_text = _address(url)
        return url

    def discover(self, urls: Sequence[str]) -> None:
        """Replace the announced servers; malformed and known URLs are ignored."""
        known = {_address(url) for url in self._configured}
        found: dict[str, SplitResult] = {}
        addresses: list[str] = []
        first = self._configured[0]
        for text in urls[:DISCOVERED_COUNT_MAX]:
            try:
                url = _parse(text)
            except ConfigError:
                continue
            # An announced server uses the scheme and credentials of the first one.
            user, at, _ = first.netloc.rpartition("@")
            url = url._replace(scheme=first.scheme, netloc=user + at + url.netloc)
            addresses.append(_address(url))
            if _address(url) not in known:
                found[_address(url)] = url
        self._discovered = list(found.values())
        self.address_texts = tuple(sorted(addresses))

    def tls_host(self, url: SplitResult) -> str:
        """Return the name that the server's certificate must contain.

        Clusters announce addresses, while certificates contain names: an announced server's
        certificate must contain the first configured name.
        """
        is_announced = url in self._discovered
        return (self._configured[0] if is_announced else url).hostname or ""


def _parse(text: str) -> SplitResult:
    """Parse a server's URL; a missing scheme is `nats`.

    Raises:
        ConfigError: The URL does not name a server.
    """
    # The text is not repeated: it may hold a password.
    refusal = ConfigError("nats.servers: not of the form nats://host:port or tls://host:port")
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        is_server = url.scheme in ("nats", "tls") and bool(url.hostname) and url.port != 0
    except ValueError:
        raise refusal from None
    if not is_server:
        raise refusal
    return url


def _address(url: SplitResult) -> str:
    """Format host and port for messages."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or _PORT}"
