"""Prints what three brokers do for one replicated record: calls, messages and system calls.

    .venv/bin/python tests/bench/trace_one.py            # a table
    .venv/bin/python tests/bench/trace_one.py -o json    # the same for programs

It counts, and takes no times: the figures hold on any machine, a loaded one too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from liftbridge_testkit.bench.report import table
from liftbridge_testkit.counts.measuring import ROUNDS, TITLES, Work, measure


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each work ({ROUNDS})")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work_dir:
        found = measure(Path(work_dir), rounds=options.rounds, loop_count=10 * options.rounds)
    if options.output == "json":
        text = json.dumps({name: work._asdict() for name, work in found.items()}, indent=2)
    else:
        text = "\n\n".join(_table(name, work) for name, work in found.items())
    sys.stdout.write(text + "\n")
    return 0


def _table(name: str, work: Work) -> str:
    lines = [
        [title, f"{work.leader[title]:,.1f}", f"{work.follower[title]:,.1f}"] for title in TITLES
    ]
    return table([name, "leader", "follower"], lines)


if __name__ == "__main__":
    sys.exit(main())
