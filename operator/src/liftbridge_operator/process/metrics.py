"""Metrics of the operator, created from `metrics.yaml`, in a separate registry."""

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata, resources
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from liftbridge_operator.kube.kinds import CLUSTERS, Kind
from liftbridge_operator.process.reconciler import Key

PREFIX: Final = "liftbridge_operator_"

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the value."""

Reading = Callable[[], Iterable[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: Name without the prefix.
        type: `counter`, `gauge` or `histogram`.
        source: `counted` for values counted as they occur, `read` for values read at each scrape.
        doc: One sentence.
        unit: Unit of the value; empty for plain numbers.
        labels: Names of labels.
        values: Closed lists of label values, where the file gives them.
        buckets: Upper bounds of the buckets of a histogram.
    """

    name: str
    type: str
    source: str
    doc: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Name in the exposition."""
        return PREFIX + self.name


@cache
def load_metrics() -> Mapping[str, MetricSpec]:
    """Load all metrics by name, in the order of the file; an error in it is a bug."""
    text = resources.files(__package__).joinpath("metrics.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)["metrics"]
    specs = [
        MetricSpec(
            **row
            | {
                "labels": tuple(row.get("labels", ())),
                "buckets": tuple(row.get("buckets", ())),
                "values": {name: tuple(of) for name, of in row.get("values", {}).items()},
            }
        )
        for row in rows
    ]
    found = {spec.name: spec for spec in specs}
    assert len(found) == len(specs), "a metric is listed twice"
    return found


class Metrics:
    """Counters, histograms, and gauges that are read at each scrape.

    Attributes:
        registry: Registry of all metrics, including those of the process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._readings: dict[str, Reading] = {}
        for spec in load_metrics().values():
            if spec.type == "counter":
                assert spec.source == "counted", f"{spec.name}: a counter has no reading"
                self._counters[spec.name] = Counter(
                    spec.full_name, spec.doc, spec.labels, registry=self.registry
                )
            elif spec.type == "histogram":
                self._histograms[spec.name] = Histogram(
                    spec.full_name,
                    spec.doc,
                    spec.labels,
                    buckets=spec.buckets,
                    registry=self.registry,
                )
        self.registry.register(_Gauges(self._readings))
        ProcessCollector(registry=self.registry)
        version = metadata.version("liftbridge-operator")
        self.read("build_info", lambda: [((version,), 1)])

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Increase a counter; labels are in the order of the catalogue."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def read(self, name: str, reading: Reading) -> None:
        """Set the source of a gauge's values; a later source replaces an earlier one."""
        assert load_metrics()[name].source == "read", f"{name} is counted, not read"
        self._readings[name] = reading


class _Gauges(Collector):
    """Collects the gauges that are read at each scrape."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """Yield each gauge that has a source."""
        for name, reading in self._readings.items():
            spec = load_metrics()[name]
            family = GaugeMetricFamily(spec.full_name, spec.doc, labels=spec.labels)
            for labels, value in reading():
                family.add_metric(labels, value)
            yield family


class ConditionBoard:
    """Last reported conditions of all resources; the source of the metrics about them.

    Reconcilers report the conditions that they write, and forget deleted resources.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._conditions: dict[Key, tuple[tuple[str, str, str], ...]] = {}
        metrics.read("resources", self._by_condition)
        metrics.read("cluster_condition", self._of_clusters)

    def set_conditions(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Keep the conditions (`type`, `status`, `reason`) of a resource."""
        self._conditions[key] = tuple(
            (condition["type"], condition["status"], condition["reason"])
            for condition in conditions
        )

    def forget(self, key: Key) -> None:
        """Drop a deleted resource; no-op for an unknown one."""
        self._conditions.pop(key, None)

    def _by_condition(self) -> Iterator[Sample]:
        counts: Counted[tuple[str, ...]] = Counted()
        for key, conditions in self._conditions.items():
            counts.update((key.kind.kind, *condition) for condition in conditions)
        yield from ((labels, float(count)) for labels, count in sorted(counts.items()))

    def _of_clusters(self) -> Iterator[Sample]:
        for key, conditions in self._conditions.items():
            if key.kind == CLUSTERS:
                yield from (
                    ((key.namespace, key.name, *condition), 1.0) for condition in conditions
                )


def label_of(kind: Kind) -> str:
    """Return the value of the label `kind` for a kind."""
    return kind.kind
