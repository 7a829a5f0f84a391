"""Scripts of `tests/scenarios/raft`: each does now what it says; `--rewrite` makes it say so."""

import pytest

from liftbridge_testkit.raft.script import play
from liftbridge_testkit.repository import ROOT

SCRIPTS = sorted((ROOT / "tests/scenarios/raft").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script_happens_as_written(path, rewrite):
    expected, played = play(path, rewrite=rewrite)
    assert played == expected


def test_there_are_scripts():
    assert len(SCRIPTS) >= 10
