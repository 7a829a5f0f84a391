"""The port `Transport` on two separate links: metadata on one, bulk on the other.

A broker listens on `_LIFTBRIDGE.<namespace>.b.<broker>.meta` and `.data`, and on the subject of all
brokers. Both links echo: a message to all brokers also reaches its sender, so that a single broker
finds itself.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

from liftbridge_broker.adapters.nats.link import Link
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.nats.pacing import PEER_WEIGHT, TurnBudget
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.wire.nats import CRLF, NO_RESPONDERS, publish_head

_OWN: Final = SubscriptionId(1)
_ALL: Final = SubscriptionId(2)
_NO_RESPONDERS: Final = SubscriptionId(3)

TakePeerMessage = Callable[[Channel, bytes], None]
TakeNoResponders = Callable[[BrokerId, Channel, Instant], None]


def peer_subject(namespace: str, broker: BrokerId, channel: Channel) -> str:
    """Return the subject on which a broker, or all brokers, receive messages of a channel."""
    return internal_subject(namespace, "b", broker, channel.value)


class NatsTransport:
    """Messages between brokers over NATS (`ports.transport.Transport`).

    The owner calls `start`, runs `run` in a task group, and at the end `close`.

    Args:
        options: Checked by the owner.
        take: Receives each payload sent to this broker or to all brokers, with its channel.
        take_no_responders: Receives each probe to which nobody listens: its broker, channel and
            time.
        on_change: Called after a link went down, and after one came back.
        observer: Receives transitions of each link.

    Attributes:
        dropped_count: Messages that could not be sent because a link was down or too slow.
    """

    def __init__(
        self,
        options: NatsOptions,
        take: TakePeerMessage,
        take_no_responders: TakeNoResponders,
        on_change: Callable[[], None],
        observer: Observer,
    ) -> None:
        self._namespace = options.namespace
        self._own = BrokerId(options.server_id)
        # Nobody else knows the subject: NATS allows brokers alone to listen below the root.
        self._inbox = internal_subject(options.namespace, "none", secrets.token_hex(11)) + "."
        self.dropped_count = 0
        budget = TurnBudget()
        self._links = {
            channel: Link(
                options,
                channel.value,
                no_echo=False,
                deliver=_delivery(channel, take, take_no_responders, len(self._inbox)),
                budget=budget,
                on_change=lambda _reason: on_change(),
                observer=observer,
                plain_weight=PEER_WEIGHT,
            )
            for channel in Channel
        }

    async def start(self) -> None:
        """Establish both connections and listen.

        Raises:
            UnavailableError: NATS cannot be reached; no connection is left open.
        """
        try:
            for channel, link in self._links.items():
                link.subscribe(_OWN, self._subject(self._own, channel), "")
                link.subscribe(_NO_RESPONDERS, self._inbox + ">", "")
                if channel is Channel.METADATA:
                    link.subscribe(_ALL, self._subject(EVERYONE, channel), "")
                await link.start()
        except BaseException:
            await self.close()
            raise

    async def run(self) -> None:
        """Keep both connections up until `close`.

        Raises:
            ExceptionGroup: The receiver raised: a bug, after which the process must not continue.
        """
        async with asyncio.TaskGroup() as tasks:
            for link in self._links.values():
                tasks.create_task(link.run())

    async def close(self) -> None:
        """Send waiting output and end both connections and `run`; bounded by deadlines."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links.values():
                tasks.create_task(link.close())

    @property
    def is_connected(self) -> bool:
        """Return whether both connections are up."""
        return all(link.is_up for link in self._links.values())

    @property
    def payload_bytes_max(self) -> int:
        """`max_payload` of the NATS server, 1 MiB until the first connection."""
        return min(link.payload_bytes_max for link in self._links.values())

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Send at most once; a payload that the link refuses is counted and lost.

        While the link of the channel is down, another one carries it: under full load it takes up
        to half a second to restore one link, and a metadata leader must be heard meanwhile.
        """
        head = publish_head(self._subject(broker, channel).encode(), len(payload))
        link = self._links[channel]
        if not link.is_up:
            link = next((other for other in self._links.values() if other.is_up), link)
        try:
            link.publish((head, payload, CRLF))
        except UnavailableError:
            self.dropped_count += 1

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Send an empty message whose reply subject names the broker and the time."""
        reply = f"{self._inbox}{broker}.{sent_at}".encode()
        head = publish_head(self._subject(broker, channel).encode(), 0, reply)
        with contextlib.suppress(UnavailableError):
            self._links[channel].publish((head, CRLF))

    def _subject(self, broker: BrokerId, channel: Channel) -> str:
        return peer_subject(self._namespace, broker, channel)


def _delivery(
    channel: Channel,
    take: TakePeerMessage,
    take_no_responders: TakeNoResponders,
    inbox_length: int,
) -> Callable[[SubscriptionId, list[Arrival], list[bytes]], None]:
    def deliver(
        subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        if subscription == _NO_RESPONDERS:
            for subject, _, headers in arrivals:
                broker, _, sent_at = subject[inbox_length:].rpartition(".")
                if headers.startswith(NO_RESPONDERS) and sent_at.isdecimal():
                    take_no_responders(BrokerId(broker), channel, Instant(int(sent_at[:20])))
            return
        for payload in payloads:
            if payload:  # a probe is empty
                take(channel, payload)

    return deliver
