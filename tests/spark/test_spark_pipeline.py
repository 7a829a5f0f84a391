"""What a pod of a `StreamPipeline` runs, run as it does there, and what the operator sees of it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from liftbridge_client import SyncClient, connect_sync
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.grpc_positions import GrpcPositions
from liftbridge_operator.pipelines.positions import Place, Position
from liftbridge_operator.pipelines.render import render
from liftbridge_operator.pipelines.resources import pipeline_of
from liftbridge_operator.pipelines.subject import Means, Reach
from liftbridge_testkit.pipelines_memory import pipeline
from liftbridge_testkit.processes import Broker

STREAMS = ["orders", "payments"]
SECONDS_MAX = 240


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, config={"cursors.stream.partitions": 1}) as running:
        yield running


def pod(folder: Path, broker: Broker) -> subprocess.CompletedProcess[str]:
    """Run the container of a pipeline, with folders of this machine in the place of its volumes."""
    body = pipeline(
        mode="Once",
        source={"streams": ["absent", *STREAMS]},
        archive={"root": "/state/archive"},
        state={"claimName": "archive"},
        sparkConf={"spark.sql.session.timeZone": "UTC"},
    )
    body["metadata"]["uid"] = "uid-1"
    objects = render(pipeline_of(body), Reach(broker.address, None), Means("image", ""))
    config = next(one for one in objects if one["kind"] == "ConfigMap")
    for name, text in config["data"].items():
        (folder / name).write_text(text, encoding="utf-8")
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    places = {names.CONFIG_DIRECTORY: str(folder), names.STATE_DIRECTORY: str(folder)}

    def moved(text: str) -> str:
        for place, here in places.items():
            text = text.replace(place, here)
        return text

    environment = {one["name"]: moved(one["value"]) for one in container["env"]}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pyspark_liftbridge.container",
            *map(moved, container["args"]),
        ],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def lags(broker: Broker) -> dict[Place, int]:
    async def ask() -> dict[Place, int]:
        brokers = GrpcPositions([Endpoint(broker.name, broker.admin_address)])
        found: dict[Place, Position] = {}
        for stream in STREAMS:
            found |= await brokers.positions(stream, names.cursor("shop", "p"))
        await brokers.close()
        return {place: one.lag for place, one in found.items()}

    return asyncio.run(ask())


def publish(client: SyncClient, stream: str, count: int) -> None:
    with client.streams.get(stream).publisher() as publisher:
        publisher.publish_batch([b"%d" % one for one in range(count)])


@pytest.mark.timeout(300)  # a JVM of its own, beside that of the session
def test_pod_archives_all_streams_but_the_one_that_fails_and_the_operator_sees_how_far(
    keeping: Broker, tmp_path: Path
) -> None:
    with connect_sync(keeping.address) as client:
        for stream in STREAMS:
            client.streams.create(stream)
        publish(client, "orders", 20)
        publish(client, "payments", 3)
        assert set(lags(keeping).values()) == {20, 3}
        done = pod(tmp_path, keeping)
        assert done.returncode == 2, done.stderr
        assert "absent" in done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        archived = {one["stream"]: one["records"] for one in rows}
        assert archived == {"orders": 20, "payments": 3}
        assert {one["cursor"] for one in rows} == {"archive/shop/p"}
        assert set(lags(keeping).values()) == {0}
        publish(client, "orders", 7)
    assert lags(keeping) == {Place("orders", 0): 7, Place("payments", 0): 0}
    table = DeltaTable(tmp_path / "archive" / "orders")
    assert table.to_pyarrow_table(columns=["offset"]).num_rows == 20
