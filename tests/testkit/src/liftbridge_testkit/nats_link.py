"""The broker's NATS adapter with recorders around it.

    async with linked(options) as (messaging, sink, observer):
        messaging.subscribe(SubscriptionId(1), "foo", "")
        await sink.until(lambda: sink.payloads(1) == [b"x"])

Tests wait for events, never for a time: `until` checks again after each event.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from liftbridge_broker.adapters.nats.messaging import NatsMessaging
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId

WAIT_SECONDS_MAX = 20.0
LINKS = {"quiet", "echo", "acks"}


class Recorder:
    """Wakes the tasks that wait for an event."""

    def __init__(self) -> None:
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Record an event."""
        self._told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; check it again after each event.

        Raises:
            TimeoutError: It did not hold within `WAIT_SECONDS_MAX`.
        """
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():
                self._told.clear()
                await self._told.wait()


class RecordingSink(Recorder):
    """Records deliveries.

    Attributes:
        deliveries: Calls of `on_messages`, in order.
        links: Calls of `on_link`, in order.
        on_delivery: Called after each delivery, to disturb the link from inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: list[tuple[SubscriptionId, list[Arrival], list[bytes]]] = []
        self.links: list[tuple[bool, str]] = []
        self.on_delivery: Callable[[], None] | None = None
        self.on_connected: Callable[[], None] | None = None

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Record messages."""
        self.deliveries.append((subscription, arrivals, payloads))
        self.tell()
        if self.on_delivery is not None:
            self.on_delivery()

    def on_link(self, *, connected: bool, reason: str) -> None:
        """Record the state of the link."""
        self.links.append((connected, reason))
        self.tell()
        if connected and self.on_connected is not None:
            self.on_connected()

    def payloads(self, subscription: int) -> list[bytes]:
        """Return all payloads of one subscription, in order."""
        return [
            payload
            for sid, _, payloads in self.deliveries
            if sid == subscription
            for payload in payloads
        ]

    def arrivals(self, subscription: int) -> list[Arrival]:
        """Return all arrivals of one subscription, in order."""
        return [a for sid, arrivals, _ in self.deliveries if sid == subscription for a in arrivals]


class RecordingObserver(Recorder):
    """Records transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions: list[tuple[str, dict[str, object]]] = []

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Record a transition."""
        self.transitions.append((kind, dict(fields)))
        self.tell()

    def of(self, kind: str) -> list[dict[str, object]]:
        """Return the fields of all transitions of a kind."""
        return [fields for found, fields in self.transitions if found == kind]

    async def until_links(self, kind: str) -> None:
        """Wait until each link of the adapter had a transition of a kind, once or more often."""
        await self.until(lambda: {fields["connection"] for fields in self.of(kind)} == LINKS)


@asynccontextmanager
async def linked(
    options: NatsOptions, sink: RecordingSink | None = None
) -> AsyncIterator[tuple[NatsMessaging, RecordingSink, RecordingObserver]]:
    """Yield a running adapter; close it at the end, which also ends its task."""
    sink, observer = sink or RecordingSink(), RecordingObserver()
    messaging = NatsMessaging(options, sink, observer)
    await messaging.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(messaging.run())
        try:
            yield messaging, sink, observer
        finally:
            await messaging.close()


def frame(subject: str, payload: bytes, reply: str = "") -> bytes:
    """Return a `PUB` frame."""
    to = f"{subject} {reply}" if reply else subject
    return f"PUB {to} {len(payload)}\r\n".encode() + payload + b"\r\n"
