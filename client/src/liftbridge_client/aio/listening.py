"""Delivery of events to listeners; without a listener, nothing is queued."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from liftbridge_client.events import (
    EVENTS_KEPT_MAX,
    Event,
    EventsLost,
    SlowAcks,
    SlowCall,
)


class Events:
    """Events of one client for one listener, to iterate with `async for`.

    Queues events from its creation on; ends when the client is closed, or with `aclose`.
    """

    def __init__(self, slow_seconds: float, on_closed: Callable[["Events"], None]) -> None:
        self.slow_seconds = slow_seconds
        self._on_closed = on_closed
        self._kept: deque[Event] = deque()
        self._lost_count = 0
        self._has_news = asyncio.Event()
        self._is_open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._lost_count:
                lost, self._lost_count = self._lost_count, 0
                return EventsLost(lost)
            if self._kept:
                return self._kept.popleft()
            if not self._is_open:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()

    async def aclose(self) -> None:
        """Stop listening; queued events can still be read."""
        self.end()
        self._on_closed(self)

    def put(self, event: Event) -> None:
        """Queue an event; beyond the bound, the oldest one is dropped."""
        if isinstance(event, SlowCall | SlowAcks) and event.seconds < self.slow_seconds:
            return
        if len(self._kept) == EVENTS_KEPT_MAX:
            self._kept.popleft()
            self._lost_count += 1
        self._kept.append(event)
        self._has_news.set()

    def end(self) -> None:
        """End the iteration after the queued events."""
        self._is_open = False
        self._has_news.set()


class Hub:
    """Delivers events to all listeners of a client."""

    def __init__(self) -> None:
        self._listeners: list[Events] = []

    @property
    def has_listeners(self) -> bool:
        """Return whether there is a listener."""
        return bool(self._listeners)

    @property
    def slow_seconds(self) -> float:
        """Shortest `slow_after` of all listeners; 0 without a listener."""
        return min((events.slow_seconds for events in self._listeners), default=0.0)

    def listen(self, slow_seconds: float) -> Events:
        """Add a listener."""
        events = Events(slow_seconds, self._forget)
        self._listeners.append(events)
        return events

    def emit(self, event: Event) -> None:
        """Deliver an event to all listeners."""
        for events in self._listeners:
            events.put(event)

    def close(self) -> None:
        """End all listeners when the client is closed."""
        listeners, self._listeners = self._listeners, []
        for events in listeners:
            events.end()

    def _forget(self, events: Events) -> None:
        if events in self._listeners:
            self._listeners.remove(events)
