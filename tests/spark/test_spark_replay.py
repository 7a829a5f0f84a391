"""`liftbridge spark replay`, `audit` and `demo`: what the how-to says, done by real tasks."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from liftbridge_client import SyncClient
from liftbridge_client.cli.app import run
from liftbridge_testkit.pages import Shown, commands_of
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs import archive
from pyspark_liftbridge.jobs.archive import Job, archive_once
from pyspark_liftbridge.jobs.tasks import runner

COUNT = 300


def words_of(shown: Shown, broker: Broker, root: Path) -> list[list[str]]:
    """Commands of the how-to, on this broker and this archive."""
    lines = [line for title in shown.titles for line in commands_of(shown, title)]
    places = {"localhost:9292": broker.address, "/archive": str(root)}
    return [[places.get(word, word) for word in shlex.split(line)[1:]] for line in lines]


@pytest.fixture
def archived(
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Archive of the stream `orders`."""
    monkeypatch.setattr(archive, "TASK_OFFSETS_MAX", 100)
    stream = lb.streams.create("orders", partitions=2)
    with stream.publisher() as publisher:
        for partition in (0, 1):
            values = [b"%d" % one for one in range(COUNT * (1 + partition))]
            publisher.publish_batch(values, partition=partition)
    job = Job("orders", str(tmp_path), {"servers": broker.address}, {}, fails_on_loss=True)
    archive_once(job, runner(spark, "archive"))
    return tmp_path


@pytest.mark.shows("how-to/replay-and-audit-streams.md")
def test_every_command_of_the_how_to_does_what_it_says(
    shown: Shown, broker: Broker, lb: SyncClient, archived: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = []
    commands = words_of(shown, broker, archived)
    for words in commands:
        assert run([*words, "-o", "json"]) == 0, words
        printed.append(json.loads(capfd.readouterr().out))
    _, planned, replayed, by_offset, by_time, differences = printed
    assert [(row["end"], row["written"], row["target_end"]) for row in planned] == [
        (COUNT, COUNT, 0),
        (2 * COUNT, 2 * COUNT, 0),
    ]
    assert replayed == planned
    assert [(row["start"], row["end"]) for row in by_offset] == [(100, 200)] * 2
    assert [row["target_end"] for row in by_time] == [COUNT, 2 * COUNT]
    assert differences == []

    lb.streams.get("orders-again").publish(b"one more", partition=1)
    *_, replay, _, _, audit = commands
    assert run([*audit, "-o", "json"]) == 1
    (difference,) = json.loads(capfd.readouterr().out)
    assert difference["text"] == f"ends at {2 * COUNT + 1}, the other at {2 * COUNT}"
    assert run([*replay, "-o", "json"]) == 1
    assert f"orders-again/1 holds offset {2 * COUNT}" in capfd.readouterr().err


@pytest.mark.timeout(400)  # Spark is started twice
def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).parent / "liftbridge",
            "spark",
            "demo",
            "--lines",
            "3000",
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["is_ok"], row["differences"]) == (True, 0)
    assert row["lines"] == row["archived"] == row["replayed"] == row["compared"] // 5
    assert list(tmp_path.glob("liftbridge-spark-demo-*")) == []
