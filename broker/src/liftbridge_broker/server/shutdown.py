"""Deadlines of a shutdown: each step has its own, all of them share one, and a signal ends both."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Steps:
    """Runs the steps of a shutdown one after the other.

    Attributes:
        deadline: Event loop time in seconds at which no step may run any longer.
        hurry: Set by a second signal: steps are given up from then on.
        on_timed_out: Told the name of each step that was given up.
    """

    deadline: float
    hurry: asyncio.Event
    on_timed_out: Callable[[str], None]

    @property
    def seconds_left(self) -> float:
        """Time until the deadline; 0 after it and once somebody is in a hurry."""
        if self.hurry.is_set():
            return 0.0
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    async def run(self, name: str, step: Coroutine[object, object, object]) -> bool:
        """Run a step until it ends, the deadline comes or somebody is in a hurry.

        A step that was given up is cancelled. Its own errors are raised.

        Returns:
            Whether it ended by itself.
        """
        loop = asyncio.get_running_loop()
        working, hurrying = loop.create_task(step), loop.create_task(self.hurry.wait())
        try:
            # Also without time left a step gets one turn: many need no more.
            await asyncio.wait(
                (working, hurrying),
                timeout=max(0.05, self.seconds_left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if hurrying.done() and not working.done():
                await asyncio.wait((working,), timeout=0.05)
        finally:
            hurrying.cancel()
        if working.done():
            working.result()
            return True
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        self.on_timed_out(name)
        return False
