"""The port `Messaging` on three links: quiet (`no_echo`), echoing, and for acks."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from liftbridge_broker.adapters.nats.link import Link
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.nats.pacing import TurnBudget
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.subjects import INTERNAL_ROOT
from liftbridge_broker.ports.messaging import MessageSink, SubscriptionId
from liftbridge_broker.ports.observe import Observer

SUBSCRIBED_SECONDS_MAX: Final = 1.0


class NatsMessaging:
    """Implementation of `ports.messaging.Messaging` on NATS.

    The owner calls `start`, runs `run` in a task group, and at the end `drain` and `close`. The
    sink is also notified of the link after the first connection. Subscription ids are not reused;
    otherwise late messages of an ended subscription would be attributed to a new subscription.

    Args:
        options: Checked here.
        sink: Receives messages, and the combined state of all links.
        observer: Receives transitions of each link.

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
        self._reporting: set[asyncio.Task[None]] = set()
        self.inbox_prefix = f"{options.inbox_prefix}.{secrets.token_hex(11)}"

        def link(
            name: str, budget: TurnBudget, *, no_echo: bool = False, holds_frames: bool = False
        ) -> Link:
            return Link(
                options,
                name,
                no_echo=no_echo,
                deliver=sink.on_messages,
                budget=budget,
                on_change=self._on_change,
                observer=observer,
                holds_frames=holds_frames,
            )

        of_clients = TurnBudget()
        self.quiet = link("quiet", of_clients, no_echo=True, holds_frames=True)
        self.echo = link("echo", of_clients, holds_frames=True)
        self.acks = link("acks", TurnBudget())
        self._links = (self.quiet, self.echo, self.acks)

    async def start(self) -> None:
        """Establish all connections.

        Raises:
            UnavailableError: NATS cannot be reached; no connection is left open.
        """
        try:
            for link in self._links:
                await link.start()
        except BaseException:
            await self.close()
            raise

    async def run(self) -> None:
        """Keep all connections up until `close`.

        Raises:
            ExceptionGroup: The sink raised: a bug, after which the process must not continue.
        """
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.run())

    async def drain(self) -> None:
        """End all subscriptions after delivering all messages that the server sent for them."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.drain())

    async def close(self) -> None:
        """Send waiting output and end all connections and `run`; bounded by deadlines."""
        self._is_closing = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for link in self._links:
                    tasks.create_task(link.close())
        finally:
            self._is_connected = False

    @property
    def is_connected(self) -> bool:
        """Return whether all connections are up."""
        return self._is_connected

    @property
    def takes_frames(self) -> bool:
        """Return whether both publishing links are up, or were up until a moment ago."""
        return self.quiet.takes_frames and self.echo.takes_frames

    @property
    def payload_bytes_max(self) -> int:
        """`max_payload` of the NATS server, 1 MiB until the first connection."""
        return min(link.payload_bytes_max for link in self._links)

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
        return sum(link.counts.messages_in for link in self._links)

    @property
    def wide_count(self) -> int:
        """Messages dropped since the start because they had too many headers."""
        return sum(link.counts.messages_wide for link in self._links)

    @property
    def backlog_bytes_max(self) -> int:
        """Backlog above which publishing is refused."""
        return self._backlog_bytes_max

    def subscribe(self, subscription: SubscriptionId, subject: str, queue: str) -> None:
        """Start delivery of a subject.

        A subscription with a queue group uses the echoing link. A subscription of the cluster
        itself uses the link for acks, so that messages of clients can neither delay an ack nor
        break the link for acks.
        """
        if subject.startswith(INTERNAL_ROOT + "."):
            link = self.acks
        else:
            link = self.echo if queue else self.quiet
        link.subscribe(subscription, subject, queue)

    def when_subscribed(self, done: Callable[[], None]) -> None:
        """Call `done` once the server knows every subscription made so far; bounded."""
        task = asyncio.get_running_loop().create_task(self._report_subscribed(done))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report_subscribed(self, done: Callable[[], None]) -> None:
        with contextlib.suppress(UnavailableError, TimeoutError):
            async with asyncio.timeout(SUBSCRIBED_SECONDS_MAX):
                await self.flushed()
        try:
            done()
        except Exception as error:  # noqa: BLE001 - no code awaits this task; `run` fails
            self.quiet.on_fault(error)

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """End delivery."""
        for link in self._links:
            link.unsubscribe(subscription)

    def publish_quiet(self, frames: Sequence[bytes]) -> None:
        """Write frames on the quiet link.

        Raises:
            UnavailableError: The link stays down or is busy; nothing was written.
        """
        self.quiet.publish(frames)

    def publish_echo(self, frames: Sequence[bytes]) -> None:
        """Write frames on the echoing link.

        Raises:
            UnavailableError: The link stays down or is busy; nothing was written.
        """
        self.echo.publish(frames)

    async def flushed(self) -> None:
        """Wait until the server has read everything requested and published so far.

        Afterwards a subscription receives every new message: a newly created stream is announced
        only then; otherwise messages published immediately would be lost.

        Raises:
            UnavailableError: A link is down or went down during the call.
        """
        for link in self._links:
            await link.flushed()

    def _on_change(self, reason: str) -> None:
        """Notify the sink once all links are up, and when the first link goes down."""
        is_connected = all(link.is_up for link in self._links)
        if is_connected != self._is_connected and not self._is_closing:
            self._is_connected = is_connected
            self._sink.on_link(connected=is_connected, reason=reason)
