"""Starts processes without guards and tells what they noticed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from threading import Timer
from typing import Any, Final

from liftbridge_testkit.guards.listing import Guard
from liftbridge_testkit.guards.results import Search
from liftbridge_testkit.repository import ROOT

CHILD: Final = (sys.executable, "-m", "liftbridge_testkit.guards.child")
SCENARIO_SECONDS: Final = 180.0
"""Wall-clock limit of one scenario; twice the CPU time of a child."""

CHUNK: Final = 100
"""Seeds told of by one process."""


class ChildError(Exception):
    """A process without guards ended otherwise than by passing or failing what it was to run."""


def answers(order: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the lines of a child as they come; ends early, without an error, when its time is over.

    Raises:
        ChildError: The child ended by an error of its own.
    """
    command = [*CHILD, json.dumps(order)]
    with (
        TemporaryFile("w+", encoding="utf-8") as said,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True
        ) as child,
    ):
        assert child.stdout is not None
        timer = Timer(seconds, child.kill)
        timer.start()
        try:
            for line in child.stdout:
                yield json.loads(line)
            if child.wait() > 0:
                said.seek(0)
                told = said.read()[-2_000:]
                raise ChildError(f"{order}: exit code {child.returncode}\n{told}")
        finally:
            timer.cancel()
            child.kill()


def failure_of(guards: Sequence[Guard], scenario: str) -> str:
    """Return the failure of a scenario without guards; empty when it passes.

    Raises:
        ChildError: It could not be run.
    """
    order = {"remove": [guard.name for guard in guards], "scenarios": [scenario]}
    for answer in answers(order, SCENARIO_SECONDS):
        return str(answer["failure"])
    return f"nothing within {SCENARIO_SECONDS:.0f} s"


@dataclass(slots=True)
class Reach:
    """Guards that act in the seeds of a world, with all guards in place.

    Seeds that fail by themselves reach nothing: what they show is not the work of a guard.
    """

    world: str
    by_seed: list[frozenset[str]] = field(default_factory=list)

    def extend(self, limit: int, tell: Callable[[str], None]) -> None:
        """Run the seeds below `limit` that were not run yet."""
        while len(self.by_seed) < limit:
            first = len(self.by_seed)
            seeds = list(range(first, min(limit, first + CHUNK)))
            order = {"tell": True, "world": self.world, "seeds": seeds}
            for answer in answers(order, seconds=60.0 * CHUNK):
                names = () if answer["failure"] else answer["reached"]
                self.by_seed.append(frozenset(names))
                if answer["failure"]:
                    tell(f"{self.world} {answer['seed']} fails by itself: {answer['failure']}")
            if len(self.by_seed) < seeds[-1] + 1:
                raise ChildError(f"{self.world}: seed {len(self.by_seed)} does not end")
            tell(f"{self.world}: {len(self.by_seed)} seeds with all guards")

    def seeds(self, names: set[str], first: int, end: int) -> list[int]:
        """Return the seeds in which one of these guards is at work."""
        return [seed for seed in range(first, end) if names & self.by_seed[seed]]


def search(
    guards: Sequence[Guard], found: Search, reach: Reach, limit: int, seconds: float
) -> None:
    """Run seeds without `guards` from where `found` ended, until one fails or time is over."""
    names = {guard.name for guard in guards}
    seeds = reach.seeds(names, found.limit, limit)
    order = {"remove": sorted(names), "world": reach.world, "seeds": seeds}
    done = 0
    for answer in answers(order, seconds) if seeds else ():
        done += 1
        found.reached += 1
        found.events += answer["events"]
        found.limit = answer["seed"] + 1
        if answer["failure"]:
            found.seed, found.failure = answer["seed"], answer["failure"]
            return
    if done == len(seeds):
        found.limit = max(found.limit, limit)
