"""Commands of jobs, as far as they come without Spark and brokers."""

import json

import pytest

from liftbridge_client.cli import app
from liftbridge_client.errors import AckTimeoutError, RetriableError
from pyspark_liftbridge.archive.errors import StoreError
from pyspark_liftbridge.cli.archive import archive_all
from pyspark_liftbridge.jobs.archive import Archived
from pyspark_liftbridge.plan.options import OptionError


@pytest.fixture
def run(capsys):
    """Run a command of jobs in this process; its code, what it printed, and its lines of errors."""

    def done(*words):
        code = app.run(["spark", *map(str, words)])
        found = capsys.readouterr()
        return code, found.out, found.err.splitlines()

    return done


def test_archive_that_does_not_exist_is_not_whole(run, tmp_path):
    code, out, lines = run("verify", "nowhere", tmp_path, "-o", "json")
    assert (code, lines) == (1, [])
    assert json.loads(out) == [
        {"place": "log", "text": "there is no archive here: look at name and root"}
    ]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RetriableError("no leader"), 3, "liftbridge: no leader ("),
        (AckTimeoutError("no answer"), 4, "liftbridge: no answer ("),
        (StoreError("no room"), 3, "liftbridge: no room"),
        (OptionError("no stream"), 2, "liftbridge: no stream"),
    ],
)
def test_streams_behind_one_that_fails_are_archived(capsys, error, code, line):
    archived = []

    def work(stream, error=None):
        if error is not None:
            raise error
        return Archived(stream, f"{stream}/", 1, 0, 0, 0, 0, "")

    works = [
        lambda: work("a"),
        lambda: work("b", error),
        lambda: work("c", RetriableError("later")),
        lambda: work("d"),
    ]
    assert archive_all(works, archived.append) == code
    assert [one.stream for one in archived] == ["a", "d"]
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(line)
    assert told[1].startswith("liftbridge: later (")
    assert archive_all([lambda: work("a")], archived.append) == 0


@pytest.mark.parametrize("words", [("verify", "@9"), ("gc", ""), ("compact", "@9")])
def test_name_of_nothing_is_told_in_one_line(run, tmp_path, words):
    code, _, lines = run(*words, tmp_path)
    assert (code, lines) == (
        2,
        [f"liftbridge: {words[1]!r} names no stream: say its name, or <name>@<id>"],
    )
