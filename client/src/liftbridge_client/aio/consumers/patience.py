"""How long a part of a consumer goes on although its calls fail."""

import asyncio
from typing import Final

from liftbridge_client.errors import LiftbridgeError, RetriableError, ServerError

WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0


class Patience:
    """Tells how long to pause after an error, or that it is for the application.

    A consumer waits for brokers as long as it takes. An internal error of a broker may pass as
    well, such as during an election, and is final when it lasts.
    """

    def __init__(self, seconds: float, *passing: type[LiftbridgeError]) -> None:
        """Start without a failure.

        Args:
            seconds: How long internal errors of brokers may last.
            passing: Further errors that may pass.
        """
        self._seconds = seconds
        self._passing: tuple[type[LiftbridgeError], ...] = (RetriableError, *passing)
        self._wait = WAIT_FIRST_SECONDS
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """Note a success."""
        self._wait = WAIT_FIRST_SECONDS
        self._failing_since = None

    def weigh(self, error: LiftbridgeError) -> float:
        """Return the seconds to pause after an error that may pass, or raise the error."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        is_recent = now - self._failing_since <= self._seconds
        if not isinstance(error, self._passing) and not (
            isinstance(error, ServerError) and is_recent
        ):
            raise error
        wait, self._wait = self._wait, min(2 * self._wait, WAIT_MAX_SECONDS)
        return wait
