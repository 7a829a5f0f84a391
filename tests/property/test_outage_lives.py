"""Random lives of a cluster that loses connections to NATS, and at the end a broker."""

import pytest

from liftbridge_testkit.outage_life import REFILL_NS, ROUNDS, OutageLife


@pytest.mark.parametrize("seed", range(10))
def test_outages_move_no_leader_and_hide_no_lost_broker(seed: int) -> None:
    life = OutageLife(seed)
    life.run()
    assert life.stage.world.now > ROUNDS * REFILL_NS
