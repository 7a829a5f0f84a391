"""`liftbridge bench`: measures how fast this client publishes and reads."""

import asyncio
import os
import secrets
from time import perf_counter
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.aio.stream import Stream
from liftbridge_client.cli import values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import LiftbridgeError, RetriableError
from liftbridge_client.model import AckPolicy, Start, Stop

CHUNK: Final = 1_000
MESSAGES_MAX: Final = 1_000_000_000
WINDOW: Final = 8
"""Concurrent calls to `publish_batch`."""


class BenchRow(NamedTuple):
    """Result of the benchmark; bytes count values only, and a latency is that of a batch."""

    operation: str
    messages: int
    value_bytes: int
    partitions: int
    seconds: float
    messages_per_second: int
    mib_per_second: float
    latency_p50_ms: float | None
    latency_p99_ms: float | None


async def bench(
    run: Run[BenchRow],
    *,
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            "-n",
            min=1000,
            max=MESSAGES_MAX,
            metavar="COUNT",
            help="Number of messages to publish.",
        ),
    ] = 200_000,
    size: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="BYTES", help="Size of each value.")
    ] = 256,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", min=1, max=64, metavar="COUNT", help="Number of partitions."
        ),
    ] = 1,
    replication: Annotated[
        int,
        typer.Option(
            min=-1, max=values.COUNT_MAX, metavar="COUNT", help="Replicas of each partition."
        ),
    ] = 1,
    ack: Annotated[
        str,
        typer.Option(
            parser=values.one_of("leader", "all"),
            metavar="leader|all",
            help="Replicas that must store a message before its ack.",
        ),
    ] = "leader",
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="Publish without duplicates.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the stream.")] = False,
) -> None:
    """Measure how fast messages are published and read.

    Creates its own stream and deletes it afterwards.
    """
    policy: AckPolicy = "all" if ack == "all" else "leader"
    name = f"bench-{secrets.token_hex(4)}"
    value = os.urandom(size)
    async with run.client() as lb:
        stream = await lb.streams.create(name, partitions=partitions, replication=replication)
        try:
            seconds, latencies = await _publish(
                stream, value, messages, partitions, policy, idempotent=idempotent
            )
            run.emit(_row("publish", messages, size, partitions, seconds, latencies))
            seconds = await _read(stream, messages, partitions)
            run.emit(_row("read", messages, size, partitions, seconds, []))
        finally:
            if not keep:
                await stream.delete()


async def _publish(
    stream: Stream,
    value: bytes,
    count: int,
    partitions: int,
    ack: AckPolicy,
    *,
    idempotent: bool,
) -> tuple[float, list[float]]:
    sizes = iter([min(CHUNK, count - first) for first in range(0, count, CHUNK)])
    numbers = iter(range(count))
    latencies: list[float] = []

    async with stream.publisher(
        ack_policy=ack, idempotent=idempotent, max_in_flight=2 * WINDOW * CHUNK
    ) as publisher:

        async def work() -> None:
            for size in sizes:
                began = perf_counter()
                chosen = next(numbers) % partitions
                results = await publisher.publish_batch([value] * size, partition=chosen)
                latencies.append(perf_counter() - began)
                for result in results:
                    if isinstance(result, LiftbridgeError):
                        raise result

        started = perf_counter()
        await asyncio.gather(*(work() for _ in range(WINDOW)))
        return perf_counter() - started, latencies


async def _read(stream: Stream, count: int, partitions: int) -> float:
    async def one(partition: int) -> int:
        reading = stream.subscribe(partition=partition, start=Start.earliest(), stop=Stop.latest())
        return sum([len(batch) async for batch in reading.batches()])

    started = perf_counter()
    counts = await asyncio.gather(*(one(partition) for partition in range(partitions)))
    seconds = perf_counter() - started
    if sum(counts) != count:
        raise RetriableError(f"read {sum(counts)} messages, but published {count}")
    return seconds


def _row(
    operation: str, count: int, size: int, partitions: int, seconds: float, latencies: list[float]
) -> BenchRow:
    ordered = sorted(latencies)
    return BenchRow(
        operation,
        count,
        size,
        partitions,
        round(seconds, 3),
        round(count / seconds),
        round(count * size / seconds / 2**20, 1),
        round(ordered[len(ordered) // 2] * 1e3, 3) if ordered else None,
        round(ordered[len(ordered) * 99 // 100] * 1e3, 3) if ordered else None,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "bench", Shape(BenchRow, is_many=True), panel="Messages")(bench)
