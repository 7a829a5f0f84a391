"""Blocking iterators: subscriptions and events."""

from collections.abc import Iterator
from typing import Self

from liftbridge_client.aio.listening import Events
from liftbridge_client.aio.subscription import Subscription
from liftbridge_client.errors import ClosedError
from liftbridge_client.events import Event
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import Message, Value
from liftbridge_client.sync.blocking import Blocking
from liftbridge_client.sync.portal import Portal


class SyncSubscription(Blocking[Subscription[Value]]):
    """Messages of one partition, iterated with `for`; blocks between batches."""

    @property
    def next_offset(self) -> int | None:
        """First offset not delivered yet; see `Subscription`."""
        return self._original.next_offset

    def __iter__(self) -> Iterator[Message[Value]]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[MessageBatch[Value]]:
        """Iterate over batches of messages, as they arrive; see `Subscription.batches`."""
        return self._iterate(self._original.batches())


class SyncEvents(Blocking[Events]):
    """Events of one client, iterated with `for`; blocks until the next event. See `Events`."""

    def __init__(self, portal: Portal, events: Events) -> None:
        super().__init__(portal, events)
        self._items = portal.drain(events)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._items)
        except ClosedError:  # the client was closed: ends the iteration, as in the asyncio client
            raise StopIteration from None

    def close(self) -> None:
        """Stop listening; see `Events.aclose`."""
        self._portal.end(self._original.aclose())
