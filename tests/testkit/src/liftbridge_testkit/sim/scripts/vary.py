"""Stories with random variations: other delays, and pauses between the steps of a script.

The expected output of a story holds only for its exact steps. In any order of events the invariants
must hold, all must recover in the end, and the histories must be valid. So steps that query are
left out, and steps that fail are skipped.

    python -m liftbridge_testkit.sim.scripts.vary 0:1000 [part of a name...]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.scripts.play import VERBS
from liftbridge_testkit.sim.scripts.script import read
from liftbridge_testkit.sim.scripts.stage import Stage

STORIES = ROOT / "tests/scenarios"
LOOKS = frozenset({"show", "expect", "answers", "asked", "trail"})
BEGINNING = frozenset({"cluster", "create"})
WAIT_NS = 6 * SECOND_NS
"""Time after which a step stops waiting."""


class Varied(NamedTuple):
    """Outcome of a story.

    Attributes:
        done: Number of successful steps.
        missed: Number of skipped steps.
    """

    done: int
    missed: tuple[str, ...]


def vary(text: str, seed: int) -> Varied:
    """Play a story once with the variations of a seed.

    Raises:
        BrokenInvariantError: A promise is broken.
        LivenessError: Not all recovered.
    """
    chance = Random(seed)
    stage = Stage(seed=seed, wait_ns=WAIT_NS)
    conditions = stage.world.network.conditions
    conditions.delay_ns_min = MILLISECOND_NS // chance.choice((1, 10))
    conditions.delay_ns_jitter = chance.choice((0, 1, 5, 20)) * MILLISECOND_NS
    pause_ns_max = chance.choice((2, 20, 300)) * MILLISECOND_NS
    done = 0
    missed: list[str] = []
    for step in read(text).steps.values():
        verb, *words = step.command.split()
        if verb in LOOKS:
            continue
        if verb not in BEGINNING and chance.random() < 0.5:
            stage.run_for(chance.randrange(1, pause_ns_max))
        if verb == "settle":
            _let_stop(stage)
        try:
            VERBS[verb](stage, words)
        except (AssertionError, KeyError, ValueError) as error:
            if isinstance(error, BrokenInvariantError) or verb == "settle":
                raise
            missed.append(step.command)
            if verb in BEGINNING:
                break
        else:
            done += 1
    return Varied(done, tuple(missed))


def _let_stop(stage: Stage) -> None:
    """Kill processes that a step asked to stop without waiting long enough."""
    for machine in stage.world.machines.values():
        if machine.is_running and machine.is_stopping:
            machine.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Vary stories for a range of seeds; return 1 after a failure."""
    parser = argparse.ArgumentParser(prog="python -m liftbridge_testkit.sim.scripts.vary")
    parser.add_argument("seeds", help="FIRST:END")
    parser.add_argument("stories", nargs="*", help="parts of their names; all when there is none")
    parser.add_argument("--folder", type=Path, default=STORIES, help="where they are")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    found = 0
    for path in _stories(options.folder, options.stories):
        text = path.read_text(encoding="utf-8")
        missed = 0
        for seed in range(int(first), int(end)):
            try:
                missed += len(vary(text, seed).missed)
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed is to be told
                found += 1
                sys.stdout.write(f"{path.name} {seed}: {type(error).__name__}: {error}\n")
        sys.stdout.write(f"{path.name}: {missed} steps did not come about\n")
        sys.stdout.flush()
    return 1 if found else 0


def _stories(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Return the files of stories with one of these in their names."""
    paths = sorted(folder.glob("*.txt"))
    return [path for path in paths if not parts or any(part in path.name for part in parts)]


if __name__ == "__main__":
    sys.exit(main())
