"""Channels of a client, one for each address, with its TLS files as they are now.

A connection keeps the certificate that it began with. So when a file changes, the next call to
each address gets another channel. Running calls stay on the former one until they end, which a
broker sees to when the certificate of their connection ends.
"""

import asyncio
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

import grpc
import grpc.aio

from liftbridge_client.events import Connected, ConnectFailed, Disconnected, Event
from liftbridge_client.model import TlsFiles
from liftbridge_client.pem import Pem, PemFiles

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Limit for an attempt to connect, with TLS; a refused connection fails at once.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels of one process would otherwise share a failed connection, and one client would wait
    # because another could not connect.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
)

_Call = TypeVar("_Call")


class Listener(Protocol):
    """Receives events."""

    def put(self, event: Event) -> None:
        """Receive an event."""
        ...


class Announcer(Protocol):
    """Delivers events to all listeners."""

    @property
    def has_listeners(self) -> bool:
        """Return whether there is a listener."""
        ...

    def emit(self, event: Event) -> None:
        """Deliver an event to all listeners."""
        ...


class Watch:
    """Reports when the connection of a channel is established or lost.

    Attributes:
        is_up: Whether it is established.
        task: The task that watches.
    """

    def __init__(self, address: str, channel: grpc.aio.Channel, announcer: Announcer) -> None:
        self._address = address
        self._channel = channel
        self._announcer = announcer
        self._is_failure_told = False
        self.is_up = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        state = self._channel.get_state()
        while state is not grpc.ChannelConnectivity.SHUTDOWN:
            self._on_state(state)
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state()

    def _on_state(self, state: grpc.ChannelConnectivity) -> None:
        is_ready = state is grpc.ChannelConnectivity.READY
        if is_ready and not self.is_up:
            self._is_failure_told = False
            self._announcer.emit(Connected(self._address))
        elif self.is_up and not is_ready:
            self._announcer.emit(Disconnected(self._address))
        self.is_up = is_ready
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not self._is_failure_told:
            self._is_failure_told = True
            self._announcer.emit(ConnectFailed(self._address))

    def leave(self) -> None:
        """Stop watching, since another channel takes the place of this one."""
        self.task.cancel()
        if self.is_up:
            self._announcer.emit(Disconnected(self._address))


class Link:
    """A channel with its running calls.

    Attributes:
        channel: The channel.
        watch: Reports its connection; `None` while nobody listens.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.watch: Watch | None = None
        self._calls: WeakSet[Any] = WeakSet()

    def began(self, call: _Call) -> _Call:
        """Add a call, and return it."""
        self._calls.add(call)
        return call

    @property
    def is_idle(self) -> bool:
        """Return whether all calls have ended."""
        return all(call.done() for call in self._calls)


class Channels:
    """The channels of a client; not bound to a loop before the first one.

    From the first listener on, a task watches each channel. A channel of former files is closed
    once it has no calls, by the call that comes next; so there are no more of them than running
    calls.
    """

    def __init__(self, tls: TlsFiles | None, announcer: Announcer) -> None:
        """Store the arguments without I/O; `None` is plaintext."""
        self._files = None if tls is None else PemFiles(tls)
        self._name = "" if tls is None else tls.server_name
        self._announcer = announcer
        self._credentials: grpc.ChannelCredentials | None = None
        self._change_count = 0
        self._links: dict[str, Link] = {}
        self._former: list[Link] = []
        self._closing: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Read the TLS files.

        Raises:
            UsageError: A file cannot be read, or has the wrong content.
        """
        if self._files is not None:
            self._credentials = _credentials(self._files.read())

    async def close(self) -> None:
        """Close all channels and cancel running calls."""
        links, self._links = [*self._links.values(), *self._former], {}
        self._former = []
        tasks = [link.watch.task for link in links if link.watch is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.channel.close(None) for link in links), *self._closing)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the channels use TLS."""
        return self._credentials is not None

    def watch(self, listener: Listener) -> None:
        """Watch all channels, and report the existing connections to a new listener."""
        for address, link in self._links.items():
            if link.watch is None:
                link.watch = Watch(address, link.channel, self._announcer)
            elif link.watch.is_up:
                listener.put(Connected(address))

    def at(self, address: str) -> Link:
        """Return the channel for the next call to an address."""
        self.look()
        if self._former:
            self._close_idle()
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(self.made(address, self._name))
            if self._announcer.has_listeners:
                link.watch = Watch(address, link.channel, self._announcer)
        return link

    def look(self) -> int:
        """Read changed files; return how often they have changed so far."""
        changed = self._files.changed() if self._files is not None else None
        if changed is not None:
            self._credentials = _credentials(changed)
            self._change_count += 1
            self._leave()
        return self._change_count

    def made(self, target: str, name: str) -> grpc.aio.Channel:
        """Create a channel that is none of those here.

        The server's certificate must have `name`, or the target's name if `name` is empty.
        """
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, _OPTIONS)
        named = (("grpc.ssl_target_name_override", name),) if name else ()
        return grpc.aio.secure_channel(target, self._credentials, (*_OPTIONS, *named))

    def _leave(self) -> None:
        """Leave the channels of former files to the calls that they have."""
        for link in self._links.values():
            if link.watch is not None:
                link.watch.leave()
                link.watch = None
        self._former += self._links.values()
        self._links = {}

    def _close_idle(self) -> None:
        busy = [link for link in self._former if not link.is_idle]
        for link in self._former:
            if link not in busy:
                task = asyncio.get_running_loop().create_task(link.channel.close(None))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._former = busy


def _credentials(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
