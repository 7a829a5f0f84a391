"""The pause of a partition, and the runs that wait for its end or for a leadership to begin."""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.controller.commands import ResumeStream
from liftbridge_broker.errors import LiftbridgeError, NotAppendedError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.runs import PublishRun

PARKED_BYTES_MAX: Final = 8 * MIB
"""Limit of the waiting runs of one partition, in bytes."""


class Pause:
    """Whether a partition is paused, and the runs that are parked, in order of arrival.

    Each parked run is taken or refused once. The first one in a pause requests the resume.

    Attributes:
        is_paused: Whether it takes no messages, as the metadata say.
        is_auto: Whether it is paused because it was idle; then any message resumes it.
    """

    __slots__ = ("_bytes", "_context", "_refuse", "_resume", "_runs", "is_auto", "is_paused")

    def __init__(
        self,
        context: NodeContext,
        resume: ResumeStream,
        refuse: Callable[[PublishRun, LiftbridgeError], None],
    ) -> None:
        """Begin without a pause.

        Args:
            context: Proposes commands.
            resume: Command that resumes the partition.
            refuse: Refuses a run.
        """
        self.is_paused = self.is_auto = False
        self._context = context
        self._resume = resume
        self._refuse = refuse
        self._runs: list[PublishRun] = []
        self._bytes = 0

    def park(self, run: PublishRun, now: Instant) -> None:
        """Keep a run until it is taken; refuse it if too many bytes wait."""
        if self._bytes + run.size_bytes > PARKED_BYTES_MAX:
            text = f"not appended: more than {PARKED_BYTES_MAX} bytes wait for the resume"
            self._refuse(run, NotAppendedError(text))
            return
        self._runs.append(run)
        self._bytes += run.size_bytes
        if len(self._runs) == 1 and self.is_paused:
            self._context.propose(self._resume, now, self._answered)

    def _answered(self, outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            self.fail(outcome)

    def take(self) -> list[PublishRun]:
        """Remove and return all parked runs."""
        runs, self._runs, self._bytes = self._runs, [], 0
        return runs

    def fail(self, error: LiftbridgeError) -> None:
        """Refuse the parked runs: what they waited for did not happen."""
        for run in self.take():
            self._refuse(run, error)
