"""What a connection holds for its client, as the server counts it."""

from collections.abc import Callable

from liftbridge_broker.http2.connection import Connection


class HeldBytes:
    """Bytes that one connection holds; the server gets each change, the last at `release`.

    Attributes:
        received: Bytes of open calls, and of requests that are incomplete or wait for a slice.
        unsent: Bytes of answers that wait to be sent.
        unread: Received bytes that wait for a slice.
        in_transport: Bytes in the buffer of the socket while that is full.
    """

    __slots__ = ("_core", "_is_released", "_report", "in_transport", "received", "unread", "unsent")

    def __init__(self, core: Connection, report: Callable[[int, int], None]) -> None:
        """Start with nothing; `report` takes by how much `received` and `unsent` changed."""
        self._core = core
        self._report = report
        self._is_released = False
        self.received = self.unsent = 0
        self.unread = self.in_transport = 0

    def count(self) -> None:
        """Report changes; no-op once the connection is closed."""
        if self._is_released:
            return
        core = self._core
        received = core.stream_bytes + core.partial_bytes + self.unread
        unsent = core.queued_bytes + self.in_transport
        if received != self.received or unsent != self.unsent:
            more_received, more_unsent = received - self.received, unsent - self.unsent
            self.received, self.unsent = received, unsent
            self._report(more_received, more_unsent)

    def release(self) -> None:
        """Report that nothing is held any more."""
        self._is_released = True
        self._report(-self.received, -self.unsent)
        self.received = self.unsent = 0
