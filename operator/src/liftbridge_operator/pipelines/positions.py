"""How far an archive has come, what is left, and whether that is more than a moment's worth.

While records arrive something is always left. So the claim is about time: whatever was committed
when a mark was made is archived by the time that one round and its pause have passed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from liftbridge_operator.model.pipeline import PARTITIONS_SHOWN_MAX

WINDOW_SECONDS: Final = 60.0
"""Least age of a mark by which it is judged."""


class Place(NamedTuple):
    """A partition."""

    stream: str
    partition: int


class Position(NamedTuple):
    """How far the archive of a partition has come.

    Attributes:
        log_start: First offset that is kept.
        high_watermark: First offset that is not committed.
        archived: Last offset that is archived; -1 for none.
    """

    log_start: int
    high_watermark: int
    archived: int

    @property
    def lag(self) -> int:
        """Offsets that are committed, kept, and not archived."""
        return max(0, self.high_watermark - max(self.archived + 1, self.log_start))


Positions = Mapping[Place, Position]


class Mark(NamedTuple):
    """What was committed at some moment.

    Attributes:
        at_s: Monotonic seconds.
        high_watermarks: Of all partitions.
        is_caught_up: What the mark before it came to.
    """

    at_s: float
    high_watermarks: Mapping[Place, int]
    is_caught_up: bool


def judge(positions: Positions, mark: Mark | None, now_s: float, interval_s: float) -> Mark:
    """Whether the archive keeps up, as the mark to go on with.

    Args:
        positions: As they are.
        mark: The one of the look before; None for the first look.
        now_s: Monotonic seconds.
        interval_s: Pause between two rounds of the archive.
    """
    marks = {place: one.high_watermark for place, one in positions.items()}
    if not any(one.lag for one in positions.values()):
        return Mark(now_s, marks, is_caught_up=True)
    if mark is None:
        return Mark(now_s, marks, is_caught_up=False)
    if now_s - mark.at_s < max(WINDOW_SECONDS, 2 * interval_s):
        return mark
    is_caught_up = all(
        max(one.archived + 1, one.log_start) >= mark.high_watermarks.get(place, 0)
        for place, one in positions.items()
    )
    return Mark(now_s, marks, is_caught_up)


def told(positions: Positions, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """What the status says of positions.

    Args:
        positions: As they are.
        before: The present status.
        now: The time, in RFC 3339.
    """
    known = {Place(one["stream"], one["partition"]): one for one in before.get("partitions") or ()}
    by_lag = sorted(positions, key=lambda place: (-positions[place].lag, place))
    shown, others = sorted(by_lag[:PARTITIONS_SHOWN_MAX]), by_lag[PARTITIONS_SHOWN_MAX:]
    found: dict[str, Any] = {
        "lag": sum(one.lag for one in positions.values()),
        "partitions": [_shown(one, positions[one], known.get(one), now) for one in shown],
    }
    if others:
        lag = sum(positions[one].lag for one in others)
        found["others"] = {"partitions": len(others), "lag": lag}
    return found


def _shown(
    place: Place, position: Position, before: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "stream": place.stream,
        "partition": place.partition,
        "archivedOffset": position.archived,
        "highWatermark": position.high_watermark,
        "lag": position.lag,
    }
    former = before if before is not None else {"archivedOffset": -1}
    commit = now if former["archivedOffset"] != position.archived else former.get("lastCommit")
    return found | ({"lastCommit": commit} if commit else {})


def behind(positions: Positions) -> Sequence[Place]:
    """Partitions with something left."""
    return [place for place, one in positions.items() if one.lag]
