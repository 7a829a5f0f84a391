"""Cluster time: a date that no single wall clock can move.

Retention removes records by age, and wall clocks jump: a clock that is nine days ahead for six
seconds must not cost a week of records. So brokers report their wall clocks to the metadata leader
in heartbeats. The leader answers with the date that a majority of the voters has reached, and each
broker advances it by its own monotonic clock. A date that jumps relative to that is believed once
it has lasted for `settle_ns`; until then there is no cluster time, and retention by age stops.
Nor is there cluster time when too few voters report their clocks to decide between two that differ.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS

FRESH_NS: Final = 10_000 * MILLISECOND_NS
"""Time after which an unconfirmed date may no longer be used to remove records."""

DELAY_NS_MAX: Final = 1_000 * MILLISECOND_NS
"""Answers that took longer than this give no date: their time of sending is unknown."""

SLEW_PART: Final = 16
"""Within the tolerance, cluster time is adjusted by a sixteenth of the elapsed time."""

UPPER_BOUND_MIN: Final = 3
"""Fewest voters whose majority can detect that one clock is ahead."""


class ClockLimits(NamedTuple):
    """Limits beyond which a clock counts as wrong.

    Attributes:
        tolerance_ns: A date that differs by more has jumped.
        settle_ns: Time for which a jump must have lasted before it is believed.
        stamp_ns: A wall clock that differs by more is not used for record timestamps.
    """

    tolerance_ns: int = 60_000 * MILLISECOND_NS
    settle_ns: int = 600_000 * MILLISECOND_NS
    stamp_ns: int = 2_000 * MILLISECOND_NS


CLOCK_LIMITS_DEFAULT: Final = ClockLimits()


class Date(NamedTuple):
    """A date on which voters agree.

    Attributes:
        wall_ns: Unix nanoseconds that a majority of the voters has reached; 0 for no such date.
        is_upper_bound: Whether a majority of three or more shows no later date, so that a later
            clock is wrong.
        is_believed: Whether the broker that sends it believes it; else it only bounds record
            timestamps.
        latest_ns: The latest clock of a voter, where voters agree on no date to believe.
    """

    wall_ns: int = 0
    is_upper_bound: bool = False
    is_believed: bool = True
    latest_ns: int = 0


NO_DATE: Final = Date()


class _Reading(NamedTuple):
    """Reading of a clock at a monotonic time."""

    wall_ns: int
    at: Instant

    def on(self, now: Instant) -> int:
        """Return the reading advanced to `now` by the monotonic clock."""
        return self.wall_ns + now - self.at


def agreed(clocks: Sequence[int], voters: int, tolerance_ns: int) -> Date:
    """Return the latest date that a majority of the voters has reached.

    With one of three voters unavailable, a clock far behind would set the date: records would get
    its timestamp, and be old as soon as the third voter is back. So with three or more voters, a
    majority must show no later date, within the tolerance, for the date to be believed.

    Args:
        clocks: Present clocks of the voters that reported; the other voters count as having reached
            no date.
        voters: Number of voters.
        tolerance_ns: Largest difference between correct clocks.
    """
    place = voters // 2
    if place >= len(clocks):  # guard Clock.majority
        return NO_DATE
    date = sorted(clocks, reverse=True)[place]
    if voters < UPPER_BOUND_MIN:
        return Date(date)
    are_near = 2 * sum(clock <= date + tolerance_ns for clock in clocks) > voters
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
        "_report",
        "_since",
    )

    def __init__(
        self,
        limits: ClockLimits,
        report: Callable[[str, Mapping[str, object]], None],
        newest: Callable[[], int],
    ) -> None:
        """Start without a date.

        Args:
            limits: Limits beyond which a clock counts as wrong.
            report: Reports jumps to the observer.
            newest: Returns the latest stored timestamp, called only while no date has been
                believed: after a start no other date is known. Below 1 for none.
        """
        self._limits = limits
        self._report = report
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
        """Largest difference of a date that is not a jump."""
        return self._limits.tolerance_ns

    def on_date(self, announced: Date, now: Instant) -> None:
        """Handle the date of the metadata leader, or of its own clock on a sole broker."""
        if not announced.wall_ns:
            return
        self._report_split(announced)
        if self._believed is None:
            self._set_floor(self._least(announced, now), now)
        if not announced.is_believed:
            return
        if self._believed is None:
            if self._leap is None and self._is_near(announced.wall_ns):
                self._begin(announced, now)
            else:
                self._on_leap(announced, 0, now)
            return
        before = self._believed.on(now)
        off_ns = announced.wall_ns - before
        if abs(off_ns) > self._limits.tolerance_ns:
            self._on_leap(announced, off_ns, now)
            return
        step_ns = (now - self._believed.at) // SLEW_PART
        self._believe(before + max(-step_ns, min(step_ns, off_ns)), announced, now)
        self._is_mature = now - self._since >= self._limits.settle_ns  # guard Clock.mature
        if self._leap is not None:
            self._end_leap(0)

    def time_for_age(self, now: Instant) -> int | None:
        """Return the date by which records age, in Unix nanoseconds; `None` while unknown."""
        if self._believed is None or self._leap is not None:  # guard Clock.leap
            return None
        is_fresh = now - self._confirmed_at <= FRESH_NS  # guard Clock.fresh
        return self._believed.on(now) if is_fresh else None

    def date(self, now: Instant) -> Date:
        """Return the date that this broker announces as the metadata leader."""
        reading = self._believed or self._floor
        wall_ns = 0 if reading is None else reading.on(now)
        is_believed = self.time_for_age(now) is not None
        return Date(wall_ns, is_believed and self._is_upper_bound, is_believed)

    def stamp(self, wall_ns: int, now: Instant) -> int:
        """Return the timestamp for a record written now: the wall clock unless known to be off.

        A record with a past timestamp would be old at once. A future timestamp would move those of
        all later records too, and publishers would seem silent. A date that has not been believed
        for `settle_ns` may be wrong: it makes no record older.
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

        A date that jumps backwards replaces the bound only after it has been announced for as long
        as the date before it: clocks set back for a while soon after a start must not stamp records
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

    def _least(self, announced: Date, now: Instant) -> int:
        """Return the lower bound of timestamps while no date has been believed.

        Where the clocks of voters differ, the broker trusts the earlier one if its newest stored
        record is recent by that clock. Otherwise it takes the latest: no record is removed early.
        """
        if not announced.latest_ns:
            return announced.wall_ns
        known = max(self._newest(), self._floor.on(now) if self._floor is not None else 0)
        is_recent = abs(known - announced.wall_ns) <= self._limits.tolerance_ns
        return announced.wall_ns if is_recent else announced.latest_ns  # guard Clock.least

    def _report_split(self, announced: Date) -> None:
        is_split = bool(announced.latest_ns)
        if is_split and not self._is_split:
            off_ms = (announced.latest_ns - announced.wall_ns) // MILLISECOND_NS
            self._report("cluster_clock_split", {"off_ms": off_ms})
        self._is_split = is_split

    def _is_near(self, wall_ns: int) -> bool:
        """Return whether the newest stored record makes the first date after a start plausible.

        A broker that was down for longer cannot distinguish its absence from a jump.
        """
        newest = self._newest()
        return newest < 1 or abs(wall_ns - newest) <= self._limits.tolerance_ns  # guard Clock.start

    def _begin(self, announced: Date, now: Instant) -> None:
        self._believe(announced.wall_ns, announced, now)
        self._since, self._is_mature = now, False

    def _believe(self, wall_ns: int, announced: Date, now: Instant) -> None:
        self._believed = _Reading(wall_ns, now)
        self._confirmed_at = now
        self._is_upper_bound = announced.is_upper_bound

    def _on_leap(self, announced: Date, off_ns: int, now: Instant) -> None:
        """Handle a date that differs from the local one: believe it once it has lasted."""
        leap, limits = self._leap, self._limits
        was_silent = now - self._leap_heard_at > FRESH_NS
        self._leap_heard_at = now
        if leap is None and self._believed is not None:
            self._report("cluster_clock_leapt", {"off_ms": off_ns // MILLISECOND_NS})
        is_another = leap is None or abs(announced.wall_ns - leap.on(now)) > limits.tolerance_ns
        if leap is None or is_another or was_silent:  # guard Clock.stays
            self._leap = _Reading(announced.wall_ns, now)
        elif now - leap.at >= limits.settle_ns:
            self._begin(announced, now)
            self._end_leap(off_ns)

    def _end_leap(self, moved_ns: int) -> None:
        self._leap = None
        self._report("cluster_clock_settled", {"moved_ms": moved_ns // MILLISECOND_NS})
