"""`liftbridge spark archive`: a table that every reader of Delta reads, made by real tasks."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from liftbridge_client import CallTimeoutError, RetriableError, SyncClient, connect_sync
from liftbridge_client.cli import app, exits
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs import archive, compact
from pyspark_liftbridge.jobs.archive import Job, archive_once
from pyspark_liftbridge.jobs.tasks import runner

COMMAND = Path(sys.executable).parent / "liftbridge"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "spark", *words], capture_output=True, text=True, check=False, timeout=120
    )


def publish(lb: SyncClient, stream: str, partition: int, count: int) -> None:
    with lb.streams.get(stream).publisher() as publisher:
        publisher.publish_batch([b"%d" % one for one in range(count)], partition=partition)


def test_tasks_of_spark_archive_each_record_once(
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive, "TASK_OFFSETS_MAX", 400)
    lb.streams.create("kept", partitions=3)
    publish(lb, "kept", 0, 1_000)
    publish(lb, "kept", 2, 50)
    job = Job("kept", str(tmp_path), {"servers": broker.address}, {}, fails_on_loss=True)
    done = archive_once(job, runner(spark, "archive"))
    assert (done.records, done.files) == (1_050, 4)
    publish(lb, "kept", 1, 7)
    assert archive_once(job, runner(spark, "archive")).records == 7

    table = DeltaTable(tmp_path / "kept")
    wanted = sorted(
        (partition, number, b"%d" % number)
        for partition, count in ((0, 1_000), (1, 7), (2, 50))
        for number in range(count)
    )
    rows = table.to_pyarrow_table(columns=["partition", "offset", "value"]).to_pydict()
    assert sorted(zip(*rows.values(), strict=True)) == wanted
    frame = spark.read.parquet(*table.file_uris())
    assert sorted((row.partition, row.offset, row.value) for row in frame.collect()) == wanted


@pytest.mark.parametrize(
    ("stop", "kind", "code"),
    [
        (Broker.kill, RetriableError, exits.UNHEALTHY),
        (Broker.pause, CallTimeoutError, exits.TIMED_OUT),
    ],
)
def test_a_broker_that_goes_away_under_a_task_is_a_refusal(
    spark: SparkSession, tmp_path: Path, stop: Callable[[Broker], None], kind, code: int
) -> None:
    with Broker(tmp_path / "broker") as broker:
        with connect_sync(broker.address) as lb:
            lb.streams.create("left")
            publish(lb, "left", 0, 10)
        source = {"servers": broker.address, "fetch.timeout": "2s"}
        job = Job("left", str(tmp_path / "root"), source, {}, fails_on_loss=True)
        done = runner(spark, "archive")

        def run(works: Sequence[str]) -> Sequence[str]:
            stop(broker)
            return done(works)

        with pytest.raises(kind) as caught:
            archive_once(job, run)
        assert exits.line_and_code(caught.value)[1] == code
        assert "Traceback" not in str(caught.value)


def test_the_command_archives_checks_and_cleans(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("by-command")
    publish(lb, "by-command", 0, 20)
    words = ("by-command", str(tmp_path), "-o", "json")
    done = run("archive", *words, "--servers", broker.address)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["records"], row["files"], row["table"]) == (20, 1, "by-command/")
    checked = run("verify", *words)
    assert (checked.returncode, json.loads(checked.stdout)) == (0, [])
    (file,) = (tmp_path / "by-command").glob("data/0/*/*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    checked = run("verify", *words)
    assert checked.returncode == 1
    assert file.name in json.loads(checked.stdout)[0]["place"]
    cleaned = run("gc", *words)
    assert (cleaned.returncode, json.loads(cleaned.stdout)) == (0, [])


def test_root_is_found_from_where_the_command_is_given(
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks begin in the folder of the JVM, which was made before."""
    assert spark.version
    lb.streams.create("near")
    publish(lb, "near", 0, 20)
    monkeypatch.chdir(tmp_path)
    assert app.run(["spark", "archive", "near", "root", "--servers", broker.address]) == 0
    assert DeltaTable(tmp_path / "root" / "near").to_pyarrow_table().num_rows == 20


def test_tasks_of_spark_compact_an_archive(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("packed", partitions=2)
    source = archive.Job("packed", str(tmp_path), {"servers": broker.address}, {}, True)  # noqa: FBT003 - as a task gets it
    for _ in range(3):
        for partition in (0, 1):
            for key in (b"a", b"b"):
                lb.streams.get("packed").publish(b"value", key=key, partition=partition)
        archive_once(source, runner(spark, "archive"))

    def rows() -> list[tuple[int, int]]:
        found = spark.read.parquet(*DeltaTable(tmp_path / "packed").file_uris())
        return sorted((row.partition, row.offset) for row in found.collect())

    before = rows()
    small = compact.Job("packed", str(tmp_path), {}, 1 << 27, None)
    done = compact.compact(small, runner(spark, "compact"))
    assert (done.files_before, done.files_after, rows()) == (6, 2, before)
    by_key = small._replace(keep_tombstones_ms=0)
    assert compact.compact(by_key, runner(spark, "compact")).records_removed == 8
    assert rows() == [(0, 4), (0, 5), (1, 4), (1, 5)]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("archive", "nowhere", "{root}"), 2, "stream nowhere does not exist"),
        (("archive", "any", "ftp://x/y"), 3, "the scheme 'ftp' is not one of"),
        (("archive", "any", "{root}", "--store", "secret=x"), 2, "--store secret: must be one of"),
        (("archive", "any", "{root}", "--conf", "x"), 2, "--conf x: must be NAME=VALUE"),
        (
            ("archive", "any", "{root}", "--master", "local[1]", "--remote", "sc://x:1"),
            2,
            "--master local[1] and --remote sc://x:1 cannot be combined",
        ),
        (("archive", "any", "{root}", "--remote", "x:1"), 2, "must be an address such as sc://"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    broker: Broker, lb: SyncClient, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    if not any(info.name == "any" for info in lb.streams.list()):
        lb.streams.create("any")
        publish(lb, "any", 0, 1)
    given = [word.format(root=tmp_path) for word in words]
    done = run(*given, "--servers", broker.address)
    lines = [line for line in done.stderr.splitlines() if line.startswith("liftbridge: ")]
    assert (done.returncode, len(lines)) == (code, 1), done.stderr
    assert told in lines[0]
    assert "Traceback" not in done.stderr
