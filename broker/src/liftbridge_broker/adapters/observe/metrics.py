"""Converts plain integers to an immutable snapshot of bounded size.

The node, its storage and its links count in plain integer attributes. At a scrape the server reads
them from its `MetricsSource` once, on the event loop; the result is frozen and can be rendered in a
thread. Only the largest streams get their own series; the rest is summed as `_other`, as are label
values outside the catalogue's lists.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from liftbridge_broker.adapters.observe.catalogue import Catalogue, Combine, MetricSpec, Scope
from liftbridge_broker.model.histogram import Histogram

OTHER: Final = "_other"
SLICE: Final = 100
"""Streams or partitions that are read per turn of the event loop."""

DETAILED_LINES_MAX: Final = 50_000

Sample = (
    int
    | Histogram
    | Mapping[str, int]
    | Mapping[tuple[str, ...], int]
    | Mapping[str, Histogram]
    | Mapping[tuple[str, ...], Histogram]
)
"""A metric without labels, or its samples by label values in the order of the catalogue."""


class MetricsSource(Protocol):
    """Source of the integers; called on the event loop, must not wait.

    Keys are names of the catalogue without `liftbridge_`; values are in the catalogue's source unit
    (nanoseconds for seconds). A metric without a sample is omitted. Rows of streams and partitions
    belong to the receiver; they are read `SLICE` at a time with other work of the loop between, so
    they must not be iterated from a collection that may change between slices.
    """

    def broker_samples(self) -> Mapping[str, Sample]:
        """Return the samples of scope `broker`."""
        ...

    def stream_samples(self) -> Iterable[tuple[str, Mapping[str, Sample]]]:
        """Return every stream with its samples of scope `stream`, without the label `stream`."""
        ...

    def partition_samples(self, stream: str) -> Iterable[tuple[int, Mapping[str, int]]] | None:
        """Return partitions of a stream with samples of scope `partition`; None if unknown."""
        ...


class HistogramCounts(NamedTuple):
    """A histogram at one moment; see `Histogram`."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


Value = int | HistogramCounts

Row = TypeVar("Row")
_COMBINERS: Final[Mapping[Combine, Callable[[list[Any]], int]]] = {
    Combine.SUM: sum,
    Combine.MAX: max,
    Combine.MIN: min,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples at one moment.

    Attributes:
        spec: The metric.
        samples: Values of all labels, in the order of `spec.all_labels`, with the value.
    """

    spec: MetricSpec
    samples: tuple[tuple[tuple[str, ...], Value], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable result of one scrape.

    Attributes:
        families: Metrics with at least one sample, in the order of the catalogue.
        note: Omitted series, for a comment; empty for none.
    """

    families: tuple[Family, ...]
    note: str = ""


class Readings(NamedTuple):
    """Values that a scrape read on the event loop; contains no live object.

    Attributes:
        broker: Metrics of scope `broker`.
        streams: Every stream with its samples.
    """

    broker: tuple[Family, ...]
    streams: Sequence[tuple[str, Mapping[str, Sample]]]


async def read(source: MetricsSource, catalogue: Catalogue) -> Readings:
    """Read everything for `/metrics`, letting the event loop turn after every `SLICE` streams."""
    broker = _broker_families(source.broker_samples(), catalogue)
    return Readings(tuple(broker), await in_slices(source.stream_samples()))


async def in_slices(rows: Iterable[Row]) -> list[Row]:
    """Read all rows, taken `SLICE` at a time with one turn of the event loop between."""
    taken: list[Row] = []
    for row in rows:
        taken.append(row)
        if len(taken) % SLICE == 0:
            await asyncio.sleep(0)
    return taken


def summarise(readings: Readings, catalogue: Catalogue, streams_max: int) -> Snapshot:
    """Build the snapshot for `/metrics`; may run in any thread.

    Args:
        readings: Result of `read`.
        catalogue: Known metrics.
        streams_max: Number of streams with their own series; further streams are summed as
            `_other`.
    """
    families = _stream_families(readings.streams, catalogue, streams_max)
    return Snapshot((*readings.broker, *families))


def detail(
    stream: str, rows: Iterable[tuple[int, Mapping[str, int]]], catalogue: Catalogue
) -> Snapshot:
    """Build the snapshot for `/metrics/detailed`: each partition of one stream; for any thread.

    Whole partitions are omitted, from the highest number down, once the lines would exceed
    `DETAILED_LINES_MAX`; the note reports that.
    """
    partitions = sorted(rows, key=lambda row: row[0])
    specs = catalogue.of_scope(Scope.PARTITION)
    kept = (DETAILED_LINES_MAX - 2 * len(specs)) // len(specs)
    note = ""
    if len(partitions) > kept:
        note = f"cut: {kept} of {len(partitions)} partitions of stream {stream} are shown"
    families = []
    for spec in specs:
        samples = tuple(
            ((stream, str(number)), values[spec.name])
            for number, values in partitions[:kept]
            if spec.name in values
        )
        if samples:
            families.append(Family(spec, samples))
    return Snapshot(tuple(families), note)


def _broker_families(samples: Mapping[str, Sample], catalogue: Catalogue) -> list[Family]:
    unknown = [name for name in samples if name not in catalogue.metrics]
    assert not unknown, f"metrics that the catalogue does not list: {unknown}"
    families = []
    for spec in catalogue.of_scope(Scope.BROKER):
        sample = samples.get(spec.name)
        if sample is not None:
            families.append(Family(spec, tuple(bounded(spec, frozen(spec, sample)).items())))
    return families


def frozen(spec: MetricSpec, sample: Sample) -> dict[tuple[str, ...], Value]:
    """Copy a sample from live objects to values by label values."""
    if isinstance(sample, int | Histogram):
        assert not spec.labels, f"{spec.name} needs labels {spec.labels}"
        return {(): _value(sample)}
    return {
        (labels,) if isinstance(labels, str) else labels: _value(value)
        for labels, value in sample.items()
    }


def bounded(spec: MetricSpec, values: dict[tuple[str, ...], Value]) -> dict[tuple[str, ...], Value]:
    """Sum values outside the closed lists, or beyond `series_max`, as `_other`."""
    if not spec.labels:
        return values
    other = (OTHER,) * len(spec.labels)
    joined: dict[tuple[str, ...], Value] = {}
    for labels, value in values.items():
        assert len(labels) == len(spec.labels), f"{spec.name} needs labels {spec.labels}"
        is_listed = all(
            name not in spec.values or label in spec.values[name]
            for name, label in zip(spec.labels, labels, strict=True)
        )
        key = labels if is_listed else other
        joined[key] = _add(joined[key], value) if key in joined else value
    if not spec.series_max or len(joined) <= spec.series_max:
        return joined
    ranked = sorted(joined, key=lambda labels: (-_weight(joined[labels]), labels))
    kept = {labels: joined[labels] for labels in ranked[: spec.series_max - 1]}
    for labels in ranked[spec.series_max - 1 :]:
        kept[other] = _add(kept[other], joined[labels]) if other in kept else joined[labels]
    return kept


def _stream_families(
    streams: Sequence[tuple[str, Mapping[str, Sample]]], catalogue: Catalogue, streams_max: int
) -> list[Family]:
    # A stream named `_other` would cause two series of one name.
    top = heapq.nlargest(streams_max, (row for row in streams if row[0] != OTHER), key=_size)
    shown = {name for name, _ in top}
    rest = [samples for name, samples in streams if name not in shown]
    families = []
    for spec in catalogue.of_scope(Scope.STREAM):
        series: list[tuple[tuple[str, ...], Value]] = []
        for name, samples in top:
            sample = samples.get(spec.name)
            if sample is not None:
                own = bounded(spec, frozen(spec, sample))
                series += [((name, *labels), value) for labels, value in own.items()]
        joined = bounded(spec, _joined(spec, rest))
        series += [((OTHER, *labels), value) for labels, value in joined.items()]
        if series:
            families.append(Family(spec, tuple(series)))
    return families


def _joined(spec: MetricSpec, rows: Sequence[Mapping[str, Sample]]) -> dict[tuple[str, ...], Value]:
    """Combine the samples of a metric over several streams, one per label set.

    Nearly every stream of a scrape passes here, so it is two plain loops.
    """
    combine = _COMBINERS[spec.combine]
    samples = [sample for row in rows if (sample := row.get(spec.name)) is not None]
    if not samples:
        return {}
    if not spec.labels:
        return {(): combine(samples)}
    by_labels: dict[str | tuple[str, ...], list[Any]] = {}
    for sample in samples:
        assert not isinstance(sample, int | Histogram)
        for labels, value in sample.items():
            by_labels.setdefault(labels, []).append(value)
    return {
        (labels,) if isinstance(labels, str) else labels: combine(values)
        for labels, values in by_labels.items()
    }


def _size(row: tuple[str, Mapping[str, Sample]]) -> tuple[int, str]:
    """Return the sort key of a stream: bytes, then name, so that equal ones keep their places."""
    size = row[1].get("stream_bytes", 0)
    assert isinstance(size, int)
    return size, row[0]


def _value(sample: int | Histogram) -> Value:
    if isinstance(sample, Histogram):
        return HistogramCounts(sample.bounds, tuple(sample.counts), sample.total)
    return sample


def _add(first: Value, second: Value) -> Value:
    if isinstance(first, HistogramCounts):
        assert isinstance(second, HistogramCounts)
        assert first.bounds == second.bounds
        counts = tuple(map(sum, zip(first.counts, second.counts, strict=True)))
        return HistogramCounts(first.bounds, counts, first.total + second.total)
    assert isinstance(second, int)
    return first + second


def _weight(value: Value) -> int:
    return sum(value.counts) if isinstance(value, HistogramCounts) else value
