"""Positions of an archive, its lag, and whether it keeps up.

While records arrive there is always some lag. So the claim is about time: records that were
committed when a mark was made are archived after one round and its pause.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from liftbridge_operator.model.pipeline import PARTITIONS_SHOWN_MAX

WINDOW_SECONDS: Final = 60.0
"""Minimum age of a mark before it is judged."""


class Place(NamedTuple):
    """A partition."""

    stream: str
    partition: int


class Position(NamedTuple):
    """Archive position of a partition.

    Attributes:
        log_start: Log start offset.
        high_watermark: First offset that is not committed.
        archived: Last archived offset; -1 for none.
    """

    log_start: int
    high_watermark: int
    archived: int

    @property
    def lag(self) -> int:
        """Number of offsets that are committed, retained, and not archived."""
        return max(0, self.high_watermark - max(self.archived + 1, self.log_start))


Positions = Mapping[Place, Position]


class Mark(NamedTuple):
    """High watermarks at some moment.

    Attributes:
        at_s: Monotonic seconds.
        high_watermarks: High watermarks of all partitions.
        is_caught_up: Verdict on the mark before it.
    """

    at_s: float
    high_watermarks: Mapping[Place, int]
    is_caught_up: bool


def judge(positions: Positions, mark: Mark | None, now_s: float, interval_s: float) -> Mark:
    """Judge whether the archive keeps up, and return the mark for the next poll.

    Args:
        positions: Present positions.
        mark: The mark of the poll before; None for the first poll.
        now_s: Monotonic seconds.
        interval_s: Pause between two rounds of the archive.
    """
    marks = {place: one.high_watermark for place, one in positions.items()}
    if not any(position.lag for position in positions.values()):
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


def status_of(positions: Positions, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Build the status of positions.

    Args:
        positions: Present positions.
        before: The present status.
        now: The time, in RFC 3339.
    """
    known = {
        Place(partition["stream"], partition["partition"]): partition
        for partition in before.get("partitions") or ()
    }
    by_lag = sorted(positions, key=lambda place: (-positions[place].lag, place))
    shown, others = sorted(by_lag[:PARTITIONS_SHOWN_MAX]), by_lag[PARTITIONS_SHOWN_MAX:]
    found: dict[str, Any] = {
        "lag": sum(position.lag for position in positions.values()),
        "partitions": [_shown(one, positions[one], known.get(one), now) for one in shown],
    }
    if others:
        lag = sum(positions[other].lag for other in others)
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
    """Return partitions with a lag."""
    return [place for place, one in positions.items() if one.lag]
