"""From plain integers to an immutable snapshot of bounded size.

The node, its storage and its links count in plain integer attributes. At a scrape the server asks
its `MetricsSource` for them once, on the event loop; what leaves here is frozen and can be rendered
in a thread. However many streams there are, only the largest get series of their own; the rest is
summed as `_other`, and label values outside the catalogue's lists are too.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from liftbridge_broker.adapters.observe.catalogue import Catalogue, Combine, MetricSpec, Scope
from liftbridge_broker.model.histogram import Histogram

OTHER: Final = "_other"
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
    """Where the integers come from; called on the event loop, must not wait.

    Keys are names of the catalogue without `liftbridge_`; values are in the catalogue's source
    unit (nanoseconds for seconds). A metric without a sample is left out.
    """

    def broker_samples(self) -> Mapping[str, Sample]:
        """Samples of scope `broker`."""
        ...

    def stream_samples(self) -> Iterable[tuple[str, Mapping[str, Sample]]]:
        """Every stream with its samples of scope `stream`, without the label `stream`."""
        ...

    def partition_samples(self, stream: str) -> Iterable[tuple[int, Mapping[str, int]]] | None:
        """Every partition of a stream with its samples of scope `partition`; None if unknown."""
        ...


class HistogramCounts(NamedTuple):
    """A histogram at one moment; see `Histogram`."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


Value = int | HistogramCounts


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
    """What one scrape shows; nothing in it changes any more.

    Attributes:
        families: Metrics with at least one sample, in the order of the catalogue.
        note: What was left out, for a comment; empty for nothing.
    """

    families: tuple[Family, ...]
    note: str = ""


def collect(source: MetricsSource, catalogue: Catalogue, streams_max: int) -> Snapshot:
    """Snapshot for `/metrics`.

    Args:
        source: Where the integers come from.
        catalogue: What is known.
        streams_max: Streams with series of their own; the others are summed as `_other`.
    """
    families = _broker_families(source.broker_samples(), catalogue)
    families += _stream_families(source.stream_samples(), catalogue, streams_max)
    return Snapshot(tuple(families))


def collect_detailed(source: MetricsSource, catalogue: Catalogue, stream: str) -> Snapshot | None:
    """Snapshot for `/metrics/detailed`: each partition of one stream, None for an unknown one.

    Whole partitions are left out, from the highest number down, once the lines would exceed
    `DETAILED_LINES_MAX`; the note says so.
    """
    rows = source.partition_samples(stream)
    if rows is None:
        return None
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
    """A sample as values by label values, copied from what may still change."""
    if not isinstance(sample, Mapping):
        assert not spec.labels, f"{spec.name} needs labels {spec.labels}"
        return {(): _value(sample)}
    return {
        (labels,) if isinstance(labels, str) else labels: _value(value)
        for labels, value in sample.items()
    }


def bounded(spec: MetricSpec, values: dict[tuple[str, ...], Value]) -> dict[tuple[str, ...], Value]:
    """Join what lies outside the closed lists, or beyond `series_max`, as `_other`."""
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
    rows: Iterable[tuple[str, Mapping[str, Sample]]], catalogue: Catalogue, streams_max: int
) -> list[Family]:
    streams = list(rows)
    # A stream that bears the name of the rest would make two series of one name.
    named = [row for row in streams if row[0] != OTHER]
    top = heapq.nlargest(streams_max, named, key=_size)
    shown = {name for name, _ in top}
    rest = [samples for name, samples in streams if name not in shown]
    families = []
    for spec in catalogue.of_scope(Scope.STREAM):
        series: list[tuple[tuple[str, ...], Value]] = []
        for name, samples in top:
            series += [((name, *labels), value) for labels, value in _labelled(spec, samples)]
        series += [((OTHER, *labels), value) for labels, value in _joined(spec, rest)]
        if series:
            families.append(Family(spec, tuple(series)))
    return families


def _labelled(
    spec: MetricSpec, samples: Mapping[str, Sample]
) -> Iterable[tuple[tuple[str, ...], Value]]:
    sample = samples.get(spec.name)
    if sample is None:
        return ()
    return bounded(spec, frozen(spec, sample)).items()


def _joined(
    spec: MetricSpec, rows: Sequence[Mapping[str, Sample]]
) -> Iterable[tuple[tuple[str, ...], int]]:
    """All samples of a metric over several streams as one per label set."""
    joined: dict[tuple[str, ...], int] = {}
    for samples in rows:
        for labels, value in _labelled(spec, samples):
            assert isinstance(value, int)
            joined[labels] = (
                _combine(spec.combine, joined[labels], value) if labels in joined else value
            )
    return joined.items()


def _size(row: tuple[str, Mapping[str, Sample]]) -> tuple[int, str]:
    """Order of streams: bytes, then name, so that equal ones do not change places."""
    size = row[1].get("stream_bytes", 0)
    assert isinstance(size, int)
    return size, row[0]


def _combine(how: Combine, first: int, second: int) -> int:
    match how:
        case Combine.SUM:
            return first + second
        case Combine.MAX:
            return max(first, second)
        case Combine.MIN:
            return min(first, second)


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
