"""The rows of the comparison: what is compared with what, and how good it has to be.

Every row is a ratio to JetStream in the same run, because a ratio survives a change of machine and
a rate does not. `original` is the ratio of the Go broker (its 2026 master), measured the same way
on 2 cores, where JetStream stored 268 k publishes/s at 3.8 us of CPU and replayed 512 k/s at
1.9 us. JetStream's replay is the ordered consumer: like Subscribe it guarantees order without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftbridge_testkit.bench.systems import Sample

Samples = dict[tuple[str, str], list["Sample"]]
"""All samples by (system, work), one for each round."""


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        key: Short name for `--only` and the JSON file.
        title: Title for the reader.
        work: Work of the Liftbridge systems.
        reference: Work of JetStream it is compared with.
        metric: `rate`, `cpu_us` or a latency such as `p50_us`; the same on both sides.
        limit: Ratio that must be reached.
        aim: Better ratio that is aimed at, if any.
        original: Ratio of the Go broker, if measured.
    """

    key: str
    title: str
    work: str
    reference: str
    metric: str
    limit: float
    aim: float | None = None
    original: float | None = None

    @property
    def is_better(self) -> Literal["more", "less"]:
        """Return whether a higher or a lower ratio is good."""
        return "more" if self.metric == "rate" else "less"

    def is_met(self, ratio: float) -> bool:
        """Return whether a ratio reaches the limit."""
        return ratio >= self.limit if self.is_better == "more" else ratio <= self.limit


ROWS = (
    Row("publish", "PublishAsync, 1,024 in flight", "publish", "publish", "rate", 0.5, 0.6, 0.44),
    Row(
        "publish-four",
        "PublishAsync, four streams, 4,096 in flight",
        "publish-four",
        "publish",
        "rate",
        0.5,
        0.6,
        0.50,
    ),
    Row("replay", "Subscribe from the beginning", "replay", "replay", "rate", 0.7, None, 0.33),
    Row("intake", "plain NATS publish, stored", "intake", "publish", "rate", 1.2, None, 1.2),
    Row(
        "latency", "one at a time, PublishAsync, p50", "latency", "latency", "p50_us", 3, None, 2.0
    ),
    Row(
        "latency-unary", "one at a time, unary, p50", "latency-unary", "latency", "p50_us", 4.5,
        None, 4.5,
    ),
    Row("publish-cpu", "server CPU, PublishAsync", "publish", "publish", "cpu_us", 2, None, 2.8),
    Row("replay-cpu", "server CPU, Subscribe", "replay", "replay", "cpu_us", 1, None, 3.1),
    Row("batch-publish", "batch publish (our client)", "batch-publish", "publish", "rate", 1.8),
    Row("batch-read", "batch read (our client)", "batch-read", "replay", "rate", 2),
    Row(
        "batch-read-varying",
        "batch read, values of 0.5 to 1.5 times the size",
        "batch-read-varying",
        "replay",
        "rate",
        1.5,
    ),
    Row(
        "replay-singles",
        "Subscribe, log written one at a time",
        "replay-singles",
        "replay",
        "rate",
        0.33,
    ),
)  # fmt: skip

CLUSTER_ROWS = (
    Row(
        "cluster-publish", "3 replicas: PublishAsync, 1,024 in flight",
        "cluster-publish", "cluster-publish", "rate", 1.0, None, 0.64,
    ),
    Row(
        "cluster-publish-four", "3 replicas: PublishAsync, four streams, 4,096 in flight",
        "cluster-publish-four", "cluster-publish", "rate", 1.0,
    ),
    Row(
        "cluster-cpu", "3 replicas: CPU of all servers, PublishAsync",
        "cluster-publish", "cluster-publish", "cpu_us", 1.0, None, 1.4,
    ),
    Row(
        "cluster-batch", "3 replicas: batch publish (our client)",
        "cluster-batch-publish", "cluster-publish", "rate", 1.6,
    ),
    Row(
        "cluster-latency", "3 replicas: one at a time, PublishAsync, p50",
        "cluster-latency", "cluster-latency", "p50_us", 2.5, None, 3.5,
    ),
    Row(
        "cluster-latency-unary", "3 replicas: one at a time, unary, p50",
        "cluster-latency-unary", "cluster-latency", "p50_us", 3.5,
    ),
    Row(
        "cluster-deliver", "3 replicas: 1,000 a second to a subscriber, p50",
        "cluster-deliver", "cluster-deliver", "p50_us", 2.5,
    ),
    Row(
        "cluster-deliver-p99", "3 replicas: 1,000 a second to a subscriber, p99",
        "cluster-deliver", "cluster-deliver", "p99_us", 3,
    ),
    Row(
        "cluster-deliver-cpu", "3 replicas: 1,000 a second to a subscriber, CPU of all servers",
        "cluster-deliver", "cluster-deliver", "cpu_us", 1.5,
    ),
)  # fmt: skip
"""Rows of `--cluster`: three brokers with acks of all beside JetStream with three replicas."""


@dataclass(frozen=True)
class Outcome:
    """A row with its figures.

    Attributes:
        row: The row.
        reference: Median of JetStream.
        medians: Median by system.
        ratios: Ratio of the medians by system.
        spread: Lowest and highest ratio of a round by system.
        incomplete: Systems with a run that left out part of the work; their ratio does not count.
    """

    row: Row
    reference: float
    medians: Mapping[str, float]
    ratios: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    incomplete: frozenset[str] = frozenset()

    def verdict(self, system: str) -> Literal["yes", "NO", "INCOMPLETE", "-"]:
        """Return whether a system reaches the limit, as the table says it."""
        if system not in self.ratios:
            return "-"
        if self.incomplete & {system, "jetstream"}:
            return "INCOMPLETE"
        return "yes" if self.row.is_met(self.ratios[system]) else "NO"


def works_for(rows: Sequence[Row], system: str) -> set[str]:
    """Return works a system must do for these rows, those they build on included."""
    if system == "jetstream":
        wanted = {row.reference for row in rows}
    else:
        wanted = {row.work for row in rows}
    if "replay" in wanted:
        wanted.add("publish")
    if "replay-singles" in wanted:
        wanted.add("latency")
    if "batch-read" in wanted:
        wanted.add("batch-publish")
    return wanted


def outcome(row: Row, samples: Samples) -> Outcome | None:
    """Compare the systems in one row.

    Returns:
        None when JetStream or every other system has no figure for it.
    """
    base = figures(samples, "jetstream", row.reference, row.metric)
    if not base:
        return None
    reference = median(base)
    medians: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for system in sorted({system for system, _ in samples} - {"jetstream"}):
        values = figures(samples, system, row.work, row.metric)
        if values:
            medians[system] = median(values)
            by_round = [value / against for value, against in zip(values, base, strict=False)]
            spread[system] = (min(by_round), max(by_round))
    if not medians:
        return None
    ratios = {system: value / reference for system, value in medians.items()}
    incomplete = frozenset(
        system
        for system in (*medians, "jetstream")
        for run in samples.get((system, row.reference if system == "jetstream" else row.work), [])
        if not run.is_complete
    )
    return Outcome(row, reference, medians, ratios, spread, incomplete)


def figures(samples: Samples, system: str, work: str, metric: str) -> list[float]:
    """Return the figure of every round, rounds that lack it left out."""
    found = (sample.value(metric) for sample in samples.get((system, work), []))
    return [value for value in found if value is not None and value > 0]
