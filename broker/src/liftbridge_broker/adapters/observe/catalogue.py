"""The catalogue of metrics and transitions, read once from `catalogue.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

PREFIX: Final = "liftbridge_"


class MetricType(StrEnum):
    """Metric type of the exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Object that a sample of a metric describes."""

    BROKER = "broker"
    STREAM = "stream"
    PARTITION = "partition"


class Combine(StrEnum):
    """Combination of the samples of several streams."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Level(StrEnum):
    """Level of a log event."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: Name without `liftbridge_`.
        type: Counter, gauge or histogram.
        doc: One sentence.
        scope: Owner of one sample; adds the labels `stream` and `partition`.
        unit: Unit in the exposition, for the reference; empty for plain numbers.
        divide: Divisor of the source's integer that gives the shown value.
        labels: Names of its own labels.
        values: Closed lists of label values; other values are counted as `_other`.
        series_max: Maximum number of series of an open label set; 0 if every label has a closed
            list.
        combine: Combination of streams in `_other`.
    """

    name: str
    type: MetricType
    doc: str
    scope: Scope = Scope.BROKER
    unit: str = ""
    divide: int = 1
    labels: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    series_max: int = 0
    combine: Combine = Combine.SUM

    @property
    def full_name(self) -> str:
        """Name in the exposition."""
        return PREFIX + self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Names of all labels, those of the scope first."""
        match self.scope:
            case Scope.BROKER:
                return self.labels
            case Scope.STREAM:
                return ("stream", *self.labels)
            case Scope.PARTITION:
                return ("stream", "partition", *self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A counter that adds up a field of a transition.

    Attributes:
        metric: The counter.
        field: The field, a number.
        label: The field whose text is the counter's label; empty for a counter without one.
    """

    metric: str
    field: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionSpec:
    """One transition.

    Attributes:
        kind: Name in the code and of the log event.
        level: Level of the log event.
        doc: One sentence.
        fields: Names of its values.
        metric: Counter without labels that counts it; empty for `transitions_total{kind}`.
        adds: A counter to which one of the fields is added, such as the number of removed bytes.
        is_limited: Whether events beyond a number in a time are only counted; false if whoever
            reports it bounds them.
    """

    kind: str
    level: Level
    doc: str
    fields: tuple[str, ...] = ()
    metric: str = ""
    adds: Sum | None = None
    is_limited: bool = True


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All metrics and transitions, by name, in the order of the file."""

    metrics: Mapping[str, MetricSpec]
    transitions: Mapping[str, TransitionSpec]

    def of_scope(self, scope: Scope) -> tuple[MetricSpec, ...]:
        """Return the metrics of one scope."""
        return tuple(spec for spec in self.metrics.values() if spec.scope is scope)


@cache
def load_catalogue() -> Catalogue:
    """Load the shipped catalogue; a mistake in it is a bug and stops the process."""
    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    metrics = [_metric(row) for row in tree["metrics"]]
    transitions = [_transition(row) for row in tree["transitions"]]
    catalogue = Catalogue(
        {spec.name: spec for spec in metrics}, {spec.kind: spec for spec in transitions}
    )
    assert len(catalogue.metrics) == len(metrics), "a metric is listed twice"
    assert len(catalogue.transitions) == len(transitions), "a transition is listed twice"
    return catalogue


def _metric(row: dict[str, Any]) -> MetricSpec:
    values = {label: tuple(listed) for label, listed in row.pop("values", {}).items()}
    spec = MetricSpec(
        name=row.pop("name"),
        type=MetricType(row.pop("type")),
        doc=row.pop("doc"),
        scope=Scope(row.pop("scope", Scope.BROKER)),
        unit=row.pop("unit", ""),
        divide=row.pop("divide", 1),
        labels=tuple(row.pop("labels", ())),
        values=values,
        series_max=row.pop("series_max", 0),
        combine=Combine(row.pop("combine", Combine.SUM)),
    )
    assert not row, f"unknown fields of metric {spec.name}: {sorted(row)}"
    assert set(values) == set(spec.labels) or spec.series_max > 0, f"{spec.name} has no bound"
    return spec


def _transition(row: dict[str, Any]) -> TransitionSpec:
    spec = TransitionSpec(
        kind=row.pop("kind"),
        level=Level(row.pop("level")),
        doc=row.pop("doc"),
        fields=tuple(row.pop("fields", ())),
        metric=row.pop("metric", ""),
        adds=Sum(**row.pop("adds")) if "adds" in row else None,
        is_limited=row.pop("limited", True),
    )
    assert not row, f"unknown fields of transition {spec.kind}: {sorted(row)}"
    return spec
