"""`python -m liftbridge_testkit.guards`: remove each guard in turn and show which tests fail.

First every guard with its scenario; then guards of class S with random seeds, and those of class D
together with their partners, a few seeds each and then more, so that what is noticed soon is known
soon. Exit code 0: all that ran was noticed; 1: a scenario, or all seeds asked for, passed without
its guard.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

from liftbridge_testkit.guards.listing import Guard, read_guards
from liftbridge_testkit.guards.results import PATH, Result, Results, Search, version_of_code
from liftbridge_testkit.guards.run import Reach, failure_of, search
from liftbridge_testkit.guards.stories import tell_stories

SEEDS: Final = 2_000
FIRST_SEEDS: Final = 40
GROWTH: Final = 3
WORLDS: Final = {
    "raft": 10,
    "logs": 10,
    "elections": 10,
    "archive": 10,
    "epochs": 10,
    "streams": 10,
    "groups": 10,
    "reports": 8,
    "resigned": 8,
    "unclean": 8,
    "compacted": 8,
    "cores": 5,
    "replicas": 5,
    "outages": 4,
    "sessions": 4,
    "doubts": 4,
    "group": 2,
    "lone": 1,
    "cluster": 1,
}
"""Kinds of worlds, and how many of their seeds are run for one of a cluster."""
GUARD_SECONDS: Final = 600.0


class Runner:
    """Goes through guards, keeps the results and prints them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._all = read_guards()
        self._results = Results(options.results, options.version or version_of_code())
        self._reach: dict[str, Reach] = {}
        self._lock = Lock()
        self._end: float = monotonic() + options.minutes * 60
        words = options.guards
        self.guards = [
            guard
            for guard in self._all.values()
            if not words or any(word in guard.name for word in words)
        ]

    def run(self) -> int:
        """Return scenarios, then seeds in rounds; the exit code."""
        if not self._options.seeds_only:
            self._each(self.guards, self._scenario)
        seeds = self._options.seeds
        limit = min(FIRST_SEEDS, seeds)
        while limit and not self._is_late() and any(map(self._is_open, self.guards)):
            for world, factor in WORLDS.items():
                self._look_at(world, min(limit * factor, seeds))
            if limit == seeds:
                break
            limit = min(limit * GROWTH, seeds)
        return self._report()

    def _each(self, guards: Iterable[Guard], act: Callable[[Guard], None]) -> None:
        """Do something with each guard, several at once, until time is over."""

        def act_in_time(guard: Guard) -> None:
            if not self._is_late():
                act(guard)

        with ThreadPoolExecutor(self._options.workers) as pool:
            for _ in pool.map(act_in_time, guards):
                pass

    def _is_late(self) -> bool:
        return monotonic() > self._end

    def _scenario(self, guard: Guard) -> None:
        with self._lock:
            result = self._results.of(guard)
        if result.scenario:
            return
        result.scenario = failure_of([guard], guard.scenario)
        verdict = "noticed" if result.scenario else "MISSED "
        self._tell(f"{verdict} {guard.kind} {guard.name:24} {guard.scenario}: {result.scenario}")
        self._save()

    def _look_at(self, world: str, limit: int) -> None:
        """Run seeds of a world below a limit for all guards that are still open."""
        due = [one for one in self.guards if world in one.worlds and self._is_open(one)]
        if due and not self._is_late():
            reach = self._reach.setdefault(world, Reach(world))
            reach.extend(limit, self._tell)
            self._each(due, partial(self._seeds, reach=reach, limit=limit))

    def _is_open(self, guard: Guard) -> bool:
        """Return whether seeds are to show that a guard is gone and did not yet."""
        is_for_seeds = guard.kind == "S" or guard.pair == "seeds"
        return is_for_seeds and self._results.of(guard).found is None

    def _seeds(self, guard: Guard, reach: Reach, limit: int) -> None:
        with self._lock:
            found = self._results.of(guard).seeds.setdefault(reach.world, Search())
        removed = [guard, *(self._all[name] for name in guard.partners)]
        search(removed, found, reach, limit, self._options.seconds)
        seed = "-" if found.seed is None else found.seed
        self._tell(
            f"{guard.kind} {' + '.join(one.name for one in removed):40} {reach.world} seed {seed} "
            f"of {found.limit}, {found.reached} with it at work: {found.failure}"
        )
        self._save()

    def _save(self) -> None:
        with self._lock:
            self._results.save(self._all)

    def _tell(self, line: str) -> None:
        stream = sys.stderr if self._options.output == "json" else sys.stdout
        stream.write(line.rstrip() + "\n")
        stream.flush()

    def _report(self) -> int:
        results = {guard: self._results.of(guard) for guard in self.guards}
        missed = [guard.name for guard, result in results.items() if not result.scenario]
        if self._options.seeds_only:
            missed.clear()
        unseen = [guard.name for guard in self.guards if self._is_open(guard)]
        if self._options.output == "json":
            said = {"missed": missed, "open": unseen if self._options.seeds else []}
            sys.stdout.write(json.dumps(said | {"guards": as_json(results.items())}) + "\n")
        else:
            self._tell(f"{len(results)} guards, {len(missed)} that their scenario misses: {missed}")
            if self._options.seeds:
                self._tell(f"{len(unseen)} that seeds do not show yet: {unseen}")
        return 1 if missed or (unseen and self._options.seeds) else 0


def as_json(results: Iterable[tuple[Guard, Result]]) -> dict[str, object]:
    """Return the results for programs."""
    return {
        guard.name: {
            "class": guard.kind,
            "scenario": result.scenario,
            "seeds": {world: asdict(search) for world, search in result.seeds.items()},
        }
        for guard, result in results
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m liftbridge_testkit.guards", description="Remove guards; see who notices."
    )
    parser.add_argument("guards", nargs="*", help="parts of names; all when there is none")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most; 0: scenarios only")
    parser.add_argument("--seeds-only", action="store_true", help="leave the scenarios out")
    parser.add_argument("--seconds", type=float, default=GUARD_SECONDS, help="a round of a guard")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing afterwards")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, default=PATH, help="file to go on with")
    parser.add_argument("--version", default="", help="name of the code in the results")
    parser.add_argument("--stories", action="store_true", help="tell which stories show a guard")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    runner = Runner(options)
    return tell_stories(runner.guards) if options.stories else runner.run()
