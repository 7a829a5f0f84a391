"""Readers of a partition: its subscriptions, and the calls that wait for its next records."""

from collections.abc import Callable

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.node.partition.roles import Subscriber


class Readers:
    """Subscriptions of a partition, and one wake-up for each reader that waits.

    Attributes:
        subscribers: Its subscriptions, oldest first.
    """

    __slots__ = ("_waiting", "subscribers")

    def __init__(self) -> None:
        self.subscribers: dict[Subscriber, None] = {}
        self._waiting: dict[Callable[[], None], None] = {}

    def attach(self, subscriber: Subscriber) -> None:
        """Register a subscription, to be notified when the partition closes."""
        self.subscribers[subscriber] = None

    def detach(self, subscriber: Subscriber) -> None:
        """Remove a subscription."""
        del self.subscribers[subscriber]

    def wait_for_data(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the high watermark moves or the partition's flags change."""
        self._waiting[wake] = None

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        """Remove a waiting reader; no-op when it does not wait."""
        self._waiting.pop(wake, None)

    def wake(self) -> None:
        """Wake the readers that wait."""
        if self._waiting:
            waiting = list(self._waiting)
            self._waiting.clear()
            for wake in waiting:
                wake()

    def end(self, error: LiftbridgeError, *, stays: bool = False) -> None:
        """End subscriptions; with `stays`, those that read any replica continue."""
        for subscriber in list(self.subscribers):
            if not (stays and subscriber.reads_replica):
                subscriber.on_closed(error)
