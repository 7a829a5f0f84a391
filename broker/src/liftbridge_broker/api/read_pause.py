"""The pause of a reading call whose principal or stream has exceeded its quota."""

import asyncio
from collections.abc import Callable

from liftbridge_broker.access.quotas import Direction
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.quota_gate import LOOK_NS
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS


class ReadPause:
    """Pauses one call for a time, or until a larger quota allows it to read on."""

    def __init__(self, context: Context, call: Call) -> None:
        self._context = context
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether the call is paused."""
        return self._timer is not None

    def begin(self, stream: str, delay_ns: int, read_on: Callable[[], None]) -> None:
        """Pause the call, which reads a stream, for `delay_ns` nanoseconds at most.

        `read_on` is called at the end. Only the timer holds it: the call leaves no cycle of
        references to the garbage collector.
        """
        end = Instant(self._context.clock.now() + delay_ns)

        def look() -> None:
            self._timer = None
            principal = self._call.principal.name
            owed_ns = self._context.quotas.owed(principal, stream, Direction.READ)
            left_ns = min(end - self._context.clock.now(), owed_ns)
            if left_ns > 0:
                self._look_after(left_ns, look)
            else:
                read_on()

        self._look_after(delay_ns, look)

    def cancel(self) -> None:
        """End the pause without reading on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_after(self, delay_ns: int, look: Callable[[], None]) -> None:
        seconds = min(delay_ns, LOOK_NS) / SECOND_NS
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._context.in_turn(self._call, look))
