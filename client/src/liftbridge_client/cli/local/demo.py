"""`liftbridge demo`: publish real text to a cluster under faults, and count every line.

Every machine with Python has the text: the sources of the standard library, line by line, keyed by
file. It is published three times: by an idempotent publisher with ack policy `all`, each of whose
lines must be stored once and in the order of its file although meanwhile a leader is killed with
`kill -9`, a follower hangs and a disk is damaged; by the call that publishes to a NATS subject; and
over a plain NATS connection.
"""

import asyncio
import shutil
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from liftbridge_client.aio.client import Client
from liftbridge_client.aio.publisher import Outgoing, Publisher
from liftbridge_client.aio.stream import Stream
from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.local.broker import HOST, free_port
from liftbridge_client.cli.local.cluster import LocalCluster, Ports
from liftbridge_client.cli.local.demo_faults import Faults, Pace, Stalls
from liftbridge_client.cli.output import Shape, stderr_console
from liftbridge_client.cli.patience import PATIENCE_SECONDS, awaiting
from liftbridge_client.errors import AckTimeoutError, LiftbridgeError, RetriableError
from liftbridge_client.model import Ack, Message, Start, Stop

LINES_DEFAULT: Final = 200_000
LINES_MAX: Final = 2_000_000
SUBJECT_LINES: Final = 2_000
NATS_LINES: Final = 20_000
PARTITIONS: Final = 4
CHUNK: Final = 5_000
BROKERS: Final = 3
FAST_SHARE: Final = 0.5
"""Share of the lines that is published at full speed, before the faults."""
SLOW_CALLS: Final = 500
SLOW_SECONDS: Final = 0.02
"""The other lines are published during the faults, in `SLOW_CALLS` calls with pauses."""
NATS_READ_BYTES: Final = 65_536


class Line(NamedTuple):
    """A line of a file."""

    file: bytes
    text: bytes


class DemoRow(NamedTuple):
    """Result of the demo; `is_ok` is true if it found no fault."""

    is_ok: bool
    lines: int
    missing: int
    repeated: int
    misplaced: int
    grpc_publish_per_second: int
    subject_publish_per_second: int
    nats_publish_per_second: int
    read_per_second: int
    kill_stall_seconds: float
    pause_stall_seconds: float
    damage_stall_seconds: float
    seconds: float


class Verdict(NamedTuple):
    """Differences between the lines published and those read."""

    missing: int
    repeated: int
    misplaced: int


class Published(NamedTuple):
    """Outcome of one way of publishing."""

    stream: str
    verdict: Verdict
    publish_seconds: float
    read_seconds: float


def library_lines(count_max: int) -> list[Line]:
    """Return the lines of the sources of this Python's library, file by file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lines: list[Line] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if "site-packages" in parts or "dist-packages" in parts or "test" in parts:
            continue
        name = "/".join(parts).encode()
        lines += (Line(name, text) for text in path.read_bytes().splitlines())
        if len(lines) >= count_max:
            break
    return lines[:count_max]


def compare(expected: Sequence[Line], found: Sequence[Line]) -> Verdict:
    """Find lines that are missing, duplicated, or not in the order of their file."""
    wanted, got = _by_file(expected), _by_file(found)
    missing = repeated = misplaced = 0
    for file in {**wanted, **got}:
        lacks = len(wanted.get(file, ())) - len(got.get(file, ()))
        missing += max(lacks, 0)
        repeated += max(-lacks, 0)
        pairs = zip(wanted.get(file, ()), got.get(file, ()), strict=False)
        misplaced += sum(one != other for one, other in pairs)
    return Verdict(missing, repeated, misplaced)


def _by_file(lines: Sequence[Line]) -> Mapping[bytes, list[bytes]]:
    by_file: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for line in lines:
        by_file[line.file].append(line.text)
    return by_file


class Demo:
    """One run on a cluster in its own folder.

    Attributes:
        stalls: Longest waits for acks during the faults; set by `by_grpc`.
    """

    def __init__(self, cluster: LocalCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        self.stalls = Stalls(0.0, 0.0, 0.0)

    def report(self, text: str) -> None:
        """Report that a step is done."""
        self._console.print(f"[green]✓[/green] {text}", highlight=False)

    # -- gRPC, with faults --------------------------------------------------------------------

    async def by_grpc(self, lb: Client, lines: Sequence[Line]) -> Published:
        """Publish through an idempotent publisher, the second half during the faults."""
        stream = await lb.streams.create(
            "library", subject="demo.library", partitions=PARTITIONS, replication=BROKERS
        )
        acks: list[Ack] = []
        fast = round(FAST_SHARE * len(lines))
        with self._progress(f"publish {len(lines):,} lines", len(lines)) as advance:
            async with stream.publisher(ack_policy="all", idempotent=True) as publisher:
                started = perf_counter()
                async with awaiting(f"acks for {fast:,} lines"):
                    async for part in _publish(publisher, lines[:fast], CHUNK, Pace()):
                        acks += part
                        advance(len(part))
                seconds = perf_counter() - started
                self.report(
                    f"published {len(acks):,} lines through gRPC, acknowledged by all replicas"
                )
                async with asyncio.TaskGroup() as tasks:
                    pace = Pace()
                    hurting = tasks.create_task(self._hurt(lb, stream.name, pace))
                    size = max(1, (len(lines) - fast) // SLOW_CALLS)
                    async for part in _publish(publisher, lines[fast:], size, pace):
                        acks += part
                        advance(len(part))
                        if not hurting.done():
                            await asyncio.sleep(SLOW_SECONDS)
                    pace.end()
        self.report(f"published {len(acks) - fast:,} more during the faults, none refused")
        started = perf_counter()
        messages: list[Message] = []
        for number in range(PARTITIONS):
            messages += [message async for message in _read(stream, number)]
        read_seconds = perf_counter() - started
        verdict = compare(lines, [Line(message.key, message.value) for message in messages])
        lost = _lost(lines, acks, messages)
        verdict = verdict._replace(missing=max(verdict.missing, lost))
        return Published(stream.name, verdict, seconds, read_seconds)

    async def _hurt(self, lb: Client, stream: str, pace: Pace) -> None:
        self.stalls = await Faults(self._cluster, pace, self._console, self.report).run(lb, stream)

    # -- NATS ---------------------------------------------------------------------------------

    async def by_subject(self, lb: Client, lines: Sequence[Line]) -> Published:
        """Publish to a NATS subject through gRPC: files concurrently, each in line order."""
        stream = await lb.streams.create("by-subject", subject="demo.subject", replication=BROKERS)

        async def one_file(file: bytes, texts: Sequence[bytes]) -> None:
            for text in texts:
                await lb.publish_to_subject("demo.subject", text, key=file, ack_policy="all")

        started = perf_counter()
        what = f"acks for {len(lines):,} lines to a NATS subject"
        async with awaiting(what), asyncio.TaskGroup() as tasks:
            for file, texts in _by_file(lines).items():
                tasks.create_task(one_file(file, texts))
        seconds = perf_counter() - started
        self.report(f"published {len(lines):,} lines to a NATS subject through gRPC")
        return await self._check(stream, lines, seconds, has_keys=True)

    async def by_nats(self, lb: Client, lines: Sequence[Line]) -> Published:
        """Publish through a plain NATS connection, without any client."""
        stream = await lb.streams.create("by-nats", subject="demo.nats", replication=BROKERS)
        started = perf_counter()
        await publish_plain(
            self._cluster.brokers[0].nats_port, "demo.nats", [line.text for line in lines]
        )
        async with awaiting(f"{len(lines):,} lines from plain NATS to be stored"):
            await _wait_until_stored(stream, len(lines))
        seconds = perf_counter() - started
        self.report(f"published {len(lines):,} lines through plain NATS, all of them stored")
        nameless = [Line(b"", line.text) for line in lines]
        return await self._check(stream, nameless, seconds, has_keys=False)

    async def _check(
        self, stream: Stream, lines: Sequence[Line], seconds: float, *, has_keys: bool
    ) -> Published:
        started = perf_counter()
        found = [
            Line(message.key if has_keys else b"", message.value)
            async for message in _read(stream, 0)
        ]
        return Published(stream.name, compare(lines, found), seconds, perf_counter() - started)

    def _progress(self, text: str, total: int) -> "_Bar":
        return _Bar(self._console, text, total)


class _Bar:
    """A progress bar while a block runs."""

    def __init__(self, console: Console, text: str, total: int) -> None:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(text, total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda count: self._bar.advance(self._task, count)

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()


async def _publish(
    publisher: Publisher, lines: Sequence[Line], size: int, pace: Pace
) -> AsyncIterator[Sequence[Ack]]:
    """Publish lines, `size` in each call; yield the acks of each call."""
    for first in range(0, len(lines), size):
        chunk = [Outgoing(line.text, line.file) for line in lines[first : first + size]]
        begun = perf_counter()
        results = await publisher.publish_batch(chunk)
        pace.note(perf_counter() - begun)
        yield list(_acks(results))


def _acks(results: Sequence[Ack | LiftbridgeError]) -> Iterator[Ack]:
    for result in results:
        if isinstance(result, LiftbridgeError):
            raise result
        yield result


def _lost(lines: Sequence[Line], acks: Sequence[Ack], messages: Sequence[Message]) -> int:
    """Count the lines that are not at the offset of their ack."""
    stored = {(m.partition, m.offset): Line(m.key, m.value) for m in messages}
    return sum(
        stored.get((ack.partition, ack.offset)) != line
        for line, ack in zip(lines, acks, strict=True)
    )


async def _read(stream: Stream, partition: int) -> AsyncIterator[Message]:
    reading = stream.subscribe(partition=partition, start=Start.earliest(), stop=Stop.latest())
    async for batch in reading.batches():
        for message in batch:
            yield message


async def _wait_until_stored(stream: Stream, count: int) -> None:
    """Poll until everything has arrived, since plain NATS has no acks."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await stream.bounds())[0].high_watermark < count:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AckTimeoutError(f"stream {stream.name} did not receive {count} messages") from None


async def publish_plain(port: int, subject: str, values: Sequence[bytes]) -> None:
    """Publish over a raw NATS connection: CONNECT, PUB for each value, PING, PONG.

    Raises:
        RetriableError: The server closed the connection.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        await reader.readuntil(b"\r\n")  # INFO
        writer.write(b'CONNECT {"verbose":false,"pedantic":false,"name":"demo"}\r\n')
        for first in range(0, len(values), CHUNK):
            chunk = values[first : first + CHUNK]
            writer.write(
                b"".join(
                    b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(value), value)
                    for value in chunk
                )
            )
            await writer.drain()
        writer.write(b"PING\r\n")
        seen = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while b"PONG\r\n" not in seen:
                data = await reader.read(NATS_READ_BYTES)
                if not data:
                    raise RetriableError("the NATS server closed the connection")
                seen = seen[-8:] + data
    finally:
        writer.close()


async def demo(
    run: Run[DemoRow],
    *,
    lines: Annotated[
        int,
        typer.Option(min=100, max=LINES_MAX, metavar="COUNT", help="Number of lines to publish."),
    ] = (LINES_DEFAULT),
) -> None:
    """Publish to three brokers, kill one, hang one, damage a disk, and count every line.

    Ends on its own and leaves nothing behind.
    """
    console = stderr_console()
    place = Path(tempfile.mkdtemp(prefix="liftbridge-demo-"))
    started = perf_counter()
    cluster = LocalCluster(place, BROKERS, Ports(free_port(), free_port(), free_port()))
    try:
        show = Demo(cluster, console)
        await cluster.start()
        seconds = perf_counter() - started
        show.report(
            f"a cluster of {BROKERS} brokers and a NATS server was ready after {seconds:.1f} s"
        )
        text = library_lines(lines)
        show.report(f"{len(text):,} lines from the library of Python {sys.version.split()[0]}")
        retry = timedelta(seconds=PATIENCE_SECONDS)
        run.profile = run.profile._replace(servers=cluster.addresses)
        async with run.client(retry_time=retry) as lb:
            shown = (
                await show.by_grpc(lb, text),
                await show.by_subject(lb, text[:SUBJECT_LINES]),
                await show.by_nats(lb, text[:NATS_LINES]),
            )
        await cluster.stop()
    finally:
        cluster.kill()
        shutil.rmtree(place, ignore_errors=True)
    row = _row(text, shown, show.stalls, perf_counter() - started)
    run.emit(row)
    run.printer.end()
    run.exit_code = exits.OK if row.is_ok else exits.REFUSED
    _say_the_end(console, row)


def _row(
    text: Sequence[Line], found: Sequence[Published], stalls: Stalls, seconds: float
) -> DemoRow:
    grpc, subject, nats = found
    missing, repeated, misplaced = (
        sum(numbers) for numbers in zip(*(one.verdict for one in found), strict=True)
    )
    counts = len(text), min(len(text), SUBJECT_LINES), min(len(text), NATS_LINES)
    return DemoRow(
        not (missing or repeated or misplaced),
        sum(counts),
        missing,
        repeated,
        misplaced,
        round(FAST_SHARE * counts[0] / max(grpc.publish_seconds, 1e-9)),
        round(counts[1] / max(subject.publish_seconds, 1e-9)),
        round(counts[2] / max(nats.publish_seconds, 1e-9)),
        round(counts[0] / max(grpc.read_seconds, 1e-9)),
        round(stalls.kill, 3),
        round(stalls.pause, 3),
        round(stalls.damage, 3),
        round(seconds, 1),
    )


def _say_the_end(console: Console, row: DemoRow) -> None:
    if row.is_ok:
        console.print(
            "[green]✓[/green] every line was read back exactly once, in file order;"
            " no acknowledged line is missing",
            highlight=False,
        )
        console.print(
            "\nNext steps: liftbridge dev (run your own brokers), liftbridge examples,"
            " docs/tutorials/first-stream.md\n",
            highlight=False,
        )
    else:
        console.print("[red]✗[/red] this is a bug: the lines read are not the lines published")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "demo", Shape(DemoRow), has_server=False, panel="Start here")(demo)
