"""`liftbridge spark demo`: archive a growing stream, kill a job and a broker, replay, compare.

It publishes the same text as `liftbridge demo`, the source code of Python's standard library, to
three brokers, line by line and keyed by file. Every line must be stored once. Meanwhile an archive
run is killed, and so is a broker that leads partitions; another run continues. Finally the archive
is replayed into a new stream, and an audit compares all replicas of the first stream, the archive
and the new stream record by record.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final, NamedTuple, TypeVar

import typer
from rich.console import Console

from liftbridge_client.aio.client import Client
from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.aio.stream import Stream
from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.local.broker import LocalBroker, free_port, tied
from liftbridge_client.cli.local.cluster import LocalCluster, Ports
from liftbridge_client.cli.local.demo import LINES_DEFAULT, LINES_MAX, Line, library_lines
from liftbridge_client.cli.output import Shape, stderr_console
from liftbridge_client.cli.patience import PATIENCE_SECONDS
from liftbridge_client.errors import LiftbridgeError, RetriableError, ServerError
from liftbridge_client.model import PartitionInfo
from pyspark_liftbridge.cli.given import reported_errors, runner_of

STREAM: Final = "library"
COPY: Final = "library-again"
PARTITIONS: Final = 3
BROKERS: Final = 3
CHUNK: Final = 2_000
SLOW_PARTS: Final = 1_000
SLOW_SECONDS: Final = 0.1
"""Pause after each call, which publishes a part of the rest, until all kills are done."""

POLL_SECONDS: Final = 0.1
MASTER: Final = "local[2]"
QUIET: Final = ["spark.log.level=ERROR", "spark.ui.showConsoleProgress=false"]

_Answer = TypeVar("_Answer")


class SparkDemoRow(NamedTuple):
    """Result of the demo; `is_ok` is true if it found no fault."""

    is_ok: bool
    lines: int
    archived: int
    replayed: int
    compared: int
    differences: int
    seconds: float


class SparkDemo:
    """One run on a cluster in a folder of its own.

    Args:
        cluster: Three running brokers.
        place: Folder for the archive.
        lines: Lines to publish.
        console: Console to report steps on.
    """

    def __init__(
        self, cluster: LocalCluster, place: Path, lines: Sequence[Line], console: Console
    ) -> None:
        self._cluster = cluster
        self._root = place / "archive"
        self._log = place / "archive.log"
        self._lines = lines
        self._console = console
        self._is_slow = True
        self._published = 0

    def report(self, text: str) -> None:
        """Report that a step is done."""
        self._console.print(f"[green]✓[/green] {text}", highlight=False)

    def _hurt(self, text: str) -> None:
        self._console.print(f"[red]✗[/red] {text}", highlight=False)

    async def run(self, lb: Client) -> SparkDemoRow:
        """Run all steps.

        Raises:
            LiftbridgeError: The cluster did not serve, or a step did not finish.
        """
        stream = await lb.streams.create(
            STREAM, subject="demo.library", partitions=PARTITIONS, replication=BROKERS
        )
        archived = await self._archive_among_faults(lb, stream)
        replayed = await self._replay(lb)
        compared, differences = await self._compare()
        is_ok = not differences and archived == replayed == len(self._lines)
        return SparkDemoRow(
            is_ok,
            len(self._lines),
            archived,
            replayed,
            compared,
            differences,
            0.0,
        )

    async def _archive_among_faults(self, lb: Client, stream: Stream) -> int:
        """Publish and archive all lines under kills; return the number of archived lines."""
        archived = 0
        exits: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                publishing = tasks.create_task(self._publish(stream))
                await self._archive_and_kill()
                broker = await self._kill_a_leader(lb)
                archived = await self._archive(publishing)
                await broker.start()
                await self._until(lb, lambda one: set(one.isr) == set(one.replicas), "in sync")
                self.report(f"{broker.name} restarted with its data and is in sync again")
        except* typer.Exit as group:
            exits += group.exceptions
        if exits:
            raise exits[0]  # its error was reported
        return archived

    # -- publishing ---------------------------------------------------------------------------

    async def _publish(self, stream: Stream) -> None:
        """Publish all lines, slowly at first."""
        async with stream.publisher(ack_policy="all", idempotent=True) as publisher:
            while left := self._lines[self._published :]:
                size = max(1, len(left) // SLOW_PARTS) if self._is_slow else CHUNK
                outgoing = [Outgoing(line.text, line.file) for line in left[:size]]
                for result in await publisher.publish_batch(outgoing):
                    if isinstance(result, LiftbridgeError):
                        raise result
                self._published += len(outgoing)
                if self._is_slow:
                    await asyncio.sleep(SLOW_SECONDS)

    # -- kills -----------------------------------------------------------------------

    async def _archive_and_kill(self) -> None:
        """Run the archive command repeatedly, and kill it in the middle."""
        words = ("spark", "archive", STREAM, str(self._root), "--every", "0.1")
        with self._log.open("wb") as log:
            job = await asyncio.create_subprocess_exec(
                *tied(sys.executable, "-c", "from liftbridge_client.cli import main; main()"),
                *(*words, "--servers", self._cluster.addresses),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            archived = await self._until_archived(job)
            self.report(
                f"`liftbridge spark archive` has archived {archived:,} lines while "
                "publishing continues"
            )
            await asyncio.sleep(random.uniform(0.0, 1.0))  # noqa: S311 - any moment is fine
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            await job.wait()
        self._hurt(f"kill -9: killed the job; {self._published:,} lines are published so far")

    async def _until_archived(self, job: asyncio.subprocess.Process) -> int:
        """Wait until the job has committed records; return their number."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (archived := await asyncio.to_thread(archived_count, self._root)):
                    if job.returncode is not None:
                        raise ServerError(f"the job exited: {self._last_words()}")
                    await asyncio.sleep(POLL_SECONDS)
                return archived
        except TimeoutError:
            raise ServerError(
                f"nothing is archived after {PATIENCE_SECONDS:g} s: {self._last_words()}"
            ) from None

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    async def _kill_a_leader(self, lb: Client) -> LocalBroker:
        """Kill a broker that leads a partition, but not the parent of the NATS server."""
        partitions = (await lb.metadata()).streams[STREAM].partitions
        leaders = {partition.leader for partition in partitions.values()}
        spared, *others = self._cluster.brokers
        broker = next((other for other in others if other.name in leaders), None)
        if broker is None:
            raise ServerError(f"{spared.name} leads every partition")
        broker.kill()
        self._hurt(f"kill -9: killed {broker.name}, the leader of a partition")
        await self._until(
            lb, lambda one: one.leader not in ("", broker.name), "led by another broker"
        )
        self.report("the other brokers lead all partitions, and publishing continues")
        return broker

    async def _until(self, lb: Client, holds: Callable[[PartitionInfo], bool], what: str) -> None:
        """Wait until a condition holds for all partitions.

        Raises:
            ServerError: The condition did not hold within `PATIENCE_SECONDS`.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with suppress(RetriableError):
                        partitions = (await lb.metadata()).streams[STREAM].partitions
                        if all(map(holds, partitions.values())):
                            return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ServerError(
                f"the partitions are not {what} after {PATIENCE_SECONDS:g} s"
            ) from None

    # -- jobs in this process -----------------------------------------------------------------

    @property
    def _source(self) -> dict[str, str]:
        return {"servers": self._cluster.addresses}

    async def _archive(self, publishing: "asyncio.Task[None]") -> int:
        """Archive in a session of this process until all lines are published and archived."""
        from pyspark_liftbridge.jobs.archive import Job, archive_once  # noqa: PLC0415 - heavy

        job = Job(STREAM, str(self._root), self._source, {}, fails_on_loss=True)
        runner = await in_thread(lambda: runner_of("archive", MASTER, QUIET))
        before = await asyncio.to_thread(archived_count, self._root)
        is_last = False
        while not is_last:
            self._is_slow = False
            is_last = publishing.done()
            await in_thread(lambda: archive_once(job, runner))
        count = await asyncio.to_thread(archived_count, self._root)
        self.report(f"another run archived the other {count - before:,} lines, {count:,} in all")
        return count

    async def _replay(self, lb: Client) -> int:
        """Replay the archived records into a new stream."""
        from pyspark_liftbridge.archive.table import folder_of  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.holders import Access  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.replay import Job, replay  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.selection import Selection  # noqa: PLC0415 - heavy

        await lb.streams.create(
            COPY, subject="demo.again", partitions=PARTITIONS, replication=BROKERS
        )
        access = Access(self._source, str(self._root), {})
        job = Job(f"{folder_of(STREAM)}/", COPY, access, Selection(), keeps_offsets=True)
        rows = await in_thread(lambda: replay(job, runner_of("replay", MASTER, QUIET)))
        count = sum(row.written for row in rows)
        self.report(f"replayed {count:,} lines into the stream {COPY}, at their offsets")
        return count

    async def _compare(self) -> tuple[int, int]:
        """Compare all copies; return the numbers of records and of differences."""
        from pyspark_liftbridge.jobs.audit import Job, audit  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.holders import Access  # noqa: PLC0415 - heavy

        job = Job(STREAM, Access(self._source, str(self._root), {}), COPY)
        result = await in_thread(lambda: audit(job, runner_of("audit", MASTER, QUIET)))
        for difference in result.differences:
            self._hurt(
                f"{difference.partition}/{difference.start} to {difference.end}: "
                f"{difference.holder} {difference.text}"
            )
        if not result.differences:
            self.report(
                f"audit: {result.records:,} records of {', '.join(result.holders)} are equal"
            )
        return result.records, len(result.differences)


def archived_count(root: Path) -> int:
    """Return the number of records in the archive, 0 without an archive."""
    from pyspark_liftbridge.archive.delta_log.log import load  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.archive.stores.store import Below, opened  # noqa: PLC0415 - heavy

    files = load(Below(opened(str(root), {}), f"{STREAM}/")).files.values()
    return sum(add.stats.rows for add in files if add.stats is not None)


async def in_thread(step: Callable[[], _Answer]) -> _Answer:
    """Run a step of Spark, which blocks, in a separate thread."""

    def body() -> _Answer:
        with reported_errors():
            return step()
        raise AssertionError("an error was reported")

    return await asyncio.to_thread(body)


async def demo(
    run: Run[SparkDemoRow],
    *,
    lines: Annotated[
        int,
        typer.Option(min=1_000, max=LINES_MAX, metavar="COUNT", help="Number of lines to publish."),
    ] = LINES_DEFAULT,
) -> None:
    """Archive a stream, kill the job and a broker, replay, and compare all copies.

    Starts its own three brokers, ends on its own and leaves nothing behind.
    """
    from pyspark_liftbridge.java import find_java  # noqa: PLC0415 - as the others

    with reported_errors():
        find_java(os.environ)
    console = stderr_console()
    place = Path(tempfile.mkdtemp(prefix="liftbridge-spark-demo-"))
    started = perf_counter()
    cluster = LocalCluster(place, BROKERS, Ports(free_port(), free_port(), free_port()))
    try:
        text = library_lines(lines)
        show = SparkDemo(cluster, place, text, console)
        # Spark forks its process, which must happen before a client is open.
        await in_thread(lambda: runner_of("archive", MASTER, QUIET))
        await cluster.start()
        show.report(f"Spark and a cluster of {BROKERS} brokers are running")
        show.report(f"{len(text):,} lines from the library of Python {sys.version.split()[0]}")
        run.profile = run.profile._replace(servers=cluster.addresses)
        async with run.client(retry_time=timedelta(seconds=PATIENCE_SECONDS)) as lb:
            row = await show.run(lb)
        await cluster.stop()
    finally:
        cluster.kill()
        shutil.rmtree(place, ignore_errors=True)
    row = row._replace(seconds=round(perf_counter() - started, 1))
    run.emit(row)
    run.exit_code = exits.OK if row.is_ok else exits.REFUSED
    if row.is_ok:
        show.report(
            "every line is archived once, and the replayed stream is identical to the first"
        )
    else:
        console.print("[red]✗[/red] this is a bug: the copies differ")


def register(group: typer.Typer) -> None:
    """Add the command."""
    command(group, "demo", Shape(SparkDemoRow), group="spark", has_server=False)(demo)
