"""A real Spark beside a real broker; `make spark-test` runs these in `.spark`, where PySpark is."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from liftbridge_client import SyncClient, connect_sync
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.session import stop_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if find_spec("pyspark") is None:
    # In `.venv` there is no PySpark, which is ten times as large as all the rest.
    collect_ignore_glob = ["test_*"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session, which serves Spark Connect as well: another JVM would take 15 s more."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - not in .venv

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2,3]")  # each task may fail twice
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    yield session
    stop_within(session)


@pytest.fixture(scope="session")
def remote(spark: "SparkSession") -> str:
    """Address of Spark Connect of the session."""
    assert spark._jvm is not None
    service = spark._jvm.org.apache.spark.sql.connect.service
    # An object of Scala; its methods are not among those of the class.
    server = getattr(getattr(service, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{server.localPort()}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(Path(tmp_path_factory.mktemp("spark"))) as running:
        yield running


@pytest.fixture(scope="module")
def lb(spark: "SparkSession", broker: Broker) -> Iterator[SyncClient]:
    """A client, after the session: a JVM that is started beside gRPC's threads may not come up."""
    with connect_sync(broker.address) as client:
        yield client
