"""When a disk counts as too slow to lead with."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.storage.slowness import Slowness, SlownessLimits

LIMITS = SlownessLimits(
    stall_ns=2_000, slow_ns=500, lasting_ns=10_000, pause_ns_min=20_000, pause_ns_max=80_000
)


def after(slowness: Slowness, now: int, *durations: int) -> int:
    """Let syncs follow each other; when the last one ended."""
    for duration in durations:
        slowness.begin(Instant(now))
        now += duration
        slowness.end(Instant(now))
    return now


def test_a_sync_that_does_not_end_has_stalled() -> None:
    slowness = Slowness(LIMITS)
    slowness.begin(Instant(100))
    assert not slowness.is_slow(Instant(2_099))
    assert slowness.is_slow(Instant(2_100))
    slowness.end(Instant(2_500))
    assert not slowness.is_slow(Instant(2_500))


def test_slow_syncs_count_when_all_of_a_time_were() -> None:
    slowness = Slowness(LIMITS)
    end = after(slowness, 0, *[500] * 19)
    assert not slowness.is_slow(Instant(end))
    end = after(slowness, end, 500)
    assert slowness.is_slow(Instant(end))
    assert not slowness.is_slow(Instant(end + 10_001))


def test_one_fast_sync_among_slow_ones_clears_the_disk() -> None:
    slowness = Slowness(LIMITS)
    end = after(slowness, 0, *[900] * 10, 499, *[900] * 11)
    assert not slowness.is_slow(Instant(end))
    assert slowness.is_slow(Instant(after(slowness, end, 900)))


def test_two_slow_syncs_far_apart_say_nothing() -> None:
    slowness = Slowness(LIMITS)
    after(slowness, 0, 600)
    assert not slowness.is_slow(Instant(after(slowness, 20_000, 600)))


def test_the_pause_between_hand_overs_grows_and_is_forgotten_in_good_times() -> None:
    slowness = Slowness(LIMITS)
    slowness.begin(Instant(0))
    taken = [now for now in range(0, 400_000, 1_000) if slowness.take_hand_over(Instant(now))]
    assert taken == [2_000, 22_000, 62_000, 142_000, 222_000, 302_000, 382_000]
    slowness.end(Instant(400_000))
    slowness.begin(Instant(600_000))
    taken = [now for now in range(600_000, 650_000, 1_000) if slowness.take_hand_over(Instant(now))]
    assert taken == [602_000, 622_000]
