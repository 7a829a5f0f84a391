"""One short run of a real cluster under faults; `make chaos` does sixty longer ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from liftbridge_testkit.chaos.runs import Run, RunOptions

SECONDS = 10.0


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_while_real_brokers_are_killed_paused_and_cut_off(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    faults = ("kill", "pause", "isolate", "separate", "kill_all", "restart_nats")
    options = RunOptions(seed=7, seconds=SECONDS, acks_min=1_000, faults_min=3, faults=faults)
    result = Run(tmp_path, options, tell=print).do()
    names = " ".join(name for name, _ in result.faults)
    record_property(
        "note",
        f"real cluster: {result.acked:,} acked, {result.unknown:,} unknown, {names}",
    )
    assert result.violations == []
    assert result.elections > 0
