"""The measurements of the benchmark, with repetitions and comparisons."""

from __future__ import annotations

import threading
import time
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftbridge_testkit.progress import say
from liftbridge_testkit.spark_bench import streams
from liftbridge_testkit.spark_bench.ceiling import Ceiling
from liftbridge_testkit.spark_bench.rows import Row
from liftbridge_testkit.spark_bench.usage import Meter, Sample, Usage
from pyspark_liftbridge.archive.table import folder_of
from pyspark_liftbridge.jobs import audit, replay
from pyspark_liftbridge.jobs.archive import Job, archive_once
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.jobs.selection import Selection
from pyspark_liftbridge.jobs.tasks import runner
from pyspark_liftbridge.plan.options import read_source
from pyspark_liftbridge.source.batch import BatchReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from liftbridge_client import SyncClient
    from liftbridge_testkit.processes import Broker
    from liftbridge_testkit.spark_bench.streams import Kind

ROUNDS: Final = 3
"""Rounds of a read; the median counts."""

STREAM_STEP: Final = 200_000
"""Rows of a micro-batch."""

CEILING_ROWS: Final = 10_000
"""Rows of the batch that is yielded repeatedly."""

FLOOR_TIMES: Final = 20
PARTITIONS: Final = 1_000
"""Partitions of the stream whose micro-batch has one record in each."""

LATENCY_RATE: Final = 1_000
LATENCY_SECONDS: Final = 20
QUERY_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.2
_MICROSECONDS: Final = 1e6


class Bench:
    """All measurements, on one broker and in one Spark session.

    Args:
        spark: The session.
        broker: The broker.
        client: Client of that broker.
        work_dir: Folder for files.
        rows: Number of rows of the streams that are quick to publish.
    """

    def __init__(
        self, spark: SparkSession, broker: Broker, client: SyncClient, work_dir: Path, rows: int
    ) -> None:
        self._spark, self._broker, self._client = spark, broker, client
        self._work_dir, self._rows = work_dir, rows
        self._meter = Meter(broker)
        self._filled: dict[str, int] = {}
        spark.dataSource.register(Ceiling)

    def works(self) -> dict[str, Callable[[], list[Row]]]:
        """Return the measurements by name, in order."""
        return {
            **{f"read-{kind.name}": self._bulk(kind) for kind in streams.KINDS},
            "stream": self.stream,
            "archive": self.archive,
            "replay": self.replay,
            "audit": self.audit,
            "floor": self.floor,
            "partitions": self.partitions,
            "latency": self.latency,
            "decode": self.decode,
        }

    # -- reading ------------------------------------------------------------------------------

    def _bulk(self, kind: Kind) -> Callable[[], list[Row]]:
        return lambda: self.bulk(kind)

    def bulk(self, kind: Kind) -> list[Row]:
        """Read a stream, and compare with the ceiling and with Parquet files of the same rows."""
        rows = self._fill(kind)
        files = self._files(kind)
        read = self._spark.read
        ours = self._reader("read", kind)
        samples = {
            "ours": self._rounds(rows, lambda: _drain(ours)),
            "ceiling": self._rounds(rows, lambda: _drain(self._piped("read", kind, rows))),
            "parquet": self._rounds(rows, lambda: _drain(read.parquet(files))),
        }
        return [_read_row(f"bulk read, {kind.title}", kind.target, samples)]

    def stream(self) -> list[Row]:
        """Read a stream in micro-batches, with the same comparisons."""
        kind = streams.KINDS[1]
        rows = self._fill(kind)
        files = self._files(kind)
        schema = self._spark.read.parquet(files).schema
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 2)
        samples = {
            "ours": self._streamed(self._reader("readStream", kind)),
            "ceiling": self._streamed(self._piped("readStream", kind, rows)),
            "parquet": self._streamed(reader.parquet(files)),
        }
        return [_read_row(f"stream read, {STREAM_STEP // 1000} k rows a batch", 300_000, samples)]

    def _reader(self, how: str, kind: Kind) -> DataFrame:
        reader = getattr(self._spark, how).format("liftbridge")
        reader = reader.option("servers", self._broker.address).option("subscribe", kind.name)
        if kind.has_headers:
            reader = reader.option("includeHeaders", "true")
        if how == "readStream":
            reader = reader.option("startingOffsets", "earliest")
            reader = reader.option("maxOffsetsPerTrigger", STREAM_STEP)
        frame: DataFrame = reader.load()
        return frame

    def _piped(self, how: str, kind: Kind, rows: int) -> DataFrame:
        """Return ceiling rows of the same shape as those of a stream."""
        path = self._work_dir / f"{kind.name}.arrow"
        given = {"servers": self._broker.address, "subscribe": kind.name}
        if kind.has_headers:
            given["includeHeaders"] = "true"
        ours = BatchReader(read_source(given, is_stream=False))
        batch = next(iter(ours.read(ours.partitions()[0]))).slice(0, CEILING_ROWS)
        with pa.ipc.new_file(str(path), batch.schema) as file:
            file.write_batch(batch)
        ddl = self._reader("read", kind).schema.toDDL()
        reader = getattr(self._spark, how).format(Ceiling.name()).option("ddl", ddl)
        frame: DataFrame = (
            reader.option("path", str(path)).option("rows", rows).option("step", STREAM_STEP).load()
        )
        return frame

    def _files(self, kind: Kind) -> str:
        """Write a stream's rows as Parquet files, two for each micro-batch."""
        path = self._work_dir / f"{kind.name}-files"
        if not path.exists():
            writer = self._reader("read", kind).write.option("compression", "zstd")
            writer.option("maxRecordsPerFile", STREAM_STEP // 2).parquet(str(path))
        return str(path)

    def _rounds(self, rows: int, act: Callable[[], object]) -> Sample:
        samples = [self._meter.sample(rows, act) for _ in range(ROUNDS)]
        return sorted(samples, key=lambda one: one.rate)[ROUNDS // 2]

    def _streamed(self, frame: DataFrame) -> Sample:
        """Return all micro-batches of a query but the first, which starts the workers."""
        begins: list[Usage] = []
        seconds: list[float] = []

        def take(batch: DataFrame, _number: int) -> None:
            _drain(batch)
            begins.append(self._meter.usage())
            seconds.append(perf_counter())

        query = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = query.option("checkpointLocation", self._folder("checkpoint")).start()
        assert query.awaitTermination(int(QUERY_SECONDS_MAX))
        rows = sum(one.numInputRows for one in _progress_of(query, len(begins))[1:])
        assert rows, "too few rows for two micro-batches"
        return Sample(rows, seconds[-1] - seconds[0], begins[-1].since(begins[0]))

    # -- jobs ---------------------------------------------------------------------------------

    def archive(self) -> list[Row]:
        """Archive a stream, and compare with Spark's own writer from the same source."""
        kind = streams.KINDS[1]
        rows = self._fill(kind)
        run = runner(self._spark, "archive")

        def ours() -> None:
            done = archive_once(self._job(kind, self._folder("archive")), run)
            assert done.records == rows, done

        def by_spark() -> None:
            writer = self._reader("read", kind).write.option("compression", "zstd")
            writer.parquet(f"{self._folder('by-spark')}/files")

        sample, other = self._rounds(rows, ours), self._rounds(rows, by_spark)
        row = Row.of_sample("archive", sample, 250_000)
        return [row._replace(notes={"df.write.parquet": _ratio(sample, other)})]

    def replay(self) -> list[Row]:
        """Replay an archive into other streams, with its offsets."""
        kind = streams.KINDS[1]
        rows = self._fill(kind)
        access = self._access(self._archived(kind))
        run = runner(self._spark, "replay")
        targets = (f"replayed-{number}" for number in range(ROUNDS))

        def ours() -> None:
            target = next(targets)
            self._client.streams.create(target, partitions=streams.PARTITIONS)
            table = f"{folder_of(kind.name)}/"
            found = replay.replay(replay.Job(table, target, access, Selection(), True), run)  # noqa: FBT003 - as the command says it
            assert sum(one.written for one in found) == rows, found

        sample = self._rounds(rows, ours)
        return [Row.of_sample("replay, same offsets", sample, 150_000)]

    def audit(self) -> list[Row]:
        """Compare a stream with its archive; rows of both copies count."""
        kind = streams.KINDS[1]
        rows = self._fill(kind)
        job = audit.Job(kind.name, self._access(self._archived(kind)), "")
        run = runner(self._spark, "audit")

        def ours() -> None:
            found = audit.audit(job, run)
            assert (found.differences, found.records) == ((), 2 * rows), found

        return [Row.of_sample("audit, rows of a copy", self._rounds(2 * rows, ours), 400_000)]

    def _access(self, root: str) -> Access:
        return Access({"servers": self._broker.address}, root, {})

    def _job(self, kind: Kind, root: str) -> Job:
        return Job(kind.name, root, {"servers": self._broker.address}, {}, fails_on_loss=True)

    def _archived(self, kind: Kind) -> str:
        root = self._work_dir / "archived"
        if not root.exists():
            archive_once(self._job(kind, str(root)), runner(self._spark, "archive"))
        return str(root)

    # -- waiting ------------------------------------------------------------------------------

    def floor(self) -> list[Row]:
        """Measure a micro-batch of one record."""
        self._client.streams.create("floor")
        stream = self._client.streams.get("floor")
        seen = threading.Semaphore(0)

        def take(batch: DataFrame, _number: int) -> None:
            for _ in batch.collect():
                seen.release()

        query = self._following("floor", take)
        try:
            for number in range(FLOOR_TIMES + 1):
                stream.publish(b"%d" % number)
                assert seen.acquire(timeout=QUERY_SECONDS_MAX)
            taken = [one.durationMs["triggerExecution"] for one in _progress_of(query, FLOOR_TIMES)]
        finally:
            query.stop()
        return [Row.of_figure("micro-batch of one record", median(taken[1:]), "ms", 300.0)]

    def partitions(self) -> list[Row]:
        """Measure a micro-batch of one record in each of many partitions, after the first."""
        stream = self._client.streams.create("partitions", partitions=PARTITIONS)
        frame = self._subscribed("partitions")
        folder = self._folder("checkpoint")
        taken = []
        for _ in range(ROUNDS + 1):
            with stream.publisher() as publisher:
                for number in range(PARTITIONS):
                    publisher.publish_nowait(b"v" * streams.VALUE_BYTES, partition=number)
                publisher.flush()
            writer = frame.writeStream.foreachBatch(lambda batch, _: _drain(batch))
            writer = writer.trigger(availableNow=True).option("checkpointLocation", folder)
            query = writer.start()
            assert query.awaitTermination(int(QUERY_SECONDS_MAX))
            (batch,) = _progress_of(query, 1)
            assert batch.numInputRows == PARTITIONS, batch.numInputRows
            taken.append(batch.durationMs["triggerExecution"] / 1_000)
        title = f"micro-batch of {PARTITIONS:,} partitions, a record each"
        return [Row.of_figure(title, median(taken[1:]), "s", 3.0)]

    def latency(self) -> list[Row]:
        """Measure the time from the broker's time stamp until a function receives the rows."""
        self._client.streams.create("latency")
        waits: list[float] = []
        seen = threading.Event()
        count = LATENCY_RATE * LATENCY_SECONDS

        def take(batch: DataFrame, _number: int) -> None:
            times = batch.select("timestamp_ns").toArrow().column(0).to_pylist()
            now = time.time_ns()
            waits.extend((now - one) / 1e6 for one in times)
            if len(waits) >= count:
                seen.set()

        query = self._following("latency", take)
        try:
            self._publish_paced("latency", count)
            assert seen.wait(QUERY_SECONDS_MAX)
        finally:
            query.stop()
        # The query starts its workers with the first batches.
        settled = waits[count // 4 :]
        title = f"latency at {LATENCY_RATE:,} messages/s"
        return [
            Row.of_figure(f"{title}, p50", median(settled), "ms", 500.0),
            Row.of_figure(f"{title}, p99", quantiles(settled, n=100)[98], "ms", None),
        ]

    def _publish_paced(self, stream: str, count: int) -> None:
        pause = threading.Event()
        with self._client.streams.get(stream).publisher() as publisher:
            began = perf_counter()
            for number in range(count):
                pause.wait(max(0.0, began + number / LATENCY_RATE - perf_counter()))
                publisher.publish_nowait(b"v" * streams.VALUE_BYTES)
            publisher.flush()

    def _subscribed(self, stream: str) -> DataFrame:
        reader = self._spark.readStream.format("liftbridge")
        reader = reader.option("servers", self._broker.address).option("subscribe", stream)
        return reader.option("startingOffsets", "earliest").load()

    def _following(self, stream: str, take: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = self._subscribed(stream).writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", self._folder("checkpoint")).start()

    # -- the client alone ---------------------------------------------------------------------

    def decode(self) -> list[Row]:
        """Measure the cost of columns in the client, receiving included."""
        some = ("offset", "timestamp", "key", "value")
        cases = ((1, some, 2.0), (4, (*some, "headers"), 4.0))
        return [self._decoded(streams.KINDS[at], names, limit) for at, names, limit in cases]

    def _decoded(self, kind: Kind, names: tuple[str, ...], limit: float) -> Row:
        rows = self._fill(kind)
        stream = self._client.streams.get(kind.name)
        taken = []
        for _ in range(ROUNDS):
            began = process_time()
            found = sum(
                batch.records.num_rows
                for partition in range(streams.PARTITIONS)
                for batch in stream.fetch_columns(
                    partition, 0, rows // streams.PARTITIONS, columns=names
                )
            )
            taken.append((process_time() - began) / found * _MICROSECONDS)
            assert found == rows, found
        return Row.of_figure(f"client, {kind.title}", median(taken), "us CPU a row", limit)

    # -- inside -------------------------------------------------------------------------------

    def _fill(self, kind: Kind) -> int:
        rows = self._filled.get(kind.name)
        if rows is None:
            rows = streams.rows_of(kind, self._rows)
            began = perf_counter()
            streams.fill(self._broker, self._client, kind, rows)
            say(f"published: {rows:,} records, {kind.title}, in {perf_counter() - began:.1f} s")
            self._filled[kind.name] = rows
        return rows

    def _folder(self, name: str) -> str:
        number = sum(1 for _ in self._work_dir.glob(f"{name}-*"))
        path = self._work_dir / f"{name}-{number}"
        path.mkdir()
        return str(path)


def _drain(frame: DataFrame) -> None:
    """Let Spark read all columns of all rows."""
    frame.write.format("noop").mode("overwrite").save()


def _progress_of(query: StreamingQuery, count: int) -> list[StreamingQueryProgress]:
    """Return the progress of a query's micro-batches with rows, once there are enough."""
    deadline = perf_counter() + QUERY_SECONDS_MAX
    while perf_counter() < deadline:
        found = [one for one in query.recentProgress if one.numInputRows]
        if len(found) >= count:
            return found
        threading.Event().wait(_POLL_SECONDS)
    raise AssertionError("the query does not tell of its batches")


def _read_row(title: str, target: int, samples: dict[str, Sample]) -> Row:
    ours = samples.pop("ours")
    notes = {name: _ratio(ours, other) for name, other in samples.items()}
    return Row.of_sample(title, ours, target)._replace(notes=notes)


def _ratio(ours: Sample, other: Sample) -> float:
    return ours.rate / other.rate
