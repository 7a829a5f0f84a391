"""How far archives have come: lag, what the status lists, and whether they keep up."""

import pytest

from liftbridge_operator.model.pipeline import PARTITIONS_SHOWN_MAX
from liftbridge_operator.pipelines.positions import (
    WINDOW_SECONDS,
    Mark,
    Place,
    Position,
    behind,
    judge,
    status_of,
)

NOW = "2026-11-24T12:00:00Z"
BEFORE = "2026-11-24T11:00:00Z"
ORDERS = Place("orders", 0)


@pytest.mark.parametrize(
    ("log_start", "high_watermark", "archived", "lag"),
    [
        (0, 0, -1, 0),
        (0, 10, -1, 10),
        (0, 10, 4, 5),
        (0, 10, 9, 0),
        (8, 10, 4, 2),  # what is gone cannot be archived any more
        (0, 3, 9, 0),  # taken back by an unclean election
    ],
)
def test_lag_is_what_is_committed_and_kept_and_not_archived(
    log_start, high_watermark, archived, lag
):
    assert Position(log_start, high_watermark, archived).lag == lag


def test_nothing_left_is_caught_up_at_once():
    mark = judge({ORDERS: Position(0, 10, 9)}, None, 5.0, 60)
    assert mark == Mark(5.0, {ORDERS: 10}, is_caught_up=True)


def test_first_look_at_something_left_is_behind():
    assert not judge({ORDERS: Position(0, 10, 4)}, None, 5.0, 60).is_caught_up


@pytest.mark.parametrize(("archived", "is_caught_up"), [(9, True), (8, False)])
def test_archive_that_has_what_was_committed_a_window_ago_keeps_up(archived, is_caught_up):
    mark = Mark(0.0, {ORDERS: 10}, is_caught_up=not is_caught_up)
    found = judge({ORDERS: Position(0, 500, archived)}, mark, WINDOW_SECONDS, 10)
    assert found == Mark(WINDOW_SECONDS, {ORDERS: 500}, is_caught_up)


def test_within_the_window_nothing_is_judged():
    mark = Mark(0.0, {ORDERS: 10}, is_caught_up=True)
    assert judge({ORDERS: Position(0, 500, 0)}, mark, WINDOW_SECONDS - 1, 10) is mark
    assert judge({ORDERS: Position(0, 500, 0)}, mark, 199.0, 100) is mark


def test_partition_that_is_new_is_not_what_the_archive_waits_for():
    mark = Mark(0.0, {ORDERS: 10}, is_caught_up=False)
    found = {ORDERS: Position(0, 20, 9), Place("orders", 1): Position(0, 7, -1)}
    assert judge(found, mark, WINDOW_SECONDS, 10).is_caught_up


def test_commit_is_when_the_archive_was_seen_to_come_further():
    before = {
        "partitions": [
            {"stream": "orders", "partition": 0, "archivedOffset": 4, "lastCommit": BEFORE},
            {"stream": "orders", "partition": 1, "archivedOffset": 4, "lastCommit": BEFORE},
        ]
    }
    places = [Place("orders", number) for number in range(4)]
    ends = (4, 5, 0, -1)
    found = {one: Position(0, 10, end) for one, end in zip(places, ends, strict=True)}
    commits = [one.get("lastCommit") for one in status_of(found, before, NOW)["partitions"]]
    assert commits == [BEFORE, NOW, NOW, None]


def test_partitions_with_the_largest_lag_are_listed_and_the_rest_is_summed():
    count = PARTITIONS_SHOWN_MAX + 3
    found = {Place("orders", number): Position(0, 10 + number, -1) for number in range(count)}
    status = status_of(found, {}, NOW)
    assert len(status["partitions"]) == PARTITIONS_SHOWN_MAX
    assert [one["partition"] for one in status["partitions"]][:2] == [3, 4]
    assert status["others"] == {"partitions": 3, "lag": 10 + 11 + 12}
    assert status["lag"] == sum(10 + number for number in range(count))


def test_those_behind_are_those_with_something_left():
    found = {ORDERS: Position(0, 10, 9), Place("orders", 1): Position(0, 10, 8)}
    assert behind(found) == [Place("orders", 1)]
