"""Stories in other orders of events; `python -m liftbridge_testkit.sim.scripts.vary` for many."""

import pytest

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.scripts.vary import STORIES, main, vary

LOST = "cluster A\ncreate s\npublish s v1\nkill A\nshorten A streams/*.log 9\nstart A\nsettle\n"
SOME = ("s001", "s014", "s018", "s023", "s032")


@pytest.mark.parametrize("name", SOME)
def test_nothing_is_broken_in_another_order_of_events(name):
    (path,) = STORIES.glob(f"{name}_*.txt")
    assert vary(path.read_text(), 1).done > 10


def test_steps_that_do_not_come_about_are_passed_over():
    text = "cluster A\ncreate s\nuntil leader s/0 B\npublish s v1\nexpect end A s/0 7\nsettle\n"
    varied = vary(text, 1)
    assert varied.missed == ("until leader s/0 B",)
    assert varied.done == 4


def test_broken_promise_is_told_with_its_seed(capsys, tmp_path):
    (tmp_path / "s000_lost.txt").write_text(LOST)
    assert main(["1:2", "--folder", str(tmp_path)]) == 1
    assert "s000_lost.txt 1: " in capsys.readouterr().out


def test_broken_promise_ends_a_story():
    with pytest.raises(BrokenInvariantError):
        vary(LOST, 1)
