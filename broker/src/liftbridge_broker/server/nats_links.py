"""The links of a broker to NATS: what arrives on them, and what their loss means."""

import asyncio
from typing import TYPE_CHECKING

from liftbridge_broker.adapters.nats.embedded import EmbeddedNats
from liftbridge_broker.adapters.nats.messaging import NatsMessaging
from liftbridge_broker.adapters.nats.peers import NatsTransport
from liftbridge_broker.adapters.nats.probe import reachable_server
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.subjects import INTERNAL_ROOT
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.wiring import embedded_options, nats_options

if TYPE_CHECKING:
    from collections.abc import Callable


class NatsLinks:
    """Links for messages and to other brokers, and the embedded NATS server if there is one.

    The core gets what arrives, and learns when the links to other brokers are not all up. Once all
    links are up, it is notified of messages that may have been lost before.

    Args:
        options: Options of the broker.
        core: The broker, whose store is open.
        observer: Receives transitions of each link.

    Attributes:
        on_change: Called when the links for messages went down or came back.
        messaging: Links for messages of streams.
        transport: Links to other brokers.

    Raises:
        ConfigError: The options contradict each other, or a file cannot be read.
    """

    def __init__(self, options: BrokerOptions, core: Core, observer: Observer) -> None:
        own = embedded_options(options) if options.nats.is_embedded else None
        self._options = nats_options(options, BrokerId(core.me.broker), own)
        self._core = core
        self._observer = observer
        self.on_change: Callable[[], None] = _ignore
        self._has_lost_messages = True
        self._are_peer_links_up = False
        self._embedded = None if own is None else EmbeddedNats(own, observer)
        self.messaging = NatsMessaging(self._options, self, observer)
        self.transport = NatsTransport(
            self._options, core.on_peer, core.on_no_responders, self._on_peer_links, observer
        )

    async def join(self, tasks: asyncio.TaskGroup) -> None:
        """Start the embedded server, then establish all links and keep them up in `tasks`.

        Raises:
            UnavailableError: NATS cannot be reached.
        """
        if self._embedded is not None:
            await self._embedded.start()
            tasks.create_task(self._embedded.run())
        try:
            await self.messaging.start()
            await self.transport.start()
        except BaseException:
            await self.messaging.close()
            await self.stop_server()
            raise
        tasks.create_task(self.messaging.run())
        tasks.create_task(self.transport.run())
        tasks.create_task(self._probe_rights())

    async def close(self) -> None:
        """Send waiting output and end all links; bounded by deadlines."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.messaging.close())
            tasks.create_task(self.transport.close())

    async def stop_server(self) -> None:
        """Stop the embedded server, if there is one."""
        if self._embedded is not None:
            await self._embedded.stop()

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Implement `ports.messaging.MessageSink`."""
        core, clock = self._core, self._core.clock
        core.node.on_messages(subscription, arrivals, payloads, clock.now(), clock.wall_ns())

    def on_link(self, *, connected: bool, reason: str) -> None:
        """Implement `ports.messaging.MessageSink`; the link has already notified the observer."""
        del reason
        self.on_change()
        self._has_lost_messages = self._has_lost_messages or not connected
        self._report_lost_messages()

    def _on_peer_links(self) -> None:
        """Handle the loss or the return of a link to other brokers."""
        is_up = self.transport.is_connected
        if is_up != self._are_peer_links_up:
            self._are_peer_links_up = is_up
            self._core.on_peer_links(connected=is_up)
        self._report_lost_messages()

    def _report_lost_messages(self) -> None:
        """Notify all brokers of messages that may be lost, once all links are up."""
        is_up = self.messaging.is_connected and self._are_peer_links_up
        cluster = self._core.node.cluster if self._core.is_open else None
        if self._has_lost_messages and is_up and cluster is not None:
            self._has_lost_messages = False
            cluster.on_reconnected(self._core.clock.now())

    async def _probe_rights(self) -> None:
        """Warn when NATS permissions do not protect the subjects of the brokers."""
        server = await reachable_server(self._options)
        if server:
            fields = {"server": server, "subjects": f"{INTERNAL_ROOT}.>"}
            self._observer.transition("peer_subjects_reachable", fields)


def _ignore() -> None:
    """No-op: nobody waits for the links."""
