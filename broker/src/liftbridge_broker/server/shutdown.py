"""Deadlines of a shutdown: for each step and for all steps; a second signal ends both."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Steps:
    """Runs the steps of a shutdown one after the other.

    Attributes:
        deadline: Event loop time, in seconds, at which all steps must have ended.
        hurry: Set by a second signal: from then on steps are cancelled.
        on_timed_out: Called with the name of each step that timed out.
    """

    deadline: float
    hurry: asyncio.Event
    on_timed_out: Callable[[str], None]

    @property
    def seconds_left(self) -> float:
        """Return the time until the deadline; 0 after it and once `hurry` is set."""
        if self.hurry.is_set():
            return 0.0
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    async def run(self, name: str, step: Coroutine[object, object, object]) -> bool:
        """Run a step until it ends, the deadline passes or `hurry` is set.

        A step that runs out of time is cancelled. Errors of a step are raised.

        Returns:
            Whether the step completed.
        """
        loop = asyncio.get_running_loop()
        working, hurrying = loop.create_task(step), loop.create_task(self.hurry.wait())
        try:
            # Even without time left, a step gets one turn: many steps need no more.
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
