"""Runs that wait until their partition resumes, or until its leadership begins."""

from typing import Final

from liftbridge_broker.node.runs import PublishRun

PARKED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of runs that wait for one partition."""


class ParkedRuns:
    """Those of one partition, in the order they came in."""

    def __init__(self) -> None:
        """Begin without any."""
        self._runs: list[PublishRun] = []
        self._bytes = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._runs)

    def add(self, run: PublishRun) -> bool:
        """Have a run wait; false when there is no room for it."""
        if self._bytes + run.size_bytes > PARKED_BYTES_MAX:
            return False
        self._runs.append(run)
        self._bytes += run.size_bytes
        return True

    def take(self) -> list[PublishRun]:
        """All that wait; none does any more."""
        runs, self._runs, self._bytes = self._runs, [], 0
        return runs
