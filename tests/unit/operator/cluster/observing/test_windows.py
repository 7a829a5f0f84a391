"""Windows for disruptions, and moments as the API server writes them."""

import pytest

from liftbridge_operator.cluster.observing.times import (
    exact_text,
    is_open,
    moment_ms,
    moment_text,
    next_opening_ms,
    unknown_zones,
)
from liftbridge_operator.model.operations import Weekday, Window


def window(**fields):
    return Window(**{"start": "22:00", "length": "4h", **fields})


@pytest.mark.parametrize(
    ("moment", "fields", "is_inside"),
    [
        ("2026-11-21T21:59:59Z", {}, False),
        ("2026-11-21T22:00:00Z", {}, True),
        ("2026-11-22T01:59:59Z", {}, True),  # begun the day before
        ("2026-11-22T02:00:00Z", {}, False),
        ("2026-11-21T22:30:00Z", {"days": (Weekday.SATURDAY,)}, True),
        ("2026-11-22T01:00:00Z", {"days": (Weekday.SATURDAY,)}, True),
        ("2026-11-22T22:30:00Z", {"days": (Weekday.SATURDAY,)}, False),
        ("2026-11-21T21:30:00Z", {"time_zone": "Europe/Berlin"}, True),
        ("2026-07-21T20:30:00Z", {"time_zone": "Europe/Berlin"}, True),  # summer time
        ("2026-11-21T20:30:00Z", {"time_zone": "Europe/Berlin"}, False),
        ("2026-11-21T22:30:00Z", {"time_zone": "Nowhere/Atall"}, False),
    ],
)
def test_window_is_open(moment, fields, is_inside):
    assert is_open([window(**fields)], moment_ms(moment)) is is_inside


def test_without_windows_it_is_always_open():
    assert is_open([], 0)


def test_zone_that_is_not_known_is_told():
    assert unknown_zones([window(), window(time_zone="Nowhere/Atall")]) == ("Nowhere/Atall",)


def test_next_opening_is_the_first_of_all_windows():
    now = moment_ms("2026-11-21T12:00:00Z")
    sunday = window(days=(Weekday.SUNDAY,), start="03:00")
    assert moment_text(next_opening_ms([window(), sunday], now)) == "2026-11-21T22:00:00Z"
    assert moment_text(next_opening_ms([sunday], now)) == "2026-11-22T03:00:00Z"
    assert next_opening_ms([window(time_zone="Nowhere/Atall")], now) == 0


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-11-21T10:00:00"])
def test_no_moment_is_zero(text):
    assert moment_ms(text) == 0


def test_moments_read_again_are_the_same():
    assert moment_ms(exact_text(1_795_000_123_456)) == 1_795_000_123_456
    assert moment_ms(moment_text(1_795_000_123_456)) == 1_795_000_123_000
    assert moment_ms("2026-11-21T10:00:00Z") == moment_ms("2026-11-21T11:00:00+01:00")
