"""Cluster time: a date that no single wall clock can move.

Some records are removed because a clock says that they are old, and wall clocks leap: one that is
nine days ahead for six seconds must not cost a week of records. So brokers tell the metadata leader
what their wall clocks show, in heartbeats. It answers with the date that a majority of the voters
has reached, and each broker goes on from there by its own monotonic clock. A date that leaps
against that is believed once it has stayed for `settle_ns`; until then there is no cluster time,
and nothing is removed by age. Nor is there one where too few voters tell their clocks to say which
of two that differ is right.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.streams import MILLISECOND_NS

FRESH_NS: Final = 10_000 * MILLISECOND_NS
"""Time after which a date that nobody confirmed is used to remove nothing."""

DELAY_NS_MAX: Final = 1_000 * MILLISECOND_NS
"""Answers that took longer than this tell no date: it is not known when they were given."""

SLEW_PART: Final = 16
"""Within the tolerance cluster time follows by a sixteenth of the time that passes."""

UPPER_BOUND_MIN: Final = 3
"""Fewest voters whose majority can tell that one of them is ahead."""


class ClockLimits(NamedTuple):
    """When a clock counts as wrong.

    Attributes:
        tolerance_ns: A date that differs by more has leapt.
        settle_ns: Time for which a leap must have stayed before it is believed.
        stamp_ns: A wall clock that differs by more stamps no records.
    """

    tolerance_ns: int = 60_000 * MILLISECOND_NS
    settle_ns: int = 600_000 * MILLISECOND_NS
    stamp_ns: int = 2_000 * MILLISECOND_NS


CLOCK_LIMITS_DEFAULT: Final = ClockLimits()


class Date(NamedTuple):
    """A date on which voters agree.

    Attributes:
        wall_ns: Unix nanoseconds that a majority of the voters has reached; 0 for no such date.
        is_upper_bound: Whether a majority of three or more shows nothing later, so that a clock
            which does is wrong.
        is_believed: Whether who tells it believes it; else it only bounds stamps of records.
        latest_ns: The latest that a voter shows, where voters agree on no date to believe.
    """

    wall_ns: int = 0
    is_upper_bound: bool = False
    is_believed: bool = True
    latest_ns: int = 0


NO_DATE: Final = Date()


class _Reading(NamedTuple):
    """What a clock showed at a moment."""

    wall_ns: int
    at: Instant

    def on(self, now: Instant) -> int:
        """What it shows now if it went on by the monotonic clock."""
        return self.wall_ns + now - self.at


def agreed(clocks: Sequence[int], voters: int, tolerance_ns: int) -> Date:
    """The latest date that a majority of the voters has reached.

    With one of three away a clock that is far behind would make that the date: records would be
    stamped with it, and be old as soon as the third is back. So of three or more a majority has to
    show nothing later, within the tolerance, for the date to be believed.

    Args:
        clocks: What the clocks of voters show now, of those that told it; the others may show
            anything, so they have reached nothing.
        voters: How many voters there are.
        tolerance_ns: By how much clocks may differ that are right.
    """
    place = voters // 2
    if place >= len(clocks):  # guard Clock.majority
        return NO_DATE
    date = sorted(clocks, reverse=True)[place]
    if voters < UPPER_BOUND_MIN:
        return Date(date)
    are_near = 2 * sum(one <= date + tolerance_ns for one in clocks) > voters
    if not are_near:  # guard Clock.split
        return Date(date, is_believed=False, latest_ns=max(clocks))
    return Date(date, is_upper_bound=2 * (len(clocks) - place) > voters)


class ClusterClock:
    """Cluster time at one broker."""

    __slots__ = (
        "_believed",
        "_confirmed_at",
        "_floor",
        "_floor_since",
        "_is_mature",
        "_is_split",
        "_is_upper_bound",
        "_leap",
        "_leap_heard_at",
        "_limits",
        "_lower",
        "_newest",
        "_since",
        "_tell",
    )

    def __init__(
        self,
        limits: ClockLimits,
        tell: Callable[[str, Mapping[str, object]], None],
        newest: Callable[[], int],
    ) -> None:
        """Begin without a date.

        Args:
            limits: When a clock counts as wrong.
            tell: Tells the observer of leaps.
            newest: The latest timestamp of all that is stored here, asked only while no date has
                been believed: after a start it is all that is known of dates. Below 1 for nothing.
        """
        self._limits = limits
        self._tell = tell
        self._newest = newest
        self._believed: _Reading | None = None
        self._confirmed_at = Instant(0)
        self._since = Instant(0)
        self._is_mature = False
        self._is_upper_bound = False
        self._is_split = False
        self._floor: _Reading | None = None
        self._floor_since = Instant(0)
        self._lower: _Reading | None = None
        self._leap: _Reading | None = None
        self._leap_heard_at = Instant(0)

    @property
    def tolerance_ns(self) -> int:
        """By how much a date may differ that has not leapt."""
        return self._limits.tolerance_ns

    def on_told(self, told: Date, now: Instant) -> None:
        """Take the date of the metadata leader, or of the own clock where a broker is alone."""
        if not told.wall_ns:
            return
        self._tell_split(told)
        if self._believed is None:
            self._set_floor(self._least(told, now), now)
        if not told.is_believed:
            return
        if self._believed is None:
            if self._leap is None and self._is_near(told.wall_ns):
                self._begin(told, now)
            else:
                self._on_leap(told, 0, now)
            return
        before = self._believed.on(now)
        off_ns = told.wall_ns - before
        if abs(off_ns) > self._limits.tolerance_ns:
            self._on_leap(told, off_ns, now)
            return
        step_ns = (now - self._believed.at) // SLEW_PART
        self._believe(before + max(-step_ns, min(step_ns, off_ns)), told, now)
        self._is_mature = now - self._since >= self._limits.settle_ns  # guard Clock.mature
        if self._leap is not None:
            self._end_leap(0)

    def time_for_age(self, now: Instant) -> int | None:
        """Unix nanoseconds by which records are old; `None` while that is not known."""
        if self._believed is None or self._leap is not None:  # guard Clock.leap
            return None
        is_fresh = now - self._confirmed_at <= FRESH_NS  # guard Clock.fresh
        return self._believed.on(now) if is_fresh else None

    def date(self, now: Instant) -> Date:
        """What this broker tells the others as their metadata leader."""
        reading = self._believed or self._floor
        wall_ns = 0 if reading is None else reading.on(now)
        is_believed = self.time_for_age(now) is not None
        return Date(wall_ns, is_believed and self._is_upper_bound, is_believed)

    def stamp(self, wall_ns: int, now: Instant) -> int:
        """Timestamp of a record that is written now: the wall clock unless that is known to be off.

        A record that is stamped with the past would be old at once. One that is stamped with the
        future makes all that follow it as late, and publishers seem silent. A date that is not
        believed for long may itself be wrong: then it makes no record older.
        """
        reading = self._believed or self._floor  # guard Clock.floor
        if reading is None:
            return wall_ns
        before, most = reading.on(now), self._limits.stamp_ns
        if wall_ns < before - most:  # guard Clock.behind
            return before
        may_lower = self._is_upper_bound and self._is_mature
        if may_lower and wall_ns > before + most:  # guard Clock.ahead
            return before
        return wall_ns

    def _set_floor(self, least_ns: int, now: Instant) -> None:
        """Set the lower bound of timestamps while no date is believed.

        A date that jumps backwards replaces the bound only after it has been told for as long as
        the date before it: clocks set back for a while soon after a start must not stamp records
        with the past.
        """
        floor, tolerance_ns = self._floor, self._limits.tolerance_ns
        off_ns = 0 if floor is None else least_ns - floor.on(now)
        if floor is not None and off_ns < -tolerance_ns:  # guard Clock.held
            lower = self._lower
            if lower is None or abs(least_ns - lower.on(now)) > tolerance_ns:
                lower = self._lower = _Reading(least_ns, now)
            if now - lower.at < floor.at - self._floor_since:
                return
            self._floor_since = lower.at
        elif floor is None or off_ns > tolerance_ns:
            self._floor_since = now
        self._floor, self._lower = _Reading(least_ns, now), None

    def _least(self, told: Date, now: Instant) -> int:
        """What records are stamped with at least while no date has been believed.

        Where the clocks of voters differ, the broker trusts the earlier one if its newest stored
        record is recent by that clock. Otherwise it takes the latest: no record is removed early.
        """
        if not told.latest_ns:
            return told.wall_ns
        known = max(self._newest(), self._floor.on(now) if self._floor is not None else 0)
        is_recent = abs(known - told.wall_ns) <= self._limits.tolerance_ns
        return told.wall_ns if is_recent else told.latest_ns  # guard Clock.least

    def _tell_split(self, told: Date) -> None:
        is_split = bool(told.latest_ns)
        if is_split and not self._is_split:
            off_ms = (told.latest_ns - told.wall_ns) // MILLISECOND_NS
            self._tell("cluster_clock_split", {"off_ms": off_ms})
        self._is_split = is_split

    def _is_near(self, wall_ns: int) -> bool:
        """Whether the first date after a start is one that what is stored here makes likely.

        A broker that was away for longer cannot tell that from a leap.
        """
        newest = self._newest()
        return newest < 1 or abs(wall_ns - newest) <= self._limits.tolerance_ns  # guard Clock.start

    def _begin(self, told: Date, now: Instant) -> None:
        self._believe(told.wall_ns, told, now)
        self._since, self._is_mature = now, False

    def _believe(self, wall_ns: int, told: Date, now: Instant) -> None:
        self._believed = _Reading(wall_ns, now)
        self._confirmed_at = now
        self._is_upper_bound = told.is_upper_bound

    def _on_leap(self, told: Date, off_ns: int, now: Instant) -> None:
        """Another date is told than the one that went on here: believe it once it has stayed."""
        leap, limits = self._leap, self._limits
        was_silent = now - self._leap_heard_at > FRESH_NS
        self._leap_heard_at = now
        if leap is None and self._believed is not None:
            self._tell("cluster_clock_leapt", {"off_ms": off_ns // MILLISECOND_NS})
        is_another = leap is None or abs(told.wall_ns - leap.on(now)) > limits.tolerance_ns
        if leap is None or is_another or was_silent:  # guard Clock.stays
            self._leap = _Reading(told.wall_ns, now)
        elif now - leap.at >= limits.settle_ns:
            self._begin(told, now)
            self._end_leap(off_ns)

    def _end_leap(self, moved_ns: int) -> None:
        self._leap = None
        self._tell("cluster_clock_settled", {"moved_ms": moved_ns // MILLISECOND_NS})
