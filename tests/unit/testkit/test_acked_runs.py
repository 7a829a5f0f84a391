"""Acks of a publisher in runs, and what is missing of them; when NATS is disturbed."""

import pytest

from liftbridge_testkit.acked_runs import AckedRuns, Run, missing
from liftbridge_testkit.nats_breaks import Disturbance, spread


def runs(*acks):
    acked = AckedRuns()
    for number, offset in acks:
        acked.add(number, offset)
    assert acked.count == len(acks)
    return acked.runs


def test_acks_in_order_are_one_run():
    assert runs((0, 5), (1, 6), (2, 7)) == [Run(0, 5, 3)]


def test_unknown_outcome_begins_another_run():
    assert runs((0, 0), (1, 1), (3, 2), (4, 3)) == [Run(0, 0, 2), Run(3, 2, 2)]
    assert runs((0, 0), (2, 2), (3, 4)) == [Run(0, 0, 1), Run(2, 2, 1), Run(3, 4, 1)]


@pytest.mark.parametrize(
    ("records", "lost"),
    [
        ([(0, 0), (1, 1), (2, 3), (3, 4)], 0),
        ([(0, 0), (1, 1), (2, 3), (3, 4), (4, 9)], 0),
        ([(0, 0), (1, 1), (2, 3)], 1),
        ([], 4),
        ([(0, 0), (1, 2), (2, 3), (3, 4)], 1),
        ([(0, 0), (2, 3), (3, 4)], 1),
        ([(0, 1), (1, 0), (2, 4), (3, 3)], 4),
    ],
)
def test_acknowledged_message_is_missing_unless_it_is_at_its_offset(records, lost):
    assert missing([Run(0, 0, 2), Run(3, 2, 2)], records) == lost


def test_runs_out_of_order_are_found():
    assert missing([Run(3, 2, 2), Run(0, 0, 2)], [(0, 0), (1, 1), (2, 3), (3, 4)]) == 0


def test_offset_that_was_acknowledged_twice_is_missing_once():
    assert missing([Run(0, 0, 1), Run(1, 0, 1)], [(0, 0)]) == 1


def test_restarts_and_breaks_come_at_even_intervals():
    assert spread(60.0, restarts=2, breaks=3) == [
        Disturbance(10.0, is_restart=False),
        Disturbance(15.0, is_restart=True),
        Disturbance(30.0, is_restart=False),
        Disturbance(45.0, is_restart=True),
        Disturbance(50.0, is_restart=False),
    ]
    assert spread(60.0, restarts=0, breaks=0) == []
