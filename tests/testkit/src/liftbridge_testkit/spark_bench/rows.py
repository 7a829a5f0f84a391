"""Results of the Spark benchmark: a row for each figure, with its target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_testkit.bench.report import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftbridge_testkit.spark_bench.usage import Sample

RATE: Final = "rows/s"
_MICROSECONDS: Final = 1e6


class Row(NamedTuple):
    """One figure.

    Attributes:
        title: Title of the measurement.
        figure: Measured value.
        unit: Unit of the figure; only for `RATE` more is better.
        target: Value that it must reach, `None` for none.
        cpu: CPU microseconds for each row, by process.
        notes: Further figures; for a read, its rate relative to others.
    """

    title: str
    figure: float
    unit: str
    target: float | None
    cpu: Mapping[str, float]
    notes: Mapping[str, float]

    @classmethod
    def of_sample(cls, title: str, sample: Sample, target: int) -> Row:
        """Return a rate with its cost."""
        cpu = {
            name: seconds / sample.rows * _MICROSECONDS
            for name, seconds in sample.usage._asdict().items()
        }
        return cls(title, sample.rate, RATE, target or None, cpu, {})

    @classmethod
    def of_figure(cls, title: str, figure: float, unit: str, target: float | None) -> Row:
        """Return a single figure."""
        return cls(title, figure, unit, target, {}, {})

    @property
    def is_met(self) -> bool | None:
        """Return whether the target is reached, `None` without one."""
        if self.target is None:
            return None
        return self.figure >= self.target if self.unit == RATE else self.figure <= self.target


def tables(rows: Sequence[Row]) -> str:
    """Return tables of rates with their costs, and of figures, each with its target."""
    rates = [row for row in rows if row.unit == RATE]
    others = [row for row in rows if row.unit != RATE]
    parts = []
    if rates:
        header = ["what", "rows/s", "target", "met", "broker us", "workers us", "JVM us", "beside"]
        parts.append(table(header, [_rate_line(row) for row in rates]))
    if others:
        header = ["what", "measured", "target", "met"]
        parts.append(table(header, [_line(row) for row in others]))
    return "\n\n".join(parts)


def _rate_line(row: Row) -> list[str]:
    target = f">= {row.target / 1e3:,.0f} k" if row.target else ""
    cpu = [f"{row.cpu[name]:.2f}" for name in ("broker", "workers", "jvm")]
    beside = ", ".join(f"{name} {value:.2f}" for name, value in row.notes.items())
    return [row.title, f"{row.figure / 1e3:,.0f} k", target, _met(row), *cpu, beside]


def _line(row: Row) -> list[str]:
    target = "" if row.target is None else f"<= {row.target:g} {row.unit}"
    return [row.title, f"{row.figure:,.2f} {row.unit}", target, _met(row)]


def _met(row: Row) -> str:
    return {None: "", True: "yes", False: "NO"}[row.is_met]
