"""An unclean election between and within micro-batches: nothing is read twice unnoticed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from liftbridge_client import StreamSettings, connect_sync
from liftbridge_testkit.cluster import ClusterKit

STREAM = "s"
BOTH, ALONE, AFTER = [b"a", b"b"], [b"c", b"d", b"e"], [b"C", b"D", b"E", b"F"]


def test_query_tells_when_the_log_has_other_records_where_it_has_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())

        def run(
            name: str, take: Callable[[DataFrame, int], None] | None = None, **options: str
        ) -> list[bytes]:
            values: list[bytes] = []

            def collect(frame: DataFrame, _number: int) -> None:
                values.extend(bytes(row.value) for row in frame.orderBy("offset").collect())

            given = {"servers": servers, "subscribe": STREAM, "startingOffsets": "earliest"}
            frame = spark.readStream.format("liftbridge").options(**given, **options).load()
            written = frame.writeStream.foreachBatch(take or collect)
            written = written.option("checkpointLocation", str(tmp_path / name))
            written.trigger(availableNow=True).start().awaitTermination(120)
            return values

        def stop(_frame: DataFrame, _number: int) -> None:
            raise RuntimeError("the sink is away")

        with connect_sync(servers) as lb:
            lb.streams.create(STREAM, replication=2, settings=StreamSettings(min_isr=1))
        cluster.publish(STREAM, BOTH)
        assert run("read") == BOTH
        for name in ("behind", "repeats"):
            shutil.copytree(tmp_path / "read", tmp_path / name)
        leader, follower = cluster.leader_and_follower(STREAM)
        cluster[follower].kill()
        cluster.publish(STREAM, ALONE)
        assert run("read") == ALONE
        with pytest.raises(StreamingQueryException, match="the sink is away"):
            run("repeats", stop)
        cluster[leader].kill()
        cluster.start(follower)
        cluster.elect_unclean(STREAM, follower)
        cluster.publish(STREAM, AFTER)

        told = r"s/0: offsets up to 4 were read in history 0, .* set failOnDataLoss=false"
        for name in ("read", "repeats"):
            with pytest.raises(StreamingQueryException, match=told):
                run(name)
        assert run("behind") == AFTER
        assert run("read", failOnDataLoss="false") == AFTER[len(ALONE) :]
        assert run("read") == []
        assert run("repeats", failOnDataLoss="false") == AFTER
