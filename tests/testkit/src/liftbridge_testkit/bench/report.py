"""Renders the results of the benchmark: tables for people and JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import textwrap
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from liftbridge_testkit.bench.beside import BOUNDS as BESIDE_BOUNDS
from liftbridge_testkit.bench.biglog import BOUNDS as BIG_LOG_BOUNDS
from liftbridge_testkit.bench.protection import BOUNDS as PROTECTION_BOUNDS
from liftbridge_testkit.bench.rebalance import BOUNDS as REBALANCE_BOUNDS
from liftbridge_testkit.bench.rows import CLUSTER_ROWS, ROWS, Outcome, Samples, figures, outcome
from liftbridge_testkit.bench.streams import BOUNDS as STREAMS_BOUNDS
from liftbridge_testkit.processes import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftbridge_testkit.bench.beside import BesideResult
    from liftbridge_testkit.bench.biglog import BigLogResult
    from liftbridge_testkit.bench.protection import ProtectionResult
    from liftbridge_testkit.bench.rebalance import RebalanceResult
    from liftbridge_testkit.bench.streams import Bound, StreamsResult
    from liftbridge_testkit.bench.systems import Sizes

BEGIN = "<!-- bench: begin -->"
END = "<!-- bench: end -->"
"""Between these `replace_marked` puts what was measured."""

CLUSTER_BEGIN = "<!-- bench-cluster: begin -->"
CLUSTER_END = "<!-- bench-cluster: end -->"
"""The same for three brokers."""

FSYNC = "shipped defaults: no system waits for fdatasync before an ack"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns also line up on a terminal."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]

    def join(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths))
    return "\n".join([join(header), rule + "|", *(join(line) for line in lines)])


def show(value: float, metric: str) -> str:
    """Return a figure with its unit: rates in thousands a second, times in microseconds."""
    if metric == "rate":
        return f"{value / 1e3:,.1f} k/s"
    return f"{value:,.2f} us" if value < 100 else f"{value:,.0f} us"


def comparison(samples: Samples) -> str:
    """Return the rows against their targets."""
    systems = [s for s in ("liftbridge", "peer") if any(system == s for system, _ in samples)]
    header = ["row", "JetStream"]
    for system in systems:
        header += [system, "ratio", "rounds"]
    header += ["target", "original", "met"]
    lines = []
    for found in outcomes(samples):
        row = found.row
        line = [row.title, show(found.reference, row.metric)]
        for system in systems:
            line += _cells(found, system)
        sign = ">=" if row.is_better == "more" else "<="
        aim = f" (aim {row.aim})" if row.aim else ""
        line += [f"{sign} {row.limit}{aim}", str(row.original or "-")]
        line.append(found.verdict("liftbridge"))
        lines.append(line)
    return table(header, lines)


def _cells(found: Outcome, system: str) -> list[str]:
    if system not in found.ratios:
        return ["-", "-", "-"]
    low, high = found.spread[system]
    value = show(found.medians[system], found.row.metric)
    return [value, f"{found.ratios[system]:.2f}", f"{low:.2f}-{high:.2f}"]


def bounds_table(title: str, result: object, bounds: Sequence[Bound]) -> str:
    """Return the figures of one broker against their limits."""
    lines = []
    for bound in bounds:
        value = float(getattr(result, bound.name))
        original = "-" if bound.original is None else f"{bound.original:g}"
        met = "yes" if value <= bound.limit else "NO"
        lines.append([bound.title, f"{value:.2f}", f"<= {bound.limit:g}", original, met])
    return table([title, "liftbridge", "target", "original", "met"], lines)


def outcomes(samples: Samples) -> list[Outcome]:
    """Return all rows that were measured."""
    return [found for row in (*ROWS, *CLUSTER_ROWS) if (found := outcome(row, samples)) is not None]


def everything(samples: Samples) -> str:
    """Return the medians of every work of every system, with latencies."""
    lines = []
    for system, work in samples:
        cells = [f"{system} {work}"]
        for metric in ("rate", "cpu_us", "p50_us", "p99_us", "p999_us"):
            values = figures(samples, system, work, metric)
            cells.append(show(median(values), metric) if values else "-")
        lines.append(cells)
    return table(["work", "rate", "server CPU", "p50", "p99", "p99.9"], lines)


def markdown(
    samples: Samples,
    streams: StreamsResult | None,
    big_log: BigLogResult | None,
    beside: BesideResult | None,
    protection: ProtectionResult | None,
    rebalances: Sequence[RebalanceResult],
    result: Mapping[str, object],
) -> str:
    """Return everything that was measured, and on what, as Markdown."""
    parts = []
    if samples:
        parts += [comparison(samples), everything(samples)]
    if streams is not None:
        parts.append(bounds_table(f"{streams.streams:,} streams", streams, STREAMS_BOUNDS))
    if big_log is not None:
        title = f"log of {big_log.log_bytes / 1e9:.1f} GB"
        parts.append(bounds_table(title, big_log, BIG_LOG_BOUNDS))
    if beside is not None:
        title = f"acks, {beside.alone_p99_us:,.0f} us p99 alone"
        parts.append(bounds_table(title, beside, BESIDE_BOUNDS))
    if protection is not None:
        title = f"time of a message, {1e6 / protection.open_publish_rate:.1f} us at an open broker"
        parts.append(bounds_table(title, protection, PROTECTION_BOUNDS))
    for rebalance in rebalances:
        title = (
            f"rebalance, {rebalance.system}: {rebalance.moved_count} partitions move within "
            f"{rebalance.moved_gap_ms:,.0f} ms"
        )
        parts.append(bounds_table(title, rebalance, REBALANCE_BOUNDS))
    if found := notes(samples):
        parts.append("\n".join(f"- {note}" for note in found))
    parts.append(_conditions(result))
    return "\n\n".join(parts) + "\n"


def _conditions(result: Mapping[str, object]) -> str:
    """Return machine, versions and sizes in one paragraph."""
    about, sizes = result["machine"], result["sizes"]
    assert isinstance(about, dict)
    assert isinstance(sizes, dict)
    text = (
        f"{about['time'][:10]}, {about['cores']} cores ({about['cpu']}), "
        f"{about['memory_gib']} GiB, Linux {about['kernel']}, Python {about['python']}, "
        f"uvloop {about['uvloop']}, protobuf {about['protobuf']}, {about['nats_server']}, "
        f"load generator {result['load_generator']}; {result['rounds']} rounds of "
        f"{sizes['count']:,} messages of {sizes['value_bytes']} bytes, {sizes['singles']:,} one at "
        f"a time; {result['fsync']}; load average {about['load_before']:.1f} before and "
        f"{about['load_after']:.1f} at the end."
    )
    return textwrap.fill(text, 99, break_long_words=False, break_on_hyphens=False)


def replace_marked(
    path: Path, content: str, *, begin_mark: str = BEGIN, end_mark: str = END
) -> None:
    """Put content between the markers of a Markdown file, in place of what was there."""
    before, begin, rest = path.read_text().partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"{path}: the markers {begin_mark} and {end_mark} are missing")
    path.write_text(f"{before}{begin_mark}\n\n{content}\n{end_mark}{after}")


def notes(samples: Samples) -> list[str]:
    """Everything the runs want said, once."""
    found: dict[str, None] = {}
    for (system, work), runs in samples.items():
        for run in runs:
            for note in run.notes:
                found[f"{system} {work}: {note}"] = None
    return list(found)


def machine(load_before: float) -> dict[str, str | float]:
    """Return the environment of the benchmark; the load average includes the benchmark itself."""
    return {
        "time": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "python": platform.python_version(),
        "nats_server": _output([str(program("nats-server")), "--version"]),
        "broker": _version("liftbridge-broker"),
        "uvloop": _version("uvloop"),
        "protobuf": _version("protobuf"),
    }


def document(
    samples: Samples,
    sizes: Sizes,
    rounds: int,
    load: str,
    streams: StreamsResult | None,
    big_log: BigLogResult | None,
    beside: BesideResult | None,
    protection: ProtectionResult | None,
    rebalances: Sequence[RebalanceResult],
    load_before: float,
) -> dict[str, object]:
    """Return all of it as plain values for a JSON file."""
    return {
        "machine": machine(load_before),
        "load_generator": load,
        "sizes": vars(sizes),
        "rounds": rounds,
        "fsync": FSYNC,
        "rows": [
            {
                "key": found.row.key,
                "title": found.row.title,
                "metric": found.row.metric,
                "jetstream": found.reference,
                "medians": dict(found.medians),
                "ratios": dict(found.ratios),
                "spread": dict(found.spread),
                "target": found.row.limit,
                "aim": found.row.aim,
                "original": found.row.original,
                "verdict": found.verdict("liftbridge"),
            }
            for found in outcomes(samples)
        ],
        "streams": None if streams is None else vars(streams),
        "big_log": None if big_log is None else vars(big_log),
        "beside": None if beside is None else vars(beside),
        "protection": None if protection is None else vars(protection),
        "rebalances": [vars(rebalance) for rebalance in rebalances],
        "samples": [
            {
                "system": system,
                "work": work,
                "rounds": [{"rate": run.rate, "cpu_us": run.cpu_us, **run.details} for run in runs],
            }
            for (system, work), runs in samples.items()
        ],
        "notes": notes(samples),
    }


def write(path: Path, content: dict[str, object]) -> None:
    """Write the JSON file, its directory included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
