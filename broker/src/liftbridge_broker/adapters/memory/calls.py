"""Calls by token (`submit_*` of the port `Files`) in memory."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from liftbridge_broker.adapters.memory.power import Power
from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import FileEvent, Token


class Submitted(NamedTuple):
    """A call, which raises `FilesError` if it fails, and the token of its event."""

    token: Token
    run: Callable[[], bytes]


class SubmittedCalls:
    """Calls that wait until the owner of the files calls `pump`, which runs them in order.

    Args:
        power: Without it no call runs.

    Attributes:
        waiting: Calls that have not run, in order.
        on_submitted: Called for each call, so that an owner can schedule a `pump`.
        is_stalled: While true no call ends: the device does not answer.
    """

    def __init__(self, power: Power) -> None:
        self._power = power
        self.waiting: deque[Submitted] = deque()
        self.on_submitted: Callable[[], None] = _nobody
        self.is_stalled = False

    def submit(self, token: Token, run: Callable[[], bytes]) -> None:
        """Add a call."""
        self.waiting.append(Submitted(token, run))
        self.on_submitted()

    def pump(self, limit: int | None = None) -> tuple[FileEvent, ...]:
        """Run calls in order, at most `limit`; their events belong to the caller."""
        events: deque[FileEvent] = deque()
        while self.waiting and not self.is_stalled and (limit is None or len(events) < limit):
            self._power.require()
            token, run = self.waiting.popleft()
            try:
                events.append(FileEvent(token, run()))
            except FilesError as error:
                events.append(FileEvent(token, error=error))
        return tuple(events)


def _nobody() -> None:
    """Ignore the submission: the caller of `pump` runs it."""
