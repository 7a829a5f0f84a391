"""The budget of leaders for replicas that reassignments add."""

from random import Random

import pytest

from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.replicas.catch_up import CatchUp

RATE = 1_000_000


ONE, TWO = PartitionId(1), PartitionId(2)


def test_without_a_rate_everything_is_sent() -> None:
    budget = CatchUp(lambda: 0)
    budget.spend(1 << 40)
    assert budget.may_send(ONE, Instant(0))
    assert budget.next_deadline() is None


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_holds_on_average_whatever_the_sizes(seed: int) -> None:
    random = Random(seed)
    budget = CatchUp(lambda: RATE)
    now, sent = Instant(SECOND_NS), 0
    while now < 60 * SECOND_NS:
        if budget.may_send(ONE, now):
            size = random.choice((100, 10_000, 3_000_000))
            budget.spend(size)
            sent += size
            continue
        due = budget.next_deadline()
        assert due is not None
        assert budget.take_released(Instant(due - SECOND_NS // 1_000)) == []
        assert budget.take_released(due) == [ONE]
        now = due
    assert 0.95 < sent / (60 * RATE) < 1.1


def test_idle_time_is_saved_for_a_second_only() -> None:
    budget = CatchUp(lambda: RATE)
    late = Instant(3_600 * SECOND_NS)
    assert budget.may_send(ONE, late)
    budget.spend(RATE)
    assert not budget.may_send(ONE, late)


def test_all_that_wait_go_on_together_and_when_the_limit_is_taken_back() -> None:
    rate = RATE
    budget = CatchUp(lambda: rate)
    assert budget.may_send(ONE, Instant(SECOND_NS))
    budget.spend(100 * RATE)
    assert not budget.may_send(ONE, Instant(SECOND_NS))
    assert not budget.may_send(TWO, Instant(SECOND_NS))
    rate = 0
    assert budget.next_deadline() == SECOND_NS
    assert budget.take_released(Instant(SECOND_NS)) == [ONE, TWO]
    assert budget.next_deadline() is None
