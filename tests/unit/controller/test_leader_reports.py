"""Reports of followers: who counts, how many are needed, how often a leader changes (C11)."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.commands import ChangeLeader, LeaderChange
from liftbridge_broker.controller.reports import (
    BACKOFF_NS_MAX,
    BACKOFF_NS_MIN,
    WINDOW_NS,
    LeaderReport,
    LeaderReports,
)
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C = brokers_of("abc")
NOW = Instant(5 * SECOND_NS)


@pytest.fixture
def world() -> ControllerWorld:
    """Three brokers with a partition led by the first."""
    found = ControllerWorld()
    found.start("abc")
    found.create(3)
    return found


@pytest.fixture
def number(world: ControllerWorld) -> PartitionId:
    (found,) = [partition.partition_id for _, partition in world.state.partitions()]
    return found


@pytest.fixture
def reports() -> LeaderReports:
    return LeaderReports()


def report(world: ControllerWorld, number: PartitionId, name: str) -> LeaderReport:
    partition = world.get(number)
    assert partition.leader is not None
    return LeaderReport(
        BrokerId(name), world.epoch(name), number, partition.leader,
        partition.leader_epoch, partition.partition_epoch,
    )  # fmt: skip


def after(seconds: float) -> Instant:
    return Instant(NOW + int(seconds * SECOND_NS))


def test_s81_three_in_sync_need_both_followers(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    assert reports.on_report(world.state, report(world, number, "b"), NOW) is None
    found = reports.on_report(world.state, report(world, number, "c"), after(1))

    partition = world.get(number)
    assert found == LeaderChange(number, partition.leader_epoch, partition.partition_epoch, A)
    world.ok(ChangeLeader(changes=(found,)))
    assert world.pools(number) == ("bc", "", "", "b")


def test_s81_two_in_sync_need_one_follower(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "ab")

    assert reports.on_report(world.state, report(world, number, "b"), NOW) is not None


def test_s81_one_reporter_twice_is_one(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    for _ in range(3):
        assert reports.on_report(world.state, report(world, number, "b"), NOW) is None


def test_s81_the_leader_alone_is_not_replaced(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "a")

    assert reports.on_report(world.state, report(world, number, "b"), NOW) is None
    assert reports.on_report(world.state, report(world, number, "a"), NOW) is None


def test_a_leader_does_not_report_itself(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    reports.on_report(world.state, report(world, number, "a"), NOW)

    assert reports.on_report(world.state, report(world, number, "b"), NOW) is None


def test_s81_a_follower_out_of_sync_does_not_count(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "ab")

    assert reports.on_report(world.state, report(world, number, "c"), NOW) is None


def test_a_fenced_follower_does_not_report(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "ab")
    one = report(world, number, "b")
    # A fenced broker is never in sync; what if it were?
    world.state.brokers[B] = replace(world.state.brokers[B], fenced=True)

    assert reports.on_report(world.state, one, NOW) is None


@pytest.mark.parametrize(
    "given",
    [
        {"broker_epoch": 99},
        {"leader_epoch": 1},
        {"partition_epoch": 1},
        {"leader": C},
        {"partition_id": PartitionId(9)},
        {"reporter": BrokerId("z")},
    ],
)
def test_s81_a_report_on_another_state_does_not_count(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports, given: dict[str, int]
) -> None:
    world.alter(number, "ab")
    wrong = report(world, number, "b")._replace(**given)  # type: ignore[arg-type]  # by name

    assert reports.on_report(world.state, wrong, NOW) is None


def test_reports_too_far_apart_do_not_add_up(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    reports.on_report(world.state, report(world, number, "b"), NOW)
    late = Instant(NOW + WINDOW_NS + 1)

    assert reports.on_report(world.state, report(world, number, "c"), late) is None
    assert reports.on_report(world.state, report(world, number, "b"), late) is not None


def test_a_report_of_one_does_not_put_off_that_of_another(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    reports.on_report(world.state, report(world, number, "b"), NOW)
    reports.on_report(world.state, report(world, number, "b"), after(1.5))

    assert reports.on_report(world.state, report(world, number, "c"), after(3)) is not None


def test_a_change_of_the_partition_begins_a_new_tally(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    reports.on_report(world.state, report(world, number, "b"), NOW)
    world.restart("c", is_clean=True)
    world.alter(number, "abc")

    assert reports.on_report(world.state, report(world, number, "c"), NOW) is None


def test_a_new_metadata_leader_begins_with_nothing(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    reports.on_report(world.state, report(world, number, "b"), NOW)
    reports.clear()

    assert reports.on_report(world.state, report(world, number, "c"), NOW) is None


def test_changes_come_ever_more_rarely_until_it_was_quiet(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "ab")
    one = report(world, number, "b")
    assert reports.on_report(world.state, one, NOW) is not None
    at = NOW
    for pause in (BACKOFF_NS_MIN, 2 * BACKOFF_NS_MIN, 4 * BACKOFF_NS_MIN):
        assert reports.on_report(world.state, one, Instant(at + pause - 1)) is None
        at = Instant(at + pause)
        assert reports.on_report(world.state, one, at) is not None

    quiet = Instant(at + 8 * BACKOFF_NS_MIN + BACKOFF_NS_MAX)
    assert reports.on_report(world.state, one, quiet) is not None
    again = Instant(quiet + BACKOFF_NS_MIN)
    assert reports.on_report(world.state, one, again) is not None


@pytest.mark.parametrize("is_back", [False, True])
def test_next_change_does_not_wait_when_the_former_leader_had_really_gone(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports, is_back: bool
) -> None:
    world.alter(number, "ab")
    found = reports.on_report(world.state, report(world, number, "b"), NOW)
    assert found is not None
    world.ok(ChangeLeader(changes=(found,)))
    if is_back:
        world.restart("a", is_clean=False)
    else:
        world.fence("a")
    world.alter(number, "bc")

    assert reports.on_report(world.state, report(world, number, "c"), after(1)) is not None


def test_next_change_waits_while_the_former_leader_lives(
    world: ControllerWorld, number: PartitionId, reports: LeaderReports
) -> None:
    world.alter(number, "ab")
    found = reports.on_report(world.state, report(world, number, "b"), NOW)
    assert found is not None
    world.ok(ChangeLeader(changes=(found,)))
    world.alter(number, "bc")

    assert reports.on_report(world.state, report(world, number, "c"), after(1)) is None
    assert reports.on_report(world.state, report(world, number, "c"), after(2)) is not None


def test_partitions_back_off_one_by_one() -> None:
    world = ControllerWorld()
    world.start("ab")
    first = world.create(2, partitions=2)
    second = PartitionId(first + 1)
    reports = LeaderReports()

    assert reports.on_report(world.state, report(world, first, "b"), NOW) is not None
    assert reports.on_report(world.state, report(world, second, "a"), NOW) is not None


def test_tallies_have_a_most() -> None:
    world = ControllerWorld()
    world.start("abc")
    first = world.create(3, partitions=3)
    reports = LeaderReports(tallies_max=2)
    for number in range(first, first + 3):
        partition = world.get(PartitionId(number))
        followers = [one for one in partition.isr if one != partition.leader]
        reports.on_report(world.state, report(world, PartitionId(number), followers[0]), NOW)

    partition = world.get(first)
    other = [one for one in partition.isr if one != partition.leader][1]
    assert reports.on_report(world.state, report(world, first, other), NOW) is None
