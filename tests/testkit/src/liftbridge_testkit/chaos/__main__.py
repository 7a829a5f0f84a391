"""`python -m liftbridge_testkit.chaos --runs N --seed S`: runs one after the other, and JSON.

Exit code 1 when a promise was broken; the files of that run are kept then, and one command that
does it again is shown.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from liftbridge_testkit.chaos.faults import FAULTS
from liftbridge_testkit.chaos.runs import Run, RunOptions, RunResult
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the runs; 1 when a promise was broken."""
    options = parse(arguments)
    results: list[RunResult] = []
    document = summary(results, 0.0)
    began = monotonic()
    for number in range(options.runs):
        seed = options.seed + number
        # Every other run has five brokers, unless a size is asked for.
        size = options.size or (3, 5)[seed % 2]
        run = RunOptions(
            seed, size, options.seconds, options.acks, options.min_faults, options.faults
        )
        result = do(run, options.work_dir, is_loud=options.verbose)
        results.append(result)
        say(f"run {number + 1} of {options.runs}: {line(result)}")
        # After each run, so that one that is broken off leaves what is known.
        document = summary(results, monotonic() - began)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    say(f"{closing(document)}\nwritten: {options.output}")
    return 1 if any(result.violations for result in results) else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1, help="runs (1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first (1)")
    parser.add_argument("--size", type=int, help="brokers (3 and 5 in turn)")
    parser.add_argument("--seconds", type=float, default=20.0, help="load of a run (20)")
    parser.add_argument("--acks", type=int, default=20_000, help="acks of a run (20,000)")
    parser.add_argument("--min-faults", type=int, default=3, help="faults of a run (3)")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--work-dir", type=Path, help="where data is written (the system's /tmp)")
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/chaos.json"))
    parser.add_argument("-v", "--verbose", action="store_true", help="show every fault")
    return parser.parse_args(arguments)


def do(options: RunOptions, work_dir: Path | None, *, is_loud: bool) -> RunResult:
    """Do one run; its files are kept when a promise was broken."""
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{options.seed}-", dir=work_dir))
    result = Run(directory, options, tell=say if is_loud else _quiet).do()
    if not result.violations:
        shutil.rmtree(directory)
        return result
    for violation in result.violations:
        say(f"BROKEN {violation.promise}: {violation.text}")
    again = f"--seed {options.seed} --size {options.size} --seconds {options.seconds:g}"
    say(f"files: {directory}\nagain: python -m liftbridge_testkit.chaos {again} -v")
    return result


def line(result: RunResult) -> str:
    """Return a run in one line."""
    faults = counted(Counter(name for name, _ in result.faults))
    verdict = f"{len(result.violations)} BROKEN" if result.violations else "ok"
    return (
        f"{verdict}, seed {result.options.seed}, {result.options.size} brokers, "
        f"{result.acked:,} acked, {result.unknown:,} unknown, {result.refused:,} refused, "
        f"{result.elections} elections, {result.truncations} truncations, longest wait "
        f"{result.pause_seconds:.1f} s, {result.seconds:.0f} s; faults: {faults}"
        f"{'; errors told: ' if result.logged_errors else ''}{counted(result.logged_errors)}"
    )


def counted(counts: Mapping[str, int]) -> str:
    """Return names with how often each occurs, the most frequent first."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return ", ".join(f"{counts[name]} x {name}" for name in names)


def closing(document: Mapping[str, Mapping[str, object]]) -> str:
    """Return totals as lines."""
    totals = ", ".join(f"{name} {value}" for name, value in document["totals"].items())
    faults = ", ".join(f"{name} {value}" for name, value in document["faults"].items())
    return f"totals: {totals}\nfaults: {faults}"


def summary(results: Sequence[RunResult], seconds: float) -> dict[str, dict[str, object]]:
    """Return all of it as plain values."""
    faults = Counter(name for result in results for name, _ in result.faults)
    totals: dict[str, object] = {
        "runs": len(results),
        "broken": sum(bool(result.violations) for result in results),
        "acked": sum(result.acked for result in results),
        "unknown": sum(result.unknown for result in results),
        "refused": sum(result.refused for result in results),
        "elections": sum(result.elections for result in results),
        "truncations": sum(result.truncations for result in results),
        "faults": faults.total(),
        "sizes": dict(Counter(result.options.size for result in results)),
        "longest_wait_seconds": max((result.pause_seconds for result in results), default=0.0),
        "seconds": round(seconds),
    }
    runs: dict[str, object] = {str(result.options.seed): asdict(result) for result in results}
    return {"totals": totals, "faults": dict(faults.most_common()), "runs": runs}


def _quiet(_text: str) -> None:
    """Ignore progress texts."""


if __name__ == "__main__":
    sys.exit(main())
