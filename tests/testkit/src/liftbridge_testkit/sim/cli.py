"""`python -m liftbridge_testkit.sim`: run ranges of seeds in two processes, or one seed again.

Exit code 0: nothing broke and every floor was reached; 1: a seed broke something; 2: a floor was
missed, so the range proves less than it should.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter

from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.floors import floors_for
from liftbridge_testkit.sim.seeds import WORLDS, SeedResult, run_seed, seed_range
from liftbridge_testkit.sim.total import Sum

WORKERS = 2
CHUNK = 10
PROGRESS_SECONDS = 10.0
FAILURES_SHOWN = 5


def run_chunk(seeds: Sequence[int], kind: str) -> list[SeedResult]:
    """Run some seeds, one after the other, in a worker."""
    return [run_seed(seed, kind) for seed in seeds]


def run_all(seeds: range, kind: str, workers: int) -> Iterator[SeedResult]:
    """Yield results as they arrive, from this number of processes.

    With 1, in this process and in order.
    """
    if workers == 1:
        for seed in seeds:
            yield run_seed(seed, kind)
        return
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_chunk, chunk, kind) for chunk in chunks]
        for future in as_completed(futures):
            yield from future.result()


def run_range(seeds: range, kind: str, workers: int, *, is_quiet: bool) -> tuple[Sum, float]:
    """Run a range and report progress. Return the totals and the duration."""
    total = Sum()
    began = told = perf_counter()
    for result in run_all(seeds, kind, workers):
        total.add(result)
        if result.failure and not is_quiet and len(total.failures) <= FAILURES_SHOWN:
            sys.stdout.write(result.failure + "\n")
        now = perf_counter()
        if now - told > PROGRESS_SECONDS and not is_quiet:
            told = now
            sys.stdout.write(total.line(now - began) + "\n")
            sys.stdout.flush()
    return total, perf_counter() - began


def report(total: Sum, seconds: float, floors: Mapping[tuple[str, str], int]) -> None:
    """Print the result of a range for people."""
    sys.stdout.write("\n".join(total.lines(seconds, floors)) + "\n")


def as_json(total: Sum, seconds: float, floors: Mapping[tuple[str, str], int]) -> str:
    """Return the result as JSON for programs."""
    coverage: dict[str, dict[str, int]] = {}
    for (group, name), times in sorted(total.coverage.counts.items()):
        coverage.setdefault(group, {})[name] = times
    return json.dumps(
        {
            "seeds": total.seeds,
            "by_kind": total.by_kind,
            "events": total.events,
            "virtual_hours": total.virtual_ns / SECOND_NS / 3_600,
            "seconds": seconds,
            "events_per_core_second": total.events / max(total.busy_seconds, 1e-9),
            "coverage": coverage,
            "below_floor": total.coverage.below(floors),
            "failures": [
                {"seed": failure.seed, "world": failure.kind, "failure": failure.failure}
                for failure in total.failures
            ],
        },
        indent=2,
    )


def replay(seed: int, kind: str, *, is_verbose: bool) -> int:
    """Run one seed again and print its trace to standard output."""
    result = run_seed(seed, kind, sys.stdout if is_verbose else None)
    sys.stdout.write(
        f"{result.failure or 'nothing broke'}\nseed {seed} ({result.kind}): "
        f"{result.events} events, trace hash {result.trace_hash}\n"
    )
    return 1 if result.failure else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m liftbridge_testkit.sim", description="Simulate brokers, by seeds."
    )
    parser.add_argument("--seeds", type=seed_range, default=range(100), help="a:b")
    parser.add_argument("--world", choices=sorted(WORLDS), default="", help="one kind only")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one seed again")
    parser.add_argument("--verbose", action="store_true", help="with --replay: the whole trace")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.replay, options.world, is_verbose=options.verbose)
    is_json = options.output == "json"
    total, seconds = run_range(options.seeds, options.world, options.workers, is_quiet=is_json)
    floors = floors_for(total.by_kind)
    if is_json:
        sys.stdout.write(as_json(total, seconds, floors) + "\n")
    else:
        report(total, seconds, floors)
    if total.failures:
        return 1
    return 2 if total.coverage.below(floors) else 0
