"""Renders a snapshot as text in Prometheus' format; runs in a thread, never on the event loop."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from liftbridge_broker.adapters.observe.catalogue import MetricType
from liftbridge_broker.adapters.observe.metrics import Family, HistogramCounts, Snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class SnapshotCollector(Collector):
    """Supplies a snapshot to the Prometheus library."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Store `snapshot`."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield each family of the snapshot."""
        return map(_metric, self._snapshot.families)


def render(snapshot: Snapshot, *, process: ProcessCollector | None = None) -> bytes:
    """Render a snapshot as text, followed by the metrics of the process if requested."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    if process is not None:
        registry.register(process)
    note = f"# {snapshot.note}\n".encode() if snapshot.note else b""
    return generate_latest(registry) + note


def process_collector() -> ProcessCollector:
    """Return the standard metrics of the process (`process_cpu_seconds_total` and so on)."""
    return ProcessCollector(registry=CollectorRegistry())


def _metric(family: Family) -> Metric:
    spec = family.spec
    labels = spec.all_labels
    metric: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match spec.type:
        case MetricType.COUNTER:
            metric = CounterMetricFamily(spec.full_name, spec.doc, labels=labels)
        case MetricType.GAUGE:
            metric = GaugeMetricFamily(spec.full_name, spec.doc, labels=labels)
        case MetricType.HISTOGRAM:
            metric = HistogramMetricFamily(spec.full_name, spec.doc, labels=labels)
    for label_values, value in family.samples:
        if isinstance(metric, HistogramMetricFamily):
            assert isinstance(value, HistogramCounts)
            buckets, total = _buckets(value, spec.divide)
            metric.add_metric(label_values, buckets=buckets, sum_value=total)
        else:
            assert isinstance(value, int)
            metric.add_metric(label_values, value if spec.divide == 1 else value / spec.divide)
    return metric


def _buckets(value: HistogramCounts, divide: int) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets with upper bounds as text, and the sum, both in the shown unit."""
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    ends = [str(bound / divide) for bound in value.bounds] + ["+Inf"]
    for end, count in zip(ends, value.counts, strict=True):
        cumulative += count
        buckets.append((end, cumulative))
    return buckets, value.total / divide
