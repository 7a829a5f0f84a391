"""Ten thousand power cuts on the file layer that loses what was not synced.

Seeds are printed by a failing test, with the command that replays one.
"""

import os
import subprocess
import sys

import pytest

from liftbridge_testkit.power_cut import CUTS_PER_SEED, run_seed

CUTS = 10_000
SHARDS = 10
REGRESSION_SEEDS = (
    0,
    11,
    17,
    34,
    37,
    41,
    58,
    118,
    227,
    259,
    262,
    456,
    504,
    515,
    748,
    817,
    1334,
    11200,
)
"""Each showed a fault when it was first run: in truncation, recovery, the journal or compaction."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_power_cut_loses_what_was_called_durable(shard: int) -> None:
    seeds_count = CUTS // CUTS_PER_SEED // SHARDS
    first = shard * seeds_count
    cuts = records = 0
    for seed in range(first, first + seeds_count):
        lives = run_seed(seed)
        cuts += lives.cut_count
        records += lives.appended_count
    assert cuts >= CUTS // SHARDS
    assert records > cuts


@pytest.mark.parametrize("seed", REGRESSION_SEEDS)
def test_seed_that_once_found_a_fault_passes(seed: int) -> None:
    assert run_seed(seed).cut_count >= CUTS_PER_SEED


def test_same_seed_lives_the_same_life_under_another_hash_seed() -> None:
    """What a run does must not depend on the order of sets, else seeds replay nothing."""
    command = [sys.executable, "-m", "liftbridge_testkit.power_cut", "--seed", "3", "--verbose"]
    traces = set()
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=60,
        )
        # The last line tells the time it took.
        traces.add(b"\n".join(result.stdout.splitlines()[:-1]))
    assert len(traces) == 1
    assert traces.pop().count(b"power cut") >= CUTS_PER_SEED
