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
        {"place": "log", "text": "there is no archive here: check the name and the root"}
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
        [f"liftbridge: {words[1]!r} is not a stream: give its name, or <name>@<id>"],
    )


def test_nothing_is_removed_where_there_is_no_archive(run, tmp_path):
    code, _, lines = run("gc", "nowhere", tmp_path)
    assert (code, lines) == (
        2,
        ["liftbridge: there is no archive here: check the name and the root"],
    )


@pytest.mark.parametrize("name", ["verify", "gc"])
def test_address_that_cannot_be_read_is_told_in_one_line(run, name):
    code, _, lines = run(name, "orders", "s3://[x")
    assert (code, len(lines)) == (3, 1)
    assert "archive address 's3://[x'" in lines[0]


@pytest.mark.parametrize(
    ("root", "properties", "told"),
    [
        ("/archive", "uri=http://me:secret@[x", "--catalog uri: the value is not an address"),
        ("az://container/x", "type=sql", "as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
        ("AZURE://container/x", "type=sql", "Iceberg does not support azure://"),
        ("adl://container/x", "type=sql", "Iceberg does not support adl://"),
    ],
)
def test_what_can_never_be_published_is_refused_at_once(run, root, properties, told):
    code, _, lines = run("publish", "orders", root, "--iceberg", "c", "--catalog", properties)
    assert (code, len(lines)) == (2, 1)
    assert told in lines[0]
    assert "secret" not in lines[0]


@pytest.mark.parametrize(
    "words", [("archive", "orders", "/archive"), ("query", "select 1"), ("metrics", "orders")]
)
def test_jobs_take_no_timeout_that_they_would_not_heed(run, words):
    code, _, lines = run(*words, "--timeout", "9")
    assert (code, len(lines)) == (2, 1)
    assert "No such option: --timeout" in lines[0]
