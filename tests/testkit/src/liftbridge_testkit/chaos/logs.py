"""Judges the logs of brokers: errors must be explained by the faults of the run.

Anything that is no event of the log, such as a traceback or a line of a library, is unexpected.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.checker import VIOLATIONS_MAX, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMISE: Final = "log"
MIN_ISR: Final = 2
"""Default of streams of three replicas, as the streams of a run are."""

LINE_LENGTH_MAX: Final = 300
# As the log is written for people: time, level, event, fields.
_LINE: Final = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\S+Z) \[(?P<level>\w+) *\] (?P<event>\w+)")
_BAD_LEVELS: Final = frozenset({"error", "critical"})
_LOSS: Final = "possible_data_loss"
_DAMAGE: Final = frozenset(
    {"segment_quarantined", "corruption_found", "partition_offline", "replica_damaged"}
)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Diary:
    """Faults that a broker may report as errors, with their times.

    Attributes:
        kills: Time and name of every SIGKILL.
        damages: Time and name of every damage to files.
        rests: When all replicas were seen in sync.
        now: The wall clock, as in the logs.
    """

    kills: list[tuple[datetime, str]] = field(default_factory=list)
    damages: list[tuple[datetime, str]] = field(default_factory=list)
    rests: list[datetime] = field(default_factory=list)
    now: Callable[[], datetime] = _now

    def killed(self, *names: str) -> None:
        """Note brokers that are about to get a SIGKILL."""
        self.kills.extend((self.now(), name) for name in names)

    def damaged(self, name: str) -> None:
        """Note a broker whose files are about to be damaged."""
        self.damages.append((self.now(), name))

    def in_sync(self) -> None:
        """Note that every replica of every stream is in sync, and so counts as complete again."""
        self.rests.append(self.now())

    def may_lose(self, at: datetime) -> bool:
        """Return whether so many ended without a clean mark that no replica is certainly complete.

        The default keeps what is acknowledged by `MIN_ISR` replicas at least: the loss of one fewer
        leaves a replica that can be elected without any doubt.
        """
        since = max((rest for rest in self.rests if rest <= at), default=None)
        names = {
            name for when, name in self.kills if when <= at and (since is None or when > since)
        }
        return len(names) >= MIN_ISR

    def may_be_damaged(self, name: str, at: datetime) -> bool:
        """Return whether files of a broker were damaged before."""
        return any(who == name and when <= at for when, who in self.damages)


@dataclass
class Judged:
    """Findings in the logs of a run.

    Attributes:
        events: Every event by its name, of all brokers and levels.
        expected_errors: Errors that belong to what was done, by event.
        violations: Unexpected lines.
    """

    events: Counter[str] = field(default_factory=Counter)
    expected_errors: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, name: str, text: str, diary: Diary) -> None:
        """Judge the log of one broker."""
        bad = list(self._unexpected(name, text, diary))
        self.violations += [
            Violation(PROMISE, f"{name}: {line[:LINE_LENGTH_MAX]}") for line in bad[:VIOLATIONS_MAX]
        ]

    def _unexpected(self, name: str, text: str, diary: Diary) -> Iterator[str]:
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None:
                if line.strip():
                    yield line
                continue
            event = found["event"]
            self.events[event] += 1
            if found["level"] not in _BAD_LEVELS:
                continue
            if _is_expected(name, event, datetime.fromisoformat(found["at"]), diary):
                self.expected_errors[event] += 1
            else:
                yield line


def _is_expected(name: str, event: str, at: datetime, diary: Diary) -> bool:
    if event == _LOSS:
        return diary.may_lose(at)
    return event in _DAMAGE and diary.may_be_damaged(name, at)
