"""Lag of a group and the forecast of retention, by hand and against a model of a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.groups.lag import (
    APART_NS_MIN,
    OBSERVATIONS_MAX,
    WARN_NS,
    Forecast,
    History,
    Limit,
    Limits,
    Observation,
    forecast,
    place,
)
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.model.units import HOUR_NS, SECOND_NS

NO_LIMITS = Limits(0, 0, 0)
MINUTE_NS = 60 * SECOND_NS


def seen(at: int, next_offset: int, high_watermark: int, lag_ns: int = 0) -> Observation:
    """An observation of a log that keeps everything, with 100 bytes a message."""
    return Observation(
        at=Instant(at),
        next_offset=Offset(next_offset),
        log_start=Offset(0),
        high_watermark=Offset(high_watermark),
        log_bytes=100 * high_watermark,
        lag_ns=lag_ns,
    )


@pytest.mark.parametrize(
    ("position", "expected"),
    [(None, (10, 0)), (9, (10, 0)), (14, (15, 0)), (19, (20, 0)), (99, (20, 0)), (4, (10, 5))],
)
def test_the_next_message_is_one_that_the_log_holds(
    position: int | None, expected: tuple[int, int]
) -> None:
    assert place(position, Offset(10), Offset(20)) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (NO_LIMITS, None),
        # 200 messages more in a minute, of which 100 are processed: 100 of the margin of 300.
        (Limits(0, 700, 0), Forecast(3 * MINUTE_NS, Limit.MESSAGES, is_half_used=True)),
        (Limits(0, 1_000, 0), Forecast(6 * MINUTE_NS, Limit.MESSAGES, is_half_used=False)),
        (Limits(0, 0, 70_000), Forecast(3 * MINUTE_NS, Limit.BYTES, is_half_used=True)),
        # The next message is half a minute older than the next one a minute ago.
        (Limits(HOUR_NS, 0, 0), Forecast(118 * MINUTE_NS, Limit.AGE, is_half_used=False)),
        (Limits(HOUR_NS, 700, 80_000), Forecast(3 * MINUTE_NS, Limit.MESSAGES, is_half_used=True)),
        (Limits(0, 400, 0), Forecast(0, Limit.MESSAGES, is_half_used=True)),
    ],
)
def test_the_limit_that_is_used_up_first_is_forecast(
    limits: Limits, expected: Forecast | None
) -> None:
    earlier = seen(0, 300, 600, lag_ns=MINUTE_NS // 2)
    latest = seen(MINUTE_NS, 400, 800, lag_ns=MINUTE_NS)
    assert forecast(latest, earlier, limits) == expected


def test_a_group_that_catches_up_is_not_overtaken() -> None:
    earlier, latest = seen(0, 0, 600, MINUTE_NS), seen(MINUTE_NS, 400, 700, MINUTE_NS // 2)
    assert forecast(latest, earlier, Limits(HOUR_NS, 1_000, 100_000)) is None
    assert forecast(latest._replace(next_offset=Offset(700)), earlier, Limits(1, 1, 1)) is None
    assert forecast(latest._replace(has_position=False), None, Limits(1, 1, 1)) is None


def test_a_single_observation_takes_the_group_as_stopped() -> None:
    """It used nothing when its next message, of a minute ago, was stored."""
    latest = seen(9 * HOUR_NS, 0, 100, lag_ns=MINUTE_NS)
    age = Forecast(59 * MINUTE_NS, Limit.AGE, is_half_used=False)
    assert forecast(latest, None, Limits(HOUR_NS, 0, 0)) == age
    by_count = Forecast(9 * MINUTE_NS, Limit.MESSAGES, is_half_used=False)
    assert forecast(latest, None, Limits(HOUR_NS, 1_000, 0)) == by_count


@pytest.mark.parametrize(
    "earlier",
    [
        seen(MINUTE_NS - APART_NS_MIN + 1, 0, 0),
        seen(0, 11, 100),
        seen(0, 0, 101),
        seen(0, 0, 0)._replace(has_position=False),
    ],
)
def test_observations_that_give_no_rate_count_as_none(earlier: Observation) -> None:
    latest = seen(MINUTE_NS, 10, 100, lag_ns=SECOND_NS)
    limits = Limits(HOUR_NS, 1_000, 0)
    assert forecast(latest, earlier, limits) == forecast(latest, None, limits)


rates = st.integers(0, 1_000)


@given(rates, rates, st.integers(0, 10_000), st.integers(1, 100_000), st.booleans())
def test_forecast_is_what_becomes_of_constant_rates(
    published: int, processed: int, lag: int, most: int, is_bytes: bool
) -> None:
    """Model: each second `published` messages come and `processed` ones go, until the limit."""
    processed = min(processed, published)  # nobody processes what was not published
    first = seen(0, 0, lag)
    latest = seen(60 * SECOND_NS, 60 * processed, lag + 60 * published)
    limits = Limits(0, 0, 100 * most) if is_bytes else Limits(0, most, 0)
    found = forecast(latest, first, limits)
    behind = latest.lag
    if behind == 0:
        assert found is None
    elif behind >= most:
        assert found is not None
        assert found.left_ns == 0
    elif published == processed:
        assert found is None
    else:
        assert found is not None
        seconds = found.left_ns // SECOND_NS
        before = behind + seconds * (published - processed)
        assert before <= most < before + 2 * (published - processed)


def test_rates_are_those_since_the_oldest_of_some_observations() -> None:
    history, limits = History(), Limits(0, 2_000, 0)
    old = [seen(number * MINUTE_NS, number**2, 1_000 + 50 * number) for number in range(10)]
    for one in old:
        history.add(one)
    latest = seen(10 * MINUTE_NS, 100, 1_500)
    expected = forecast(latest, old[-OBSERVATIONS_MAX], limits)
    assert history.forecast(latest, limits) == expected
    assert expected != forecast(latest, old[0], limits)


def test_what_went_back_begins_a_new_history() -> None:
    history = History()
    for number in range(3):
        history.add(seen(number * MINUTE_NS, 10 * number, 1_000, MINUTE_NS))
    reset = seen(99 * MINUTE_NS, 0, 1_000, MINUTE_NS)
    history.add(reset)
    limits = Limits(0, 2_000, 0)
    later = seen(100 * MINUTE_NS, 0, 1_010, MINUTE_NS)
    assert history.forecast(later, limits) == forecast(later, reset, limits)


def test_an_episode_of_danger_is_told_once() -> None:
    history = History()
    near = Forecast(WARN_NS, Limit.AGE, is_half_used=True)
    assert not history.begins_danger(None)
    assert not history.begins_danger(near._replace(left_ns=WARN_NS + 1))
    assert not history.begins_danger(near._replace(is_half_used=False))
    assert history.begins_danger(near)
    assert not history.begins_danger(near)
    assert not history.begins_danger(near._replace(left_ns=2 * WARN_NS))  # not over yet
    assert not history.begins_danger(near)
    assert not history.begins_danger(near._replace(left_ns=2 * WARN_NS + 1))
    assert history.begins_danger(near)
    assert not history.begins_danger(None)
    assert history.begins_danger(near)
