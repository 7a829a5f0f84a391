"""Runs in which the metadata log reports failure for commands that it applies all the same.

The sender knows only that the outcome is unknown (L6). A leader that reverts its in-sync set change
then counts without a member that is in the set.
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
    """Answers some commands with a failure of the log, before or after applying them."""

    def __init__(self, seed: int) -> None:
        """Create the world like other worlds, with a separate random generator for the failures."""
        self._doubt = Random(f"doubt {seed}")
        self._chance = self._doubt.choice(CHANCES)
        super().__init__(seed)

    def ask(self, process: Process, command: Command, then: Callable[[object], None]) -> None:
        """Send a command to the controller; the answer may be a failure of its log."""
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
