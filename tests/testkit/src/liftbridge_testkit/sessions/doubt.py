"""Lives in which the metadata log fails commands that are applied all the same, and says so.

Whoever asked knows only that the outcome is not known (L6): a leader that takes its change of the
in-sync set back then counts without a member that is one.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from liftbridge_broker.controller.commands import Command
from liftbridge_broker.errors import InternalError
from liftbridge_testkit.sessions.life import SessionLife
from liftbridge_testkit.sessions.process import Process
from liftbridge_testkit.sessions.world import SessionWorld

CHANCES: Final = (0.05, 0.2)


class DoubtfulWorld(SessionWorld):
    """Answers some commands that it has with a failure of the log, before or after it applies."""

    def __init__(self, seed: int) -> None:
        """Create the world like other worlds, with a separate generator for the doubt."""
        self._doubt = Random(f"doubt {seed}")
        self._chance = self._doubt.choice(CHANCES)
        super().__init__(seed)

    def ask(self, process: Process, command: Command, then: Callable[[object], None]) -> None:
        """Send a command to the controller; its log may fail to tell what became of it."""
        if self._doubt.random() < self._chance:
            super().ask(process, command, _nobody)
            failure = InternalError("the metadata leader changed")
            self.counts["doubt"] += 1
            delay = self._doubt.randrange(2 * self.link_ns)
            self.after(delay, lambda: self._answered(process, failure, then))
        else:
            super().ask(process, command, then)


class DoubtfulLife(SessionLife):
    """A run of such a world."""

    def __init__(self, seed: int) -> None:
        """Start the world."""
        self.world = DoubtfulWorld(seed)
        self._rng = self.world.rng


def _nobody(_answer: object) -> None:
    """Ignore the answer."""
