"""A full run of stories goes on where it was broken off, and reports all of a commit."""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import pytest

from liftbridge_testkit.kube import results
from liftbridge_testkit.kube.full import Registered, chosen, main, numbers
from liftbridge_testkit.kube.results import Restart, Result, commit_key, pending, shard

pytest_plugins = "pytester"

MINUTES = {"a": 9.0, "b": 5.0, "c": 4.0, "d": 2.0, "e": 1.0}


def test_shards_have_every_story_once_and_about_the_same_length() -> None:
    shards = [shard(MINUTES, number, 3) for number in (1, 2, 3)]
    assert sorted(chain.from_iterable(shards)) == sorted(MINUTES)
    assert max(sum(MINUTES[name] for name in one) for one in shards) == 9.0
    assert shard(dict(reversed(MINUTES.items())), 1, 3) == shards[0]
    with pytest.raises(ValueError, match="the last 3"):
        shard(MINUTES, 4, 3)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/", "-1/2"])
def test_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        numbers(text)


def test_shard_is_read() -> None:
    assert numbers("2/4") == (2, 4)
    stories = {name: Registered(name, minutes) for name, minutes in MINUTES.items()}
    assert chosen(stories, (1, 1)) == sorted(MINUTES)
    assert chosen(stories, (1, 1), ["b", "x"]) == ["b"]


def test_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    restart = Restart("roll", "c-0", 1.0, 2.5, {"orders/0": 0.3})
    result = Result("a", "abc", passed=True, restarts=[restart], notes={"n": [1]})
    assert results.write(result, tmp_path) == tmp_path / "abc" / "a.json"
    assert results.read_all("abc", tmp_path) == {"a": result}
    assert results.read_all("abd", tmp_path) == {}


def test_story_that_failed_or_was_not_played_is_pending() -> None:
    found = {"a": Result("a", "abc", passed=True), "b": Result("b", "abc", failures=["no"])}
    assert pending("abc", found) == ["b", "c"]


class Played:
    """Plays stories as it is told; each leaves a result."""

    def __init__(self, folder: Path, *failing: str) -> None:
        self.folder = folder
        self.failing = failing
        self.asked: list[list[str]] = []

    def __call__(
        self, names: Sequence[str], _stories: Mapping[str, Registered], commit: str
    ) -> None:
        self.asked.append(list(names))
        for name in names:
            failures = ["c-0 and c-1 were down at once"] if name in self.failing else []
            one = Result(name, commit, passed=not failures, failures=failures, seconds=61.0)
            results.write(one, self.folder)

    def run(self, *arguments: str) -> int:
        stories = {name: Registered(f"t::{name}", minutes) for name, minutes in MINUTES.items()}
        return main(arguments, folder=self.folder, commit="abc", find=lambda: stories, perform=self)


def test_run_goes_on_with_what_did_not_pass(tmp_path: Path) -> None:
    first = Played(tmp_path, "d")
    assert first.run("--shard", "1/2") == 1
    again = Played(tmp_path)
    assert again.run("--shard", "1/2") == 0
    assert again.run("--shard", "2/2") == 0
    assert again.run() == 0
    assert first.asked[0] == shard(MINUTES, 1, 2)
    assert again.asked == [["d"], shard(MINUTES, 2, 2)]


def test_nothing_is_played_when_only_the_list_is_asked_for(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.run("--list") == 0
    assert played.asked == []


def test_report_has_all_shards_of_the_commit(tmp_path: Path) -> None:
    Played(tmp_path, "d").run("--shard", "1/2")
    page = (tmp_path / "abc" / "report.md").read_text()
    told = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines(page)}
    assert told["d"] == "FAILED"
    assert {told[name] for name in shard(MINUTES, 2, 2)} == {"not run"}
    assert "## d failed\n\n- c-0 and c-1 were down at once" in page


def lines(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| ")]


def test_rolls_are_measured_against_their_targets() -> None:
    def rolled(name: str, gap: float, count: int) -> Result:
        gaps = {f"orders/{number}": 0.1 for number in range(7)} | {"orders/7": gap}
        restarts = [Restart(f"roll {n}", "c-0", 0.0, 1.0, gaps) for n in range(count)]
        return Result(name, "abc", passed=True, restarts=restarts)

    enough = results.rolls({"a": rolled("a", 0.9, 20)})
    assert enough[1].endswith("yes |")
    few = results.rolls({"a": rolled("a", 0.9, 19)})
    slow = results.rolls({"a": rolled("a", 2.1, 20)})
    assert [few[1].split()[-2], slow[1].split()[-2]] == ["NO", "NO"]
    assert results.rolls({"a": Result("a", "abc")}) == []


def test_commit_with_changes_is_another_one(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    file = tmp_path / "f"
    file.write_text("1")
    git("add", "f")
    git("commit", "-m", "one")
    clean = commit_key(tmp_path)
    file.write_text("2")
    changed = commit_key(tmp_path)
    file.write_text("3")
    assert len({clean, changed, commit_key(tmp_path)}) == 3
    assert changed.startswith(f"{clean}+")


def test_stories_of_the_repository_are_found() -> None:
    command = [sys.executable, "-m", "liftbridge_testkit.kube.full", "--list"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    core = {"image-roll", "three-four-three", "node-crash", "bad-image", "quiet"}
    assert core <= set(done.stdout.split())


CONFTEST = """
from pathlib import Path
from liftbridge_testkit.kube.outcomes import Outcomes

def pytest_configure(config):
    config.addinivalue_line("markers", "story(name): a story")
    config.pluginmanager.register(Outcomes(Path("results")))
"""
TESTS = """
from pathlib import Path
import pytest
from liftbridge_testkit.kube.results import Result, write

def play(name, *failures):
    Path("results/abc", name).mkdir(parents=True)
    write(Result(name, "abc", not failures, list(failures), seconds=61.0), Path("results"))

@pytest.mark.story("good")
def test_good():
    play("good")

@pytest.mark.story("other")
def test_other():
    play("other")
    assert 16 == 17, "readers"

@pytest.mark.story("bad")
def test_bad():
    play("bad", "c-0 and c-1 were down at once")
    assert False, "all of it"

@pytest.mark.story("none")
def test_none():
    assert False
"""


def test_story_has_not_passed_whose_test_fails_afterwards(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_stories=TESTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFTBRIDGE_STORIES_KEY", "abc")
        done = pytester.runpytest_subprocess("-p", "no:randomly", timeout=60)
    done.assert_outcomes(passed=1, failed=3)
    found = results.read_all("abc", pytester.path / "results")
    assert {name: (one.passed, one.failures) for name, one in found.items()} == {
        "good": (True, []),
        "other": (False, ["AssertionError: readers\nassert 16 == 17"]),
        "bad": (False, ["c-0 and c-1 were down at once"]),
    }
    assert found["other"].seconds == 61.0
    kept = {path.name for path in (pytester.path / "results/abc").iterdir() if path.is_dir()}
    assert kept == {"other", "bad"}
