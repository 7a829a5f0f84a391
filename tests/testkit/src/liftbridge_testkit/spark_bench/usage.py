"""CPU time of a benchmark by process: broker, JVM, Python workers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftbridge_testkit.processes import Broker

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of user and system time.

    Attributes:
        broker: CPU time of the broker and its children.
        workers: CPU time of Python processes that Spark started.
        jvm: CPU time of Spark itself.
    """

    broker: float
    workers: float
    jvm: float

    def since(self, before: Usage) -> Usage:
        """Return the usage since an earlier one."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))


class Sample(NamedTuple):
    """One run.

    Attributes:
        rows: Rows of it.
        seconds: Duration.
        usage: CPU time.
    """

    rows: int
    seconds: float
    usage: Usage

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


class Meter:
    """Measures the CPU time of a broker and of Spark in this process.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def usage(self) -> Usage:
        """Return the usage so far."""
        jvm, workers = _by_kind(os.getpid(), without=self._broker.pid)
        return Usage(self._broker.cpu_seconds(), workers, jvm)

    def sample(self, rows: int, act: Callable[[], object]) -> Sample:
        """Measure a function that handles this number of rows."""
        before, began = self.usage(), perf_counter()
        act()
        seconds = perf_counter() - began
        return Sample(rows, seconds, self.usage().since(before))


def _by_kind(pid: int, *, without: int) -> tuple[float, float]:
    """Return the CPU seconds of all JVMs below a process, and of all processes below those.

    Ended workers count for the process that awaited them; the time of a JVM itself does not include
    them.
    """
    jvm = workers = 0.0
    waiting = [(child, False) for child in _children(pid) if child != without]
    while waiting:
        one, is_below = waiting.pop()
        own, awaited = _seconds(one)
        is_jvm = _name(one) == "java"
        if is_jvm:
            jvm += own
        elif is_below:
            workers += own + awaited
        waiting += [(child, is_below or is_jvm) for child in _children(one)]
    return jvm, workers


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, children.read_text().split())
    return found


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _seconds(pid: int) -> tuple[float, float]:
    """Return CPU seconds of a process and its awaited children (/proc/PID/stat, fields 14-17)."""
    with contextlib.suppress(OSError):
        # The name, in parentheses, may contain spaces, so fields are counted after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own, system, awaited, awaited_system = map(int, fields[11:15])
        return (own + system) / _TICKS, (awaited + awaited_system) / _TICKS
    return 0.0, 0.0
