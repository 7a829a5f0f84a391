"""`python -m liftbridge_testkit.operator_sim`.

Runs ranges of schedules, repeats one, or removes gates.

Exit code 0: nothing broke (with `--gates`: the loss of every gate is detected); 1: otherwise.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter

from liftbridge_testkit.operator_sim import gates
from liftbridge_testkit.operator_sim.seeds import SeedResult, Total, run_seed
from liftbridge_testkit.sim.seeds import seed_range

CHUNK = 20
FAILURES_SHOWN = 10


def _chunk(seeds: Sequence[int]) -> list[SeedResult]:
    return [run_seed(seed) for seed in seeds]


def run_all(seeds: range, workers: int) -> Iterator[SeedResult]:
    """Yield results as they arrive."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_chunk, chunk) for chunk in chunks]):
            yield from future.result()


def report(total: Total, seconds: float) -> str:
    """Format the outcome of a range."""
    rate = total.seeds / max(seconds, 1e-9)
    lines = [failure.failure for failure in total.failures[:FAILURES_SHOWN]]
    lines.append(
        f"{total.seeds:,} schedules, {total.steps:,} steps, {seconds:.0f} s, {rate:.1f} a second, "
        f"{len(total.failures)} broke something"
    )
    group_before = ""
    for (group, name), times in sorted(total.counts.items()):
        if group != group_before:
            lines.append(f"{group}:")
            group_before = group
        lines.append(f"  {name:32} {times:>9,}")
    return "\n".join(lines) + "\n"


def replay(seed: int, *, is_verbose: bool) -> int:
    """Run one schedule again, with its trace."""
    result = run_seed(seed, keeps_trace=True)
    if is_verbose:
        sys.stdout.write("\n".join(result.trace) + "\n")
    sys.stdout.write(f"{result.failure or 'nothing broke'}\ntrace hash {result.trace_hash}\n")
    return 1 if result.failure else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m liftbridge_testkit.operator_sim", description="Simulate the operator."
    )
    parser.add_argument("--seeds", type=seed_range, default=range(200), help="a:b")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule again")
    parser.add_argument("--verbose", action="store_true", help="with --replay: the whole trace")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--gates", nargs="*", metavar="NAME", help="remove each gate, or these, and see who notices"
    )
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.replay, is_verbose=options.verbose)
    if options.gates is not None:
        return gates.remove_each(options.gates, options.seeds, options.workers)
    total = Total()
    began = perf_counter()
    for result in run_all(options.seeds, options.workers):
        total.add(result)
    sys.stdout.write(report(total, perf_counter() - began))
    return 1 if total.failures else 0
