"""The catalogue is consistent, follows Prometheus' naming, and bounds the number of series."""

import re

import pytest

from liftbridge_broker.adapters.observe.catalogue import (
    PREFIX,
    MetricType,
    Scope,
    load_catalogue,
)
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.model.histogram import LATENCY_BOUNDS_NS

CATALOGUE = load_catalogue()
SERIES_MAX = 2_200
PROCESS_SERIES_MAX = 10
# A histogram is its buckets, the one without end, a sum and a count.
HISTOGRAM_SERIES = len(LATENCY_BOUNDS_NS) + 3
UNITS = {
    "seconds": ("_seconds", "_seconds_total"),
    "bytes": ("_bytes", "_bytes_total"),
    "ratio": ("_ratio",),
}


def label_sets(spec):
    """Most label sets of a metric without its scope; `_other` stands beside closed lists."""
    if spec.series_max:
        return spec.series_max
    count = 1
    for label in spec.labels:
        count *= len(spec.values[label])
    return count + 1 if spec.labels else 1


def test_no_more_series_than_the_bound_however_many_streams():
    streams_max = SETTINGS["metrics.streams.max"].maximum
    total = PROCESS_SERIES_MAX
    for spec in CATALOGUE.metrics.values():
        size = HISTOGRAM_SERIES if spec.type is MetricType.HISTOGRAM else 1
        scale = {Scope.BROKER: 1, Scope.STREAM: streams_max + 1, Scope.PARTITION: 0}[spec.scope]
        total += label_sets(spec) * size * scale
    assert total <= SERIES_MAX


@pytest.mark.parametrize("spec", CATALOGUE.metrics.values(), ids=CATALOGUE.metrics)
def test_metric_is_named_as_prometheus_asks(spec):
    assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", spec.name)
    assert not spec.name.startswith(PREFIX)
    assert spec.name.endswith("_total") is (spec.type is MetricType.COUNTER) or (
        spec.name == "connections_total"
    )
    assert spec.name.endswith(UNITS.get(spec.unit, ("",))) or "_seconds_max" in spec.name
    assert spec.doc.endswith(".")
    assert (spec.unit == "seconds") is (spec.divide == 1_000_000_000)


@pytest.mark.parametrize("spec", CATALOGUE.transitions.values(), ids=CATALOGUE.transitions)
def test_transition_is_well_formed(spec):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", spec.kind)
    assert spec.doc.endswith(".")
    # Names that the log line has anyway.
    assert not {"event", "level", "timestamp", "logger"} & set(spec.fields)
    if spec.metric:
        metric = CATALOGUE.metrics[spec.metric]
        assert (metric.type, metric.labels) == (MetricType.COUNTER, ())


def test_labels_of_scopes_come_first():
    published = CATALOGUE.metrics["published_messages_total"]
    assert published.all_labels == ("stream", "path")
    assert CATALOGUE.metrics["partition_bytes"].all_labels == ("stream", "partition")
    assert CATALOGUE.metrics["partition_bytes"].full_name == "liftbridge_partition_bytes"
