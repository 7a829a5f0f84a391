"""Checks that a consumer group loses and doubles nothing while members and coordinators die.

Three brokers, 16 partitions, sessions of 2 s; members are processes that join, leave and are killed
by SIGKILL, as is the broker that coordinates. `python -m liftbridge_testkit.consumers --rounds 200`
counts messages that nobody read, members that read a partition at the same time, and how long
partitions were without an owner after the death of a member. With `--client go` the members use
the Go client, in a classic group.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.consumers.history import History
from liftbridge_testkit.consumers.members import OVERLAP_SECONDS_MAX, PROGRAMS
from liftbridge_testkit.consumers.rounds import CONFIG, PARTITIONS, Publisher, Rounds
from liftbridge_testkit.failover import percentile
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER_SECONDS_MAX: Final = 3.0
"""Time in which a partition of a dead member has another owner, with sessions of 2 s."""

FAULTS_SHOWN_MAX: Final = 20


def spread(seconds: Sequence[float]) -> str:
    """Median, 99th percentile and maximum."""
    some = seconds or [0.0]
    found = median(some), percentile(some, 0.99), max(some)
    return "p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s".format(*found)


def report(history: History, rounds: Rounds, kinds: Counter[str], seconds: float) -> str:
    """A Markdown table of what was counted."""
    overlaps = [one.seconds for one in history.overlaps()]
    stored = sum(history.ends.values())
    lines = [
        ["rounds", ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))],
        ["duration", f"{seconds:.0f} s"],
        ["messages acknowledged", str(stored)],
        ["of them not read", str(history.missing_count())],
        ["read again by a later owner", str(history.repeated_count())],
        ["broken promises", str(len(history.faults()))],
        ["partitions read by two members for a moment", f"{len(overlaps)}, {spread(overlaps)}"],
        ["members killed", str(len(rounds.assigned_seconds))],
        ["until the brokers gave away their partitions", spread(rounds.assigned_seconds)],
        ["partitions of killed members", str(len(rounds.owner_seconds))],
        ["until another member was given them", spread(rounds.given_seconds)],
        ["until another member read them", spread(rounds.owner_seconds)],
    ]
    return table(["what", "found"], lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and tell; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="consumers", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1, help="chooses what happens (1)")
    parser.add_argument("--client", choices=PROGRAMS, default="python", help="of members (python)")
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/consumers.json"))
    options = parser.parse_args(arguments)
    history = History(PARTITIONS, OVERLAP_SECONDS_MAX[options.client])
    kinds, about = Counter[str](), machine(0.0)
    work_dir = Path(tempfile.mkdtemp(prefix="consumers-"))
    began = monotonic()
    is_well = False
    try:
        program = PROGRAMS[options.client](work_dir)
        with ClusterKit(work_dir, config=CONFIG, has_proxies=False) as cluster:
            chance = random.Random(options.seed)
            rounds = Rounds(cluster, program, history, work_dir, chance)
            rounds.create()
            publisher = Publisher(rounds.servers, history)
            publisher.start()
            try:
                rounds.begin()
                for number in range(1, options.rounds + 1):
                    at = monotonic()
                    kind = rounds.draw()
                    rounds.play(kind)
                    kinds[kind] += 1
                    say(f"{number} of {options.rounds}: {kind}, {monotonic() - at:.2f} s")
                publisher.stop()
                rounds.end()
            finally:
                rounds.close()
        faults = history.faults()
        slowest = max(rounds.owner_seconds, default=0.0)
        is_well = not faults and not history.missing_count() and slowest < OWNER_SECONDS_MAX
        for fault in faults[:FAULTS_SHOWN_MAX]:
            say(fault)
        say(f"\n{report(history, rounds, kinds, monotonic() - began)}")
        options.output.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": about,
            "client": options.client,
            "seed": options.seed,
            "assigned_seconds": rounds.assigned_seconds,
            "given_seconds": rounds.given_seconds,
            "owner_seconds": rounds.owner_seconds,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    finally:
        if is_well:
            shutil.rmtree(work_dir)
        else:
            say(f"logs of brokers and members: {work_dir}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
