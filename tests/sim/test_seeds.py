"""Seeds that nobody played before: no promise is broken, and enough is met to prove it.

250, or `SIM_COUNT`, from a first one that the id of the commit gives: so a failure is a fault that
was found, and the same commit finds it again. `SIM_SEEDS=a:b` takes another range; the summary
prints it. Chunks are tests of their own, which workers share; the
one that ends last holds what all of them met against the floors.
"""

import os
import subprocess
from pathlib import Path

import pytest

from liftbridge_testkit.sim.seeds import run_seed, seed_range
from liftbridge_testkit.sim.total import Sum


def first_seed():
    """The id of the commit as a number, rounded; outside a repository the same one always."""
    told = subprocess.run(
        ["git", "-C", Path(__file__).parent, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(told.stdout[:7] or "100", 16) * 1_000


FIRST = first_seed()
COUNT = int(os.environ.get("SIM_COUNT") or 250)
RANGE = seed_range(os.environ.get("SIM_SEEDS") or f"{FIRST}:{FIRST + COUNT}")
CHUNK = 25
CHUNKS = [RANGE[at : at + CHUNK] for at in range(0, len(RANGE), CHUNK)]


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    """Where all workers of a run leave what their chunks came to."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    place = shared / "seeds"
    place.mkdir(exist_ok=True)
    return place


@pytest.mark.timeout(3_600)  # CI plays them at the lowest priority
@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: f"{chunk.start}:{chunk.stop}")
def test_fresh_seeds_break_no_promise(chunk, told, record_property):
    total = Sum()
    for seed in chunk:
        total.add(run_seed(seed))
    record_property("seeds", total.as_text())
    unfinished = told / f"{chunk.start}.unfinished"
    unfinished.write_text(total.as_text(), encoding="utf-8")
    unfinished.rename(told / str(chunk.start))
    assert [one.failure for one in total.failures] == []
    assert missing(told) == []


def missing(told):
    """Floors that all chunks together did not reach; nothing while some of them run."""
    found = [told / str(chunk.start) for chunk in CHUNKS]
    if not all(path.exists() for path in found):
        return []
    total = Sum()
    for path in found:
        total.add_text(path.read_text(encoding="utf-8"))
    return total.missing()
