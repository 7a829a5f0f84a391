"""Measure this broker beside NATS JetStream and say how they compare (`make bench`).

Runs the same work on both in turn, several rounds, alternating which comes first; prints a table
with ratios and targets and writes `.bench/results.json`. With `BENCH_PEER=/path/to/liftbridge` an
original server is measured the same way. Only one system runs at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from liftbridge_testkit.bench import report
from liftbridge_testkit.bench.beside import BesideResult, measure_beside
from liftbridge_testkit.bench.biglog import BigLogResult, measure_big_log
from liftbridge_testkit.bench.cluster import ClusterJetStream, ClusterLiftbridge
from liftbridge_testkit.bench.loadgen import LoadError, LoadGenerator, build
from liftbridge_testkit.bench.protection import ProtectionResult, measure_protection
from liftbridge_testkit.bench.rebalance import Group, RebalanceResult, measure_rebalance
from liftbridge_testkit.bench.rebalance_groups import KafkaGroup, LiftbridgeGroup
from liftbridge_testkit.bench.rows import CLUSTER_ROWS, ROWS, Row, Samples, works_for
from liftbridge_testkit.bench.streams import StreamsResult, measure_streams
from liftbridge_testkit.bench.systems import JetStream, Liftbridge, Sizes, System
from liftbridge_testkit.processes import ProcessError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/performance.md"
QUICK = Sizes(count=200_000, singles=10_000)


def main() -> int:
    """Run the benchmark; 0 when everything could be measured, whatever the figures."""
    options = parse()
    load_before = os.getloadavg()[0]
    sizes = QUICK if options.quick else Sizes()
    if options.count:
        sizes = Sizes(count=options.count, singles=max(options.count // 10, 1_000))
    every = CLUSTER_ROWS if options.cluster else ROWS
    rows = [row for row in every if not options.only or row.key in options.only]
    say(f"load generator: {(load := build(ROOT / 'tests/bench/loadgen', options.cache)).title}")
    samples: Samples = {}
    failures = 0
    with tempfile.TemporaryDirectory(prefix="liftbridge-bench-", dir=options.work_dir) as name:
        work_dir = Path(name)
        for number in range(options.rounds):
            for system in systems(load, work_dir, sizes, options, first=number):
                title = f"round {number + 1} of {options.rounds}"
                failures += run_system(system, rows, samples, title)
        streams = run_streams(load, work_dir, options)
        big_log = run_big_log(load, work_dir, options)
        beside = run_beside(load, work_dir, sizes, options)
        protection = run_protection(load, work_dir, sizes, options)
        rebalances = run_rebalances(work_dir, options)
    result = report.document(
        samples,
        sizes,
        options.rounds,
        load.title,
        streams,
        big_log,
        beside,
        protection,
        rebalances,
        load_before,
    )
    report.write(options.output, result)
    tables = report.markdown(samples, streams, big_log, beside, protection, rebalances, result)
    say(f"\n{tables}\nwritten: {options.output}")
    if options.docs:
        begin = report.CLUSTER_BEGIN if options.cluster else report.BEGIN
        end = report.CLUSTER_END if options.cluster else report.END
        report.replace_marked(PAGE, tables, begin_mark=begin, end_mark=end)
        say(f"written: {PAGE}")
    return 1 if failures else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    keys = [row.key for row in (*ROWS, *CLUSTER_ROWS)]
    parser.add_argument("--quick", action="store_true", help="small counts, one round")
    parser.add_argument(
        "--cluster", action="store_true", help="three brokers beside three nats-servers"
    )
    parser.add_argument("--rounds", type=int, help="rounds (3, or 1 with --quick)")
    parser.add_argument("--count", type=int, help="messages of the bulk works (1,000,000)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*keys, "streams", "big-log", "beside", "protection", "rebalance"],
        help="these rows only",
    )
    parser.add_argument("--systems", nargs="+", help="of jetstream, liftbridge, peer")
    parser.add_argument("-o", "--output", type=Path, help="results.json or cluster.json in .bench")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--work-dir", type=Path, help="where data is written (the system's /tmp)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help=argparse.SUPPRESS)
    parser.add_argument(
        "--peer",
        type=Path,
        default=os.environ.get("BENCH_PEER"),
        help="an original liftbridge server to measure too (BENCH_PEER)",
    )
    parser.add_argument("--kafka", type=Path, help="jars of a Kafka broker to rebalance groups of")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.peer = Path(options.peer) if options.peer else None
    name = "cluster.json" if options.cluster else "results.json"
    options.output = options.output or ROOT / ".bench" / name
    return options


def systems(
    load: LoadGenerator, work_dir: Path, sizes: Sizes, options: argparse.Namespace, *, first: int
) -> list[System]:
    """The systems of one round, in an order that rotates from round to round."""
    found: list[System] = (
        [ClusterJetStream(load, work_dir, sizes), ClusterLiftbridge(load, work_dir, sizes)]
        if options.cluster
        else [JetStream(load, work_dir, sizes), Liftbridge(load, work_dir, sizes)]
    )
    if options.peer:
        kind = ClusterLiftbridge if options.cluster else Liftbridge
        found.append(kind(load, work_dir, sizes, binary=options.peer))
    if options.systems:
        found = [system for system in found if system.name in options.systems]
    turn = first % max(len(found), 1)
    return found[turn:] + found[:turn]


def run_system(system: System, rows: list[Row], samples: Samples, title: str) -> int:
    """Do all works of one system that the rows need; returns how many failed."""
    wanted = works_for(rows, system.name)
    if len(rows) in {len(ROWS), len(CLUSTER_ROWS)}:
        wanted |= set(system.works())  # the full table shows every work
    failures = 0
    try:
        with system:
            for work, act in system.works().items():
                if work not in wanted:
                    continue
                say(f"{title}: {system.name} {work} ...", end="")
                try:
                    sample = act()
                except (LoadError, ProcessError) as error:
                    say(f" FAILED: {error}")
                    failures += 1
                    continue
                samples.setdefault((system.name, work), []).append(sample)
                p50 = sample.value("p50_us")
                latency = f", p50 {p50:,.0f} us" if p50 else ""
                say(f" {sample.rate / 1e3:,.1f} k/s, {sample.cpu_us:.2f} us CPU{latency}")
    except ProcessError as error:
        say(f"{title}: {system.name} cannot run: {error}")
        failures += 1
    return failures


def run_streams(
    load: LoadGenerator, work_dir: Path, options: argparse.Namespace
) -> StreamsResult | None:
    """Measure a broker with many streams; None when it cannot run."""
    count, idle = (100, 3.0) if options.quick else (1_000, 20.0)
    if not wants(options, "streams"):
        return None
    say(f"{count:,} streams: creation, idle CPU, memory, start-up ...", end="")
    try:
        result = measure_streams(load, work_dir, count=count, idle_seconds=idle, rest=time.sleep)
    except (LoadError, ProcessError) as error:
        say(f" FAILED: {error}")
        return None
    say(f" created in {result.create_seconds:.1f} s")
    return result


def run_big_log(
    load: LoadGenerator, work_dir: Path, options: argparse.Namespace
) -> BigLogResult | None:
    """Measure start-up with a large log; None when it cannot run."""
    if not wants(options, "big-log"):
        return None
    gigabytes = 1.0 if options.quick else 10.0
    say(f"start-up with a log of {gigabytes:g} GB ...", end="")
    try:
        result = measure_big_log(load, work_dir, gigabytes=gigabytes)
    except (LoadError, ProcessError) as error:
        say(f" FAILED: {error}")
        return None
    say(f" written in {result.write_seconds:.0f} s")
    return result


def run_beside(
    load: LoadGenerator, work_dir: Path, sizes: Sizes, options: argparse.Namespace
) -> BesideResult | None:
    """Measure acks of a publisher beside a bulk read; None when it cannot run."""
    if not wants(options, "beside"):
        return None
    say("acks beside a bulk read ...", end="")
    singles = min(sizes.singles, 20_000)
    try:
        result = measure_beside(
            load, work_dir, count=sizes.count, singles=singles, rounds=options.rounds
        )
    except (LoadError, ProcessError) as error:
        say(f" FAILED: {error}")
        return None
    say(f" p99 {result.alone_p99_us:,.0f} us alone, {result.batches_p99_us:,.0f} us beside it")
    return result


def run_protection(
    load: LoadGenerator, work_dir: Path, sizes: Sizes, options: argparse.Namespace
) -> ProtectionResult | None:
    """Measure what access control, quotas and encryption cost; None when it cannot run."""
    if not wants(options, "protection"):
        return None
    say("access control with quotas, and encryption, beside an open broker ...", end="")
    try:
        result = measure_protection(load, work_dir, sizes, rounds=options.rounds)
    except (LoadError, ProcessError) as error:
        say(f" FAILED: {error}")
        return None
    say(f" {result.controlled_publish:.2f} and {result.encrypted_publish:.2f} times a publish")
    return result


def run_rebalances(work_dir: Path, options: argparse.Namespace) -> list[RebalanceResult]:
    """Measure what a member that joins and leaves stops, at each system that is there."""
    if not wants(options, "rebalance"):
        return []
    results: list[RebalanceResult] = []
    groups: list[Group] = [LiftbridgeGroup(work_dir)]
    if options.kafka:
        groups += [KafkaGroup(work_dir, options.kafka, one) for one in ("consumer", "classic")]
    for group in groups:
        say(f"rebalance of a group of {group.name} ...", end="")
        try:
            results.append(measure_rebalance(group))
        except (TimeoutError, ProcessError) as error:
            say(f" FAILED: {error}")
        else:
            say(f" {results[-1].kept_gap_ms:,.0f} ms without a message of partitions that stay")
    return results


def wants(options: argparse.Namespace, part: str) -> bool:
    """Whether a part that only our broker does is asked for."""
    if options.cluster or (options.systems and "liftbridge" not in options.systems):
        return False
    return not options.only or part in options.only


def say(text: str, end: str = "\n") -> None:
    """Show progress at once, also through a pipe."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
