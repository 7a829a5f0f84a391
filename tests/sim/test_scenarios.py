"""Every script of `tests/scenarios` plays as it is written; `--rewrite` writes what it does now."""

from pathlib import Path

import pytest

from liftbridge_testkit.sim.scripts.play import VERBS, play
from liftbridge_testkit.sim.scripts.script import ScriptError, read, run

SCRIPTS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_plays_as_written(path, rewrite):
    text = path.read_text(encoding="utf-8")
    came = play(text, rewrite=rewrite)
    if rewrite:
        path.write_text(came, encoding="utf-8")
    assert came == path.read_text(encoding="utf-8")


def test_every_script_begins_with_its_story():
    assert SCRIPTS
    assert [path.name for path in SCRIPTS if not path.read_text().startswith("# ")] == []


def test_other_output_than_expected_is_a_failure_with_its_line():
    with pytest.raises(ScriptError, match=r"line 2: say b\n.*expected:\n.*c\ncame:\nb") as failure:
        run("say a\nsay b\n  c\n", lambda command: [command[4:]] if command != "say a" else [])
    assert failure.value.line == 2


def test_failed_expectation_is_a_failure_with_its_line():
    text = "cluster A\ncreate s\npublish s v1\n  acked 0@e1\nexpect end A s/0 7\n"
    with pytest.raises(ScriptError, match=r"line 5: expect end A s/0 7\nAssertionError: is 1"):
        play(text)


def test_rewriting_puts_what_came_and_keeps_the_rest():
    text = "# story\n\nsay a\n  old\n# remark\nsay b\n"
    assert run(text, lambda command: [command[4:]], rewrite=True) == (
        "# story\n\nsay a\n  a\n# remark\nsay b\n  b\n"
    )


def test_output_of_nothing_is_refused():
    with pytest.raises(ScriptError, match="output of nothing"):
        read("  lost\n")


def test_verbs_are_single_words():
    assert [verb for verb in VERBS if " " in verb] == []
