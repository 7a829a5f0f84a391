"""Random lives of one log on a disk that loses what was not synced, names too."""

import pytest

from liftbridge_testkit.log_life import LogLife


@pytest.mark.parametrize("seed", range(30))
def test_power_cuts_take_only_the_end_of_a_log(seed: int) -> None:
    life = LogLife(seed)
    life.run()
    assert life.values
