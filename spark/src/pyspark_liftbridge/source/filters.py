"""Translate filters of Spark into a pruning of ranges."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_liftbridge.plan.pruning import Pruning
from pyspark_liftbridge.units import MICROSECOND_NS

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def pushed(filters: Iterable[Filter], *, is_kafka_schema: bool) -> tuple[Pruning, list[Filter]]:
    """Translate filters to a pruning; also return the filters that Spark must still apply.

    Args:
        filters: Filters, all of which must hold.
        is_kafka_schema: Whether the stream's column is called topic.
    """
    whole, left = Pruning(), []
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if is_kafka_schema:
            column = "stream" if column == "topic" else column
        narrow = _NARROW.get(column)
        values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
        pruning = narrow(one, values) if narrow and values and None not in values else None
        if pruning is None or not _is_exact(column, one):
            left.append(one)
        whole = whole.also(pruning or Pruning())
    return whole, left


def _is_exact(column: str, one: Filter) -> bool:
    """Return whether pruning reads only rows that pass the filter."""
    return column in ("stream", "partition") or (column == "offset" and not isinstance(one, In))


def _streams(one: Filter, values: Iterable[Any]) -> Pruning | None:
    return Pruning(streams=frozenset(values)) if isinstance(one, EqualTo | In) else None


def _partitions(one: Filter, values: Iterable[Any]) -> Pruning | None:
    return Pruning(partitions=frozenset(values)) if isinstance(one, EqualTo | In) else None


def _offsets(one: Filter, values: Iterable[Any]) -> Pruning | None:
    return _span(one, values, lambda low, end: Pruning(offset_min=low, offset_end=end))


def _times(one: Filter, values: Iterable[Any]) -> Pruning | None:
    def make(low: int | None, end: int | None) -> Pruning:
        return Pruning(
            time_ns_min=None if low is None else low * MICROSECOND_NS,
            time_ns_end=None if end is None else end * MICROSECOND_NS,
        )

    return _span(one, [(value - _EPOCH) // _MICROSECOND for value in values], make)


def _times_ns(one: Filter, values: Iterable[Any]) -> Pruning | None:
    def make(low: int | None, end: int | None) -> Pruning:
        return Pruning(
            time_ns_min=None if low is None else low // MICROSECOND_NS * MICROSECOND_NS,
            time_ns_end=None if end is None else -(-end // MICROSECOND_NS) * MICROSECOND_NS,
        )

    return _span(one, values, make)


_NARROW: Final[dict[str, Callable[[Filter, Iterable[Any]], Pruning | None]]] = {
    "stream": _streams,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _times,
    "timestamp_ns": _times_ns,
}


def _span(
    one: Filter, values: Iterable[Any], make: Callable[[int | None, int | None], Pruning]
) -> Pruning | None:
    """Return the integers that pass a filter: from a minimum on, below an end."""
    numbers = sorted(values)
    if isinstance(one, EqualTo | In):
        return make(numbers[0], numbers[-1] + 1)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return make(numbers[0] + isinstance(one, GreaterThan), None)
    if isinstance(one, LessThan | LessThanOrEqual):
        return make(None, numbers[0] + isinstance(one, LessThanOrEqual))
    return None
