"""Features of Spark with streams: those that the how-to shows, and those that there are not."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from liftbridge_client import Start, Stop, SyncClient
from liftbridge_testkit.pages import Block, Shown
from liftbridge_testkit.processes import Broker

BROKER, CONNECT, STORAGE = "localhost:9292", "sc://localhost:15002", "/var/lib/pipelines/orders"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SECONDS_MAX = 200
pytestmark = pytest.mark.timeout(300)  # some start another JVM; a busy machine takes minutes


@pytest.fixture(scope="module", autouse=True)
def orders(lb: SyncClient) -> None:
    stream = lb.streams.create("orders", partitions=2)
    for number in range(6):
        stream.publish(b"%d apples" % number, key=b"%d" % (number % 3))


@pytest.fixture
def stream(spark: SparkSession, broker: Broker) -> DataFrame:
    return (
        spark.readStream.format("liftbridge")
        .options(servers=broker.address, subscribe="orders", startingOffsets="earliest")
        .load()
    )


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Any]:
    """Set a setting of the session until the test ends."""
    names: list[str] = []

    def put(name: str, value: str) -> None:
        names.append(name)
        spark.conf.set(name, value)

    yield put
    for name in names:
        spark.conf.unset(name)


def placed(path: Path, block: Block, *changes: tuple[str, str]) -> Path:
    """A block of the page in a file, with places of this test for those that it names."""
    text = block.text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def run(*words: str | Path, folder: Path, **variables: str) -> str:
    """What a program prints that ends well."""
    environ = {**os.environ, **variables}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
        cwd=folder, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- what the how-to shows ----------------------------------------------------------------------


@pytest.mark.shows(
    "how-to/use-spark-features.md", "SQL", "State for each key", "State for each key, with pandas"
)
def test_views_and_processors_of_the_how_to(
    shown: Shown,
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    setting: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    setting(PROVIDER, spark.conf.get(PROVIDER))  # which programs change
    spark.catalog.dropTempView("orders")  # the tutorial has one in the same session
    given = {"spark": spark, "servers": broker.address, "folder": tmp_path}
    counts = []
    for title in shown.titles:
        (program,) = shown.take(title)
        path = placed(tmp_path / "program.py", program)
        # As a program: classes of a module are not sent to the processes that Spark starts.
        run_path(str(path), given, run_name="__main__")
        rows = re.findall(r"^\| *(\d) *\| *(\d+) *\|$", capsys.readouterr().out, re.MULTILINE)
        counts.append({key: int(count) for key, count in rows})
    orders, sizes = {"0": 2, "1": 2, "2": 2}, {"0": 16, "1": 16, "2": 16}
    assert counts == [orders, orders, sizes]


@pytest.mark.shows("how-to/use-spark-features.md", "Spark Connect")
def test_a_program_of_connect_reads_writes_and_streams(
    shown: Shown, broker: Broker, lb: SyncClient, remote: str, tmp_path: Path
) -> None:
    (program,) = shown.take("Spark Connect")
    path = placed(tmp_path / "program.py", program, (BROKER, broker.address), (CONNECT, remote))
    # It has no Java, and our package is not there for it.
    alone = (
        "import runpy, sys; sys.modules['pyspark_liftbridge'] = None; runpy.run_path(sys.argv[1])"
    )
    told = run(sys.executable, "-c", alone, path, folder=tmp_path, PATH="", JAVA_HOME="/nowhere")
    assert told.splitlines() == ["6 orders", "6 orders again"]
    copied = lb.streams.get("orders-again").subscribe(start=Start.earliest(), stop=Stop.latest())
    assert sorted(one.value for one in copied) == [b"%d apples" % number for number in range(6)]


@pytest.mark.shows("how-to/use-spark-features.md", "Declarative Pipelines")
def test_a_pipeline_has_a_streaming_table_and_a_view(
    shown: Shown, spark: SparkSession, broker: Broker, remote: str, tmp_path: Path
) -> None:
    spec, tables, command = shown.take("Declarative Pipelines")
    placed(tmp_path / "spark-pipeline.yml", spec, (STORAGE, str(tmp_path / "storage")))
    placed(tmp_path / "tables/orders.py", tables, (BROKER, broker.address))
    program, *words = command.text.split()
    run(Path(sys.executable).parent / program, *words, "--remote", remote, folder=tmp_path)
    assert spark.table("incoming_orders").count() == 6
    found = spark.table("orders_by_customer").collect()
    assert sorted((row.customer, row["count"]) for row in found) == [("0", 2), ("1", 2), ("2", 2)]


# -- what Spark does not offer -------------------------------------------------------------------
# When one of these fails with a newer Spark, that Spark offers more: use it, and say so.


def test_there_is_no_real_time_mode(stream: DataFrame, tmp_path: Path, setting: Any) -> None:
    setting("spark.sql.streaming.realTimeMode.allowlistCheck", "false")  # of sinks
    query = stream.writeStream.format("noop").outputMode("update").trigger(realTime="5 seconds")
    told = r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"
    with pytest.raises((PySparkException, StreamingQueryException), match=told):
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


def test_there_is_no_continuous_mode(stream: DataFrame, tmp_path: Path) -> None:
    query = stream.writeStream.format("noop").trigger(continuous="1 second")
    with pytest.raises(PySparkException, match="liftbridge does not support continuous processing"):
        query.option("checkpointLocation", str(tmp_path)).start()


def test_streams_push_no_filters(
    spark: SparkSession, broker: Broker, stream: DataFrame, tmp_path: Path, setting: Any
) -> None:
    setting(PUSHDOWN, "true")
    query = stream.where("partition = 0").writeStream.format("noop").trigger(availableNow=True)
    done = query.option("checkpointLocation", str(tmp_path / "all")).start()
    done.awaitTermination(60)
    assert sum(one.numInputRows for one in done.recentProgress) == 6
    wrong = spark.readStream.format("liftbridge").options(
        servers=broker.address, subscribe="orders", pushdown="true"
    )
    query = wrong.load().writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="'pushdown' is for a batch"):
        query.option("checkpointLocation", str(tmp_path / "none")).start().awaitTermination(60)


def test_columns_are_not_pruned_without_the_option(spark: SparkSession, broker: Broker) -> None:
    def scanned(**more: str) -> int:
        options = {"servers": broker.address, "subscribe": "orders", **more}
        frame = spark.read.format("liftbridge").options(**options).load().select("offset")
        plan = frame._jdf.queryExecution().executedPlan().toString()
        (columns,) = re.findall(r"BatchScan liftbridge\[(.*?)\]", plan)
        return len(columns.split(","))

    assert scanned() == 10
    assert scanned(columns="offset") == 1


def test_tables_lose_their_options_and_views_keep_them(spark: SparkSession, broker: Broker) -> None:
    options = f"options (servers '{broker.address}', subscribe 'orders')"
    spark.sql(f"create table lost using liftbridge {options}")
    try:
        told = "exactly one of subscribe, subscribePattern and assign"
        with pytest.raises(PySparkException, match=told):
            spark.table("lost").collect()
        given = spark.read.options(servers=broker.address, subscribe="orders")
        assert given.table("lost").count() == 6
    finally:
        spark.sql("drop table lost")
    spark.sql(f"create or replace temporary view kept using liftbridge {options}")
    assert spark.table("kept").count() == 6


def test_sql_does_not_write(spark: SparkSession, broker: Broker) -> None:
    options = f"options (servers '{broker.address}', subscribe 'orders', stream 'orders')"
    spark.sql(f"create or replace temporary view sunk using liftbridge {options}")
    with pytest.raises(PySparkException, match="INSERT_COLUMN_ARITY_MISMATCH"):
        spark.sql("insert into sunk select 'a key', 'a value'")
