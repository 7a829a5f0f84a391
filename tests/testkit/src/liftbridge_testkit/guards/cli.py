"""`python -m liftbridge_testkit.guards`: remove each guard in turn and see who notices.

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
FIRST_SEEDS: Final = 60
GROWTH: Final = 3
GUARD_SECONDS: Final = 600.0


class Runner:
    """Goes through guards, keeps the results and tells of them."""

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
        """Scenarios, then seeds in rounds; the exit code."""
        if not self._options.seeds_only:
            self._each(self.guards, self._scenario)
        limit = min(FIRST_SEEDS, self._options.seeds)
        while limit:
            due = [guard for guard in self.guards if self._is_open(guard)]
            if not due or self._is_late():
                break
            for world in sorted({guard.world for guard in due}):
                reach = self._reach.setdefault(world, Reach(world))
                reach.extend(limit, self._tell)
                chosen = [guard for guard in due if guard.world == world]
                self._each(chosen, partial(self._seeds, limit=limit))
            if limit >= self._options.seeds:
                break
            limit = min(limit * GROWTH, self._options.seeds)
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

    def _searched(self, guard: Guard) -> tuple[Search, list[Guard]] | None:
        """What seeds have shown of a guard, and what is removed for it; `None`: not for seeds."""
        result = self._results.of(guard)
        if guard.kind == "S":
            return result.seeds, [guard]
        if guard.pair == "seeds":
            return result.pair, [guard, *(self._all[name] for name in guard.partners)]
        return None

    def _is_open(self, guard: Guard) -> bool:
        searched = self._searched(guard)
        return searched is not None and searched[0].seed is None

    def _seeds(self, guard: Guard, limit: int) -> None:
        with self._lock:
            searched = self._searched(guard)
        assert searched is not None
        found, removed = searched
        found.world = guard.world
        search(removed, found, self._reach[guard.world], limit, self._options.seconds)
        seed = "-" if found.seed is None else found.seed
        self._tell(
            f"{guard.kind} {' + '.join(one.name for one in removed):40} {found.world} seed {seed} "
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
    """Results for programs."""
    return {
        guard.name: {
            "class": guard.kind,
            "scenario": result.scenario,
            "seed": (result.seeds if guard.kind == "S" else result.pair).seed,
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
