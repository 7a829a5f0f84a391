"""Runs that wait for their partition to resume, or for its leadership to begin."""

from typing import Final

from liftbridge_broker.node.partition.runs import PublishRun

PARKED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit of the waiting runs of one partition, in bytes."""


class ParkedRuns:
    """Waiting runs of one partition, in order of arrival."""

    def __init__(self) -> None:
        """Begin without runs."""
        self._runs: list[PublishRun] = []
        self._bytes = 0

    def __len__(self) -> int:
        """Number of waiting runs."""
        return len(self._runs)

    def add(self, run: PublishRun) -> bool:
        """Add a run; return false if it would exceed the limit."""
        if self._bytes + run.size_bytes > PARKED_BYTES_MAX:
            return False
        self._runs.append(run)
        self._bytes += run.size_bytes
        return True

    def take(self) -> list[PublishRun]:
        """Remove and return all waiting runs."""
        runs, self._runs, self._bytes = self._runs, [], 0
        return runs
