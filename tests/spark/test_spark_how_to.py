"""The programs of the how-to do what it says."""

import re
from pathlib import Path
from runpy import run_path

import pytest
from pyspark.sql import SparkSession

from liftbridge_client import Start, Stop, SyncClient
from liftbridge_testkit.pages import sections
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs/how-to/use-spark.md"


def test_every_program_of_the_how_to_runs(
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = lb.streams.create("orders", partitions=2)
    for number in range(6):
        orders.publish(b"%d apples" % number, key=b"%d" % (number % 3))
    programs = sections(PAGE)
    assert list(programs) == [
        "Read what is there",
        "Follow a stream",
        "Write a frame",
        "Write each row once",
    ]
    told = {}
    for number, (title, (program,)) in enumerate(programs.items()):
        path = tmp_path / f"{number}.py"
        path.write_text(program.text, encoding="utf-8")
        run_path(str(path), {"spark": spark, "servers": broker.address, "folder": tmp_path})
        told[title] = capsys.readouterr().out
    assert told["Read what is there"].count(" apples") == 6
    assert re.findall(r"\| +(\d)\| +2\|", told["Follow a stream"]) != []

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
