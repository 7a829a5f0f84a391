"""`liftbridge spark query`, `metrics` and `doctor`, and what the how-to says of them."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from liftbridge_client import SyncClient
from liftbridge_client.cli import app
from liftbridge_testkit.pages import Shown, commands_of, words_of
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs.metrics import Range, metrics

COMMAND = Path(sys.executable).parent / "liftbridge"

# The first one waits for the session as well, which a busy machine takes a minute to start.
pytestmark = pytest.mark.timeout(300)


class Done(NamedTuple):
    code: int
    out: str
    lines: list[str]

    @property
    def rows(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(spark: SparkSession, broker: Broker, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command of jobs in this process, in the session of the tests."""

    def done(*words: str) -> Done:
        capsys.readouterr()
        code = app.run(["spark", *words, "--servers", broker.address])
        found = capsys.readouterr()
        told = [line for line in found.err.splitlines() if line.startswith("liftbridge: ")]
        assert "Traceback" not in found.err
        return Done(code, found.out, told)

    assert spark.version
    return done


@pytest.fixture(scope="module", autouse=True)
def orders(lb: SyncClient) -> None:
    for name in ("orders", "orders.eu"):
        stream = lb.streams.create(name, partitions=2)
        for number in range(6):
            stream.publish(b"%d apples" % number, key=b"%d" % (number % 3), partition=number % 2)


def test_values_of_any_type_are_printed_of_a_stream_whose_name_is_quoted(run: Any) -> None:
    statement = (
        "select partition, offset as at, cast(value as string) as value, null as nothing, "
        "key, timestamp'2026-01-02 03:04:05Z' as time, double('nan') as number "
        "from `orders.eu` order by value"
    )
    done = run("query", statement, "--stream", "orders.eu", "-o", "json")
    assert (done.code, done.lines) == (0, [])
    assert [row["value"] for row in done.rows] == [f"{number} apples" for number in range(6)]
    assert done.rows[0] == {
        "partition": 0,
        "at": 0,
        "value": "0 apples",
        "nothing": None,
        "key": "MA==",
        "time": "2026-01-02T03:04:05.000Z",
        "number": "NaN",
    }


def test_rows_are_a_table_and_bounded(run: Any) -> None:
    statement = "select offset, cast(value as string) as what from orders order by value"
    done = run("query", statement, "-s", "orders", "--limit", "2")
    assert done.out.split() == ["OFFSET", "WHAT", "0", "0", "apples", "0", "1", "apples"]
    assert done.lines == ["liftbridge: only the first 2 rows are shown; raise --limit for more"]
    done = run("query", statement, "-s", "orders", "--limit", "6")
    assert (len(done.out.splitlines()), done.lines) == (7, [])
    done = run("query", "select offset from orders where false", "-s", "orders", "-o", "json")
    assert done.rows == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("query", "selec 1"), 2, "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'"),
        (("query", "select 1/(offset - offset) from orders", "-s", "orders"), 2, "DIVIDE_BY_ZERO"),
        (("query", "select 1 as a, 2 as a"), 2, "two columns of the result are named 'a'"),
        (("query", "select * from nowhere", "-s", "nowhere"), 2, "stream nowhere does not exist"),
        (
            ("metrics", "orders", "--from", "x"),
            2,
            "--from x: must be a time such as -10m, or an ISO time",
        ),
        (
            ("metrics", "orders", "--from", "2026-02-01", "--to", "2026-01-01"),
            2,
            "must not be before",
        ),
    ],
)
def test_what_cannot_be_answered_is_told_in_one_line(
    run: Any, words: tuple[str, ...], code: int, told: str
) -> None:
    done = run(*words)
    assert (done.code, len(done.lines)) == (code, 1), done.lines
    assert told in done.lines[0]


def test_windows_count_records_sizes_keys_and_gaps(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("measured", partitions=2)
    minute = 60 * 10**9
    begin = 1_764_000_000 * 10**9
    offsets = [0, 1, 5, 6]
    values = [b"x" * size for size in (10, 20, 30, 1_000)]
    times = [begin, begin + 1, begin + minute, begin + 3 * minute]
    restored(lb, "measured", offsets, values, [b"a", b"a", b"", b"\xff"], times)
    stream.publish(b"now", key=b"a", partition=1)
    source = {"servers": broker.address}
    rows = metrics(spark, Range("measured", 60, None, None), source)
    start = datetime.fromtimestamp(1_764_000_000, UTC)
    assert rows[:3] == [
        (start, 2, 32, 10, 20, 1, {"a": 2}, 0),
        (start.replace(minute=start.minute + 1), 1, 30, 30, 30, 0, {}, 3),
        (start.replace(minute=start.minute + 3), 1, 1_001, 1_000, 1_000, 1, {"/w==": 1}, 0),
    ]
    assert [(row.records, row.gaps) for row in rows[3:]] == [(1, 0)]
    ms = begin // 10**6
    part = metrics(spark, Range("measured", 3_600, ms + 1_000, ms + 61_000), source)
    assert [row.records for row in part] == [1]
    assert metrics(spark, Range("measured", 60, 4 * 10**12, None), source) == []


def restored(
    lb: SyncClient,
    name: str,
    offsets: list[int],
    values: list[bytes],
    keys: list[bytes],
    times: list[int],
) -> None:
    """Put records at offsets and times of their own."""
    import pyarrow as pa  # noqa: PLC0415 - of this helper alone

    batch = pa.record_batch(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.int64()),
            "key": pa.array([key or None for key in keys], pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    lb.streams.get(name).restore(0, [batch])


def test_command_runs_at_a_server_of_spark_connect(broker: Broker, remote: str) -> None:
    words = ("query", "select count(*) as n from `orders.eu`", "-s", "orders.eu")
    done = subprocess.run(
        [COMMAND, "spark", *words, "--remote", remote, "--servers", broker.address, "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"n": 6}]


@pytest.mark.shows("how-to/query-streams.md")
def test_commands_of_the_how_to_run(shown: Shown, run: Any, broker: Broker, tmp_path: Path) -> None:
    printed: dict[str, list[str]] = {}
    for title in shown.titles:
        for line in commands_of(shown, title):
            words = words_of(line.replace("localhost:9292", broker.address))
            words = [str(tmp_path) if word == "/archive" else word for word in words]
            assert words[:2] == ["liftbridge", "spark"]
            done = run(*words[2:])
            assert (done.code, done.lines) == (0, []), line
            printed.setdefault(title, []).append(done.out)
    doctor, query, measure = printed.values()
    assert "1 in the cluster" in doctor[0]
    assert "refuses to overwrite a file" in doctor[1]
    assert query[0].split() == ["ORDERS", "6"]
    values = {row["value"] for row in json.loads(query[1])}
    assert values == {f"{number} apples" for number in range(6)}
    assert sum(row["records"] for row in json.loads(measure[1])) == 6


@pytest.mark.shows("how-to/archive-streams.md", "Compact")
def test_archives_are_compacted_as_the_how_to_says(
    shown: Shown, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("archive", "orders", str(tmp_path)).code == 0
    compacted = []
    for line in commands_of(shown, "Compact"):
        words = [str(tmp_path) if word == "/archive" else word for word in words_of(line)]
        assert app.run([*words[1:], "-o", "json"]) == 0, line
        compacted.append(json.loads(capsys.readouterr().out))
    assert [(row["table"], row["records_removed"]) for row in compacted] == [("orders/", 0)] * 2


def test_doctor_ends_with_1_when_a_check_fails(run: Any) -> None:
    done = run("doctor", "ftp://x/y", "-o", "json")
    assert done.code == 1
    states = {row["check"]: row["state"] for row in done.rows}
    assert (states["archive"], states["brokers"], states["pyspark"]) == ("failed", "ok", "ok")
