"""Cluster time: what voters agree on, what a broker believes, what records are stamped with."""

import random

import pytest

from liftbridge_broker.node.scheduling.cluster_clock import (
    FRESH_NS,
    NO_DATE,
    ClockLimits,
    ClusterClock,
    Date,
    agreed,
)

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
TODAY = 1_700_000_000 * SECOND
LIMITS = ClockLimits(tolerance_ns=60 * SECOND, settle_ns=600 * SECOND, stamp_ns=2 * SECOND)


class Broker:
    """A clock that is told a date each second, and what it told the observer."""

    def __init__(self, newest=0, *, is_upper_bound=True):
        self.events = []
        self.is_upper_bound = is_upper_bound
        self.now = 5_000 * SECOND
        self.clock = ClusterClock(LIMITS, self._tell, lambda: newest)

    def _tell(self, kind, fields):
        self.events.append((kind.removeprefix("cluster_clock_"), fields))

    @property
    def today(self):
        """True date."""
        return TODAY + self.now

    def hear(self, off=0, *, seconds=1):
        for _ in range(seconds):
            self.now += SECOND
            self.clock.on_date(Date(self.today + off, self.is_upper_bound), self.now)

    def age(self):
        """By how much the time for ages is off; `None` for none."""
        found = self.clock.time_for_age(self.now)
        return None if found is None else found - self.today

    def stamped(self, off):
        return self.clock.stamp(self.today + off, self.now) - self.today


@pytest.fixture
def broker():
    broker = Broker()
    broker.hear(seconds=3)
    assert broker.age() == 0
    return broker


# -- what voters agree on -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "voters", "date"),
    [
        ([7], 1, Date(7)),
        ([7, 9], 2, Date(7)),
        ([7], 2, NO_DATE),
        ([7, 8, 99], 3, Date(8, is_upper_bound=True)),
        ([1, 8, 9], 3, Date(8, is_upper_bound=True)),
        ([8, 10], 3, Date(8)),
        ([8, 99], 3, Date(8, is_believed=False, latest_ns=99)),
        ([8], 3, NO_DATE),
        ([], 1, NO_DATE),
        ([6, 7, 8, 9], 4, Date(7)),
        ([6, 7, 98, 99], 4, Date(7, is_believed=False, latest_ns=99)),
        ([8, 98, 99], 5, Date(8, is_believed=False, latest_ns=99)),
        ([7, 8, 98, 99], 5, Date(8, is_believed=False, latest_ns=99)),
        ([7, 8, 10, 99], 5, Date(8)),
        ([6, 7, 8, 98, 99], 5, Date(8, is_upper_bound=True)),
    ],
)
def test_date_is_the_latest_that_a_majority_has_reached(clocks, voters, date):
    assert agreed(clocks, voters, 2) == date


@pytest.mark.parametrize("seed", range(20))
def test_minority_never_moves_the_date_away_from_the_clocks_that_are_right(seed):
    rng = random.Random(seed)
    for _ in range(500):
        voters = rng.randrange(1, 8)
        wrong = rng.randrange((voters + 1) // 2)
        right = [TODAY + rng.randrange(-5, 6) for _ in range(voters - wrong)]
        heard = rng.sample(right, rng.randrange(len(right) + 1))
        heard += [rng.choice((0, TODAY + rng.randrange(-DAY, DAY))) for _ in range(wrong)]
        date = agreed(heard, voters, 60)
        assert date.wall_ns <= max(right)
        if date.is_believed and date != NO_DATE and voters >= 3:
            assert min(right) - 60 <= date.wall_ns
        if date.is_upper_bound:
            assert min(right) <= date.wall_ns


# -- what is believed -----------------------------------------------------------------------------


def test_without_a_date_nothing_has_an_age():
    broker = Broker()
    assert broker.age() is None
    broker.clock.on_date(NO_DATE, broker.now)
    assert broker.age() is None
    assert broker.stamped(-DAY) == -DAY


@pytest.mark.parametrize("off", [9 * DAY, -9 * DAY, 61 * SECOND])
def test_leap_ends_ages_until_it_is_over(broker, off):
    broker.hear(off, seconds=6)
    assert broker.age() is None
    broker.hear()
    assert broker.age() == 0
    off_ms = off // 1_000_000
    assert broker.events == [("leapt", {"off_ms": off_ms}), ("settled", {"moved_ms": 0})]


@pytest.mark.parametrize("off", [9 * DAY, -9 * DAY])
def test_leap_that_stays_is_believed(broker, off):
    broker.hear(off, seconds=600)
    assert broker.age() is None
    broker.hear(off)
    assert broker.age() == off
    assert broker.events[-1] == ("settled", {"moved_ms": off // 1_000_000})


def test_leap_that_is_not_told_all_along_has_not_stayed(broker):
    broker.hear(9 * DAY, seconds=599)
    broker.now += FRESH_NS + 1
    broker.hear(9 * DAY, seconds=5)
    assert broker.age() is None


def test_leaps_to_different_dates_are_not_one_that_stays(broker):
    for day in range(1, 20):
        broker.hear(day * DAY, seconds=100)
        assert broker.age() is None


def test_many_small_steps_are_a_leap():
    broker = Broker()
    broker.hear()
    for minute in range(60):
        broker.hear(minute * 30 * SECOND)
    assert broker.age() is None


def test_small_difference_is_followed_slowly(broker):
    broker.hear(32 * SECOND, seconds=16)
    assert 0 < broker.age() <= SECOND
    broker.hear(32 * SECOND, seconds=1_000)
    assert broker.age() == 32 * SECOND
    assert broker.events == []


def test_date_that_nobody_confirms_makes_nothing_old(broker):
    broker.now += FRESH_NS
    assert broker.age() == 0
    broker.now += 1
    assert broker.age() is None
    broker.hear()
    assert broker.age() == 0


@pytest.mark.parametrize("off", [62 * SECOND, -9 * DAY])
def test_first_date_far_from_all_that_is_stored_has_to_stay(off):
    broker = Broker(newest=TODAY + 5_000 * SECOND + off)
    broker.hear(seconds=600)
    assert broker.age() is None
    broker.hear()
    assert broker.age() == 0
    assert [kind for kind, _ in broker.events] == ["settled"]


def test_first_date_near_what_is_stored_is_believed():
    broker = Broker(newest=TODAY + 5_000 * SECOND - 30 * SECOND)
    broker.hear()
    assert broker.age() == 0


def test_leader_tells_whether_it_believes_the_date(broker):
    assert broker.clock.date(broker.now) == Date(broker.today, is_upper_bound=True)
    broker.hear(9 * DAY)
    date = broker.clock.date(broker.now)
    assert date == Date(broker.today, is_upper_bound=False, is_believed=False)


# -- stamps ---------------------------------------------------------------------------------------


def test_records_are_stamped_by_the_wall_clock_while_it_is_right(broker):
    for off in (0, SECOND, -SECOND, 2 * SECOND, -2 * SECOND):
        assert broker.stamped(off) == off


def test_clock_behind_stamps_nothing_that_would_be_old_at_once(broker):
    assert broker.stamped(-9 * DAY) == 0
    broker.hear(-9 * DAY, seconds=6)
    assert broker.stamped(-9 * DAY) == 0


@pytest.mark.parametrize("is_believed", [True, False])
def test_date_that_is_not_believed_yet_makes_records_no_older_than_it(is_believed):
    """As after a start: what is stamped until the date is believed would be old by it."""
    broker = Broker(newest=TODAY - 9 * DAY)
    broker.now += SECOND
    broker.clock.on_date(Date(broker.today, is_believed=is_believed), broker.now)
    assert broker.age() is None
    assert broker.clock.date(broker.now).is_believed is False
    assert broker.clock.date(broker.now).wall_ns == broker.today
    broker.now += 60 * SECOND
    assert broker.stamped(-9 * DAY) == 0
    assert broker.stamped(9 * DAY) == 9 * DAY


@pytest.mark.parametrize("off", [-9 * DAY, -61 * SECOND])
@pytest.mark.parametrize("held", [2, 30, 300])
def test_clocks_set_back_soon_after_a_start_stamp_nothing_with_the_past(held, off):
    """As when all machines lose their time for a while: nobody has believed a date by then."""
    broker = Broker(newest=TODAY - 9 * DAY)
    broker.hear(seconds=held)
    assert broker.age() is None
    for _ in range(held - 1):
        broker.hear(off)
        assert broker.stamped(off) == 0
    broker.hear()
    assert broker.stamped(off) == 0
    broker.hear(off, seconds=2 * held)
    assert broker.stamped(off) == off


@pytest.mark.parametrize("held", [2, 30, 300])
def test_clocks_that_were_ahead_at_a_start_are_left_as_soon_as_they_were_told(held):
    broker = Broker(newest=TODAY - 9 * DAY)
    broker.hear(9 * DAY, seconds=held)
    assert broker.stamped(0) == 9 * DAY
    broker.hear(seconds=held)
    assert broker.stamped(0) == 0


def split(broker, off):
    """Let it hear for two minutes what two clocks come to, one of them right, the third away."""
    for _ in range(120):
        broker.now += SECOND
        clocks = [broker.today, broker.today + off]
        broker.clock.on_date(agreed(clocks, 3, LIMITS.tolerance_ns), broker.now)


@pytest.mark.parametrize("off", [-9 * DAY, 9 * DAY, -61 * SECOND])
def test_clock_behind_does_not_become_the_date_while_another_voter_is_away(broker, off):
    for _ in range(10):
        split(broker, off)
        assert broker.age() is None
        assert broker.stamped(min(off, 0)) == 0
    broker.hear()
    assert broker.age() == 0
    assert broker.events == [("split", {"off_ms": abs(off) // 1_000_000})]


@pytest.mark.parametrize("quiet", [30 * SECOND, 3 * DAY, 30 * DAY, TODAY + 5_000 * SECOND])
def test_clock_behind_after_a_start_stamps_nothing_with_the_past(quiet):
    """However long ago the newest record was stored, or if there is none."""
    broker = Broker(newest=TODAY + 5_000 * SECOND - quiet)
    split(broker, -9 * DAY)
    assert broker.age() is None
    assert broker.stamped(-9 * DAY) == 0
    assert broker.stamped(0) == 0


def test_clock_ahead_after_a_start_stamps_nothing_where_what_is_stored_is_recent():
    broker = Broker(newest=TODAY + 5_000 * SECOND - 30 * SECOND)
    split(broker, 9 * DAY)
    assert broker.age() is None
    assert broker.stamped(0) == 0


def test_what_is_stored_with_the_future_stamps_nothing_that_no_clock_shows():
    broker = Broker(newest=TODAY + 9 * DAY)
    split(broker, -DAY)
    assert broker.stamped(-DAY) == 0


def test_clock_ahead_stamps_nothing_when_a_majority_says_that_it_is(broker):
    broker.hear(seconds=600)
    assert broker.stamped(9 * DAY) == 0
    broker.hear(9 * DAY, seconds=6)
    assert broker.stamped(9 * DAY) == 0


def test_date_that_is_not_believed_for_long_makes_no_record_older():
    broker = Broker()
    broker.hear(-DAY, seconds=599)
    assert broker.stamped(0) == 0
    broker.hear(seconds=599)
    assert broker.stamped(0) == 0
    broker.hear(seconds=2)
    assert broker.age() == 0
    assert broker.stamped(DAY) == DAY


def test_clock_ahead_of_one_other_stamps():
    broker = Broker(is_upper_bound=False)
    broker.hear(seconds=3)
    assert broker.stamped(9 * DAY) == 9 * DAY
    assert broker.stamped(-9 * DAY) == 0
