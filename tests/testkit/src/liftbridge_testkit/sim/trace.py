"""Events of a run, as lines for people and as one hash for machines.

The hash covers every line, so two runs with equal hashes did the same in the same order. Only the
last lines are kept, unless a replay prints all.
"""

from collections import deque
from hashlib import blake2b
from typing import Protocol

LINES_KEPT = 400

Detail = int | str | bytes | bool | None | tuple["Detail", ...]


class Sink(Protocol):
    """File of the lines of a replay."""

    def write(self, text: str, /) -> int:
        """Write text."""
        ...


class Trace:
    """Lines of one run.

    Args:
        sink: Gets each line at once; `None` keeps only the last `LINES_KEPT`.
    """

    __slots__ = ("_digest", "_kept", "_sink")

    def __init__(self, sink: Sink | None = None) -> None:
        self._digest = blake2b(digest_size=16)
        self._kept: deque[tuple[int, str, str, tuple[Detail, ...]]] = deque(maxlen=LINES_KEPT)
        self._sink = sink

    def note(self, now: int, where: str, what: str, *details: Detail) -> None:
        """Add a line; details must print the same in every process (no sets, no objects)."""
        line = (now, where, what, details)
        self._digest.update(repr(line).encode())
        self._kept.append(line)
        if self._sink is not None:
            self._sink.write(format_line(line) + "\n")

    @property
    def hash(self) -> str:
        """Return the hash of all lines so far."""
        return self._digest.hexdigest()

    def tail(self, lines_max: int = LINES_KEPT) -> list[str]:
        """Return the last lines, oldest first."""
        return [format_line(line) for line in list(self._kept)[-lines_max:]]


def format_line(line: tuple[int, str, str, tuple[Detail, ...]]) -> str:
    """Return one line as text: seconds, where, what, details."""
    now, where, what, details = line
    seconds, rest = divmod(now, 1_000_000_000)
    return f"{seconds:4}.{rest // 1_000:06} {where:10} {what} {' '.join(map(_text, details))}"


def _text(detail: Detail) -> str:
    if isinstance(detail, bytes):
        return detail.decode("utf-8", "backslashreplace")
    return str(detail)
