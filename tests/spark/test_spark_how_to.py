"""The programs of two how-tos do what they say: reading and writing, and a job in a pipeline."""

import os
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
from pyspark.sql import SparkSession

from liftbridge_client import Start, Stop, SyncClient
from liftbridge_testkit.pages import Shown
from liftbridge_testkit.processes import Broker

SECONDS_MAX = 120
"""For a program that starts a JVM; a busy machine takes a minute."""


@pytest.mark.shows("how-to/use-spark.md")
def test_every_program_of_the_how_to_runs(
    shown: Shown,
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = lb.streams.create("orders", partitions=2)
    for number in range(6):
        orders.publish(b"%d apples" % number, key=b"%d" % (number % 3))
    printed = {}
    for number, title in enumerate(shown.titles):
        (program,) = shown.take(title)
        assert program.language == "python"
        path = tmp_path / f"{number}.py"
        path.write_text(program.text, encoding="utf-8")
        run_path(str(path), {"spark": spark, "servers": broker.address, "folder": tmp_path})
        printed[title] = capsys.readouterr().out
    assert printed["Read what is there"].count(" apples") == 6
    assert re.findall(r"\| +(\d)\| +2\|", printed["Follow a stream"]) != []

    def values(name: str, partitions: int) -> list[bytes]:
        stream = lb.streams.get(name)
        return sorted(
            message.value
            for partition in range(partitions)
            for message in stream.subscribe(
                partition=partition, start=Start.earliest(), stop=Stop.latest()
            )
        )

    assert values("baskets", 3) == [b"three apples", b"two pears"]
    assert values("orders-in-capitals", 1) == [b"%d APPLES" % number for number in range(6)]


@pytest.mark.shows("how-to/spark-on-kubernetes.md", "Run a job of your own", languages=("python",))
def test_a_job_of_a_pipeline_runs(
    shown: Shown, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("jobs").publish(b"one")
    (program,) = shown.take("Run a job of your own")
    path = tmp_path / "job.py"
    path.write_text(program.text, encoding="utf-8")
    given = {
        "PIPELINE_SERVERS": broker.address,
        "PIPELINE_STREAMS": "jobs",
        "PYSPARK_PYTHON": sys.executable,
    }
    # It stops its session, so it is a process of its own, as in a pod.
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False,
        timeout=SECONDS_MAX, cwd=tmp_path, env={**os.environ, **given},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
