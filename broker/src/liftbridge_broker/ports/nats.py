"""Receiver of what a NATS server sends, once it is parsed."""

from typing import Protocol

from liftbridge_broker.ports.messaging import Arrival, SubscriptionId


class ProtocolHandler(Protocol):
    """Receives the parser's output, in the order of the byte stream.

    Within one chunk, messages are delivered one subscription after the other; a control line is
    delivered after all messages before it.
    """

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Messages of one subscription; the lists have one length and belong to the receiver."""
        ...

    def on_ping(self) -> None:
        """The server requests a `PONG`."""
        ...

    def on_pong(self) -> None:
        """Answer to the earliest unanswered `PING`."""
        ...

    def on_ok(self) -> None:
        """`+OK`, only sent in verbose mode."""
        ...

    def on_error(self, text: str) -> None:
        """`-ERR`; the text has no quotes."""
        ...

    def on_info(self, body: bytes) -> None:
        """`INFO` with its JSON body, unparsed."""
        ...
