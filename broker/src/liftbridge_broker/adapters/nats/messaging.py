"""The port `Messaging` on two links: a quiet one (`no_echo`) and one that echoes."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from liftbridge_broker.adapters.nats.link import Link
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.ports.messaging import MessageSink, SubscriptionId
from liftbridge_broker.ports.observe import Observer

SUBSCRIBED_SECONDS_MAX: Final = 1.0


class NatsMessaging:
    """NATS as the node sees it (`ports.messaging.Messaging`).

    The owner calls `start`, runs `run` in a task group, and at the end `drain` and `close`. The
    sink is also notified of the link after the first connection. Subscription ids are not reused,
    or late messages of the first would be attributed to the second.

    Args:
        options: Checked here.
        sink: Receives messages, and the state of both links as one.
        observer: Is notified of transitions of each link.

    Attributes:
        inbox_prefix: Prefix, before a dot, of subjects that no other process knows.

    Raises:
        ConfigError: The options contradict each other.
    """

    def __init__(self, options: NatsOptions, sink: MessageSink, observer: Observer) -> None:
        options.check()
        self._sink = sink
        self._backlog_bytes_max = options.pending_bytes_max
        self._is_connected = False
        self._is_closing = False
        self._telling: set[asyncio.Task[None]] = set()
        self.inbox_prefix = f"{options.inbox_prefix}.{secrets.token_hex(11)}"
        self.quiet = Link(
            options,
            "quiet",
            no_echo=True,
            deliver=sink.on_messages,
            on_change=self._on_change,
            observer=observer,
        )
        self.echo = Link(
            options,
            "echo",
            no_echo=False,
            deliver=sink.on_messages,
            on_change=self._on_change,
            observer=observer,
        )

    async def start(self) -> None:
        """Establish both connections.

        Raises:
            UnavailableError: NATS cannot be reached; no connection is left open.
        """
        try:
            await self.quiet.start()
            await self.echo.start()
        except BaseException:
            await self.close()
            raise

    async def run(self) -> None:
        """Keep both connections up until `close`.

        Raises:
            ExceptionGroup: The sink raised: a bug, after which the process must not continue.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.quiet.run())
            tasks.create_task(self.echo.run())

    async def drain(self) -> None:
        """End all subscriptions after delivering what the server had sent for them."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.quiet.drain())
            tasks.create_task(self.echo.drain())

    async def close(self) -> None:
        """Send waiting output and end both connections and `run`; bounded by deadlines."""
        self._is_closing = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.quiet.close())
                tasks.create_task(self.echo.close())
        finally:
            self._is_connected = False

    @property
    def is_connected(self) -> bool:
        """Whether both connections are up."""
        return self._is_connected

    @property
    def payload_bytes_max(self) -> int:
        """`max_payload` of the NATS server, 1 MiB until the first connection."""
        return min(self.quiet.payload_bytes_max, self.echo.payload_bytes_max)

    @property
    def backlog_bytes(self) -> int:
        """Bytes published on the quiet link that the NATS server has not read yet."""
        return self.quiet.pending_bytes

    def set_pending_bytes_max(self, bytes_max: int) -> None:
        """Set the bound of bytes published and not yet taken by the socket, on both links."""
        self._backlog_bytes_max = bytes_max
        self.quiet.set_pending_bytes_max(bytes_max)
        self.echo.set_pending_bytes_max(bytes_max)

    @property
    def received_count(self) -> int:
        """Messages received since the start."""
        return self.quiet.counts.messages_in + self.echo.counts.messages_in

    @property
    def wide_count(self) -> int:
        """Messages dropped since the start because they had too many headers."""
        return self.quiet.counts.messages_wide + self.echo.counts.messages_wide

    @property
    def backlog_bytes_max(self) -> int:
        """Backlog above which publishing is refused."""
        return self._backlog_bytes_max

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Start delivery of a subject; one with a queue group uses the echoing link."""
        (self.echo if queue else self.quiet).subscribe(subscription, subject, queue)

    def when_subscribed(self, done: Callable[[], None]) -> None:
        """Call `done` once the server knows every subscription made so far; bounded."""
        task = asyncio.get_running_loop().create_task(self._tell_subscribed(done))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_subscribed(self, done: Callable[[], None]) -> None:
        with contextlib.suppress(UnavailableError, TimeoutError):
            async with asyncio.timeout(SUBSCRIBED_SECONDS_MAX):
                await self.flushed()
        try:
            done()
        except Exception as error:  # noqa: BLE001 - nobody awaits this task; `run` is to fail
            self.quiet.on_fault(error)

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """End delivery."""
        self.quiet.unsubscribe(subscription)
        self.echo.unsubscribe(subscription)

    def publish_quiet(self, frames: Sequence[bytes]) -> None:
        """Write frames on the quiet link.

        Raises:
            UnavailableError: The link is down or busy; nothing was written.
        """
        self.quiet.publish(frames)

    def publish_echo(self, frames: Sequence[bytes]) -> None:
        """Write frames on the echoing link.

        Raises:
            UnavailableError: The link is down or busy; nothing was written.
        """
        self.echo.publish(frames)

    async def flushed(self) -> None:
        """Wait until the server has read everything requested and published so far.

        Afterwards a subscription receives every new message: a newly created stream is announced
        only then, or messages published at once would be lost.

        Raises:
            UnavailableError: A link is down or went down meanwhile.
        """
        await self.quiet.flushed()
        await self.echo.flushed()

    def _on_change(self, reason: str) -> None:
        """Notify the sink when both links are up, and when the first of them goes down."""
        is_connected = self.quiet.is_up and self.echo.is_up
        if is_connected != self._is_connected and not self._is_closing:
            self._is_connected = is_connected
            self._sink.on_link(connected=is_connected, reason=reason)
