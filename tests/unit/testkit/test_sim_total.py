"""What ranges of seeds came to, carried between processes."""

from liftbridge_testkit.sim.seeds import SeedResult
from liftbridge_testkit.sim.total import Sum

GOOD = SeedResult(7, "lone", 10, 1, 0.5, "h", {("fault", "kill"): 2})
BAD = SeedResult(3, "cluster", 20, 2, 1.5, "h", {("fault", "kill"): 1}, failure="it broke")


def test_what_another_process_found_is_told_with_its_failures() -> None:
    theirs, ours = Sum(), Sum()
    theirs.add(BAD)
    ours.add(GOOD)
    ours.add_text(theirs.as_text())
    assert (ours.seeds, ours.first, ours.last, ours.events) == (2, 3, 7, 30)
    assert ours.coverage.counts["fault", "kill"] == 3
    lines = ours.lines(2.0, {})
    assert any("2 seeds from 3 to 7" in line and line.endswith("1 failed") for line in lines)
    assert lines[-1].startswith("seed 3 failed; python -m liftbridge_testkit.sim --replay 3 ")
