"""Measures the cost of a bulk read to a publisher: the time until an ack, with and without one."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.bench.loadgen import python_generator
from liftbridge_testkit.bench.streams import Bound
from liftbridge_testkit.processes import Broker, NatsServer

if TYPE_CHECKING:
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator

RATE: Final = 1_000
"""Messages a second of the publisher, which the Go program sends by the clock."""

BOUNDS = (
    Bound("batches_ratio", "p99 of acks beside FetchBatches, times that alone", 2, None),
    Bound("messages_ratio", "p99 of acks beside Subscribe, times that alone", 2, None),
)


@dataclass(frozen=True)
class BesideResult:
    """Time until an ack of a publisher of `RATE` messages a second; medians of the rounds.

    Attributes:
        alone_p99_us: 99th percentile without other clients, in microseconds.
        batches_p99_us: The same while a client reads stored batches as fast as it can.
        messages_p99_us: The same while a client reads single messages so.
    """

    alone_p99_us: float
    batches_p99_us: float
    messages_p99_us: float

    @property
    def batches_ratio(self) -> float:
        """Return the factor by which acks take longer during a read of stored batches."""
        return self.batches_p99_us / self.alone_p99_us

    @property
    def messages_ratio(self) -> float:
        """Return the factor by which acks take longer during a read of single messages."""
        return self.messages_p99_us / self.alone_p99_us


def measure_beside(
    load: LoadGenerator, work_dir: Path, *, count: int, singles: int, rounds: int
) -> BesideResult:
    """Publish alone and beside each kind of read, in turn.

    Args:
        load: Creates streams, and publishes.
        work_dir: Directory for data; emptied afterwards.
        count: Records that are read again and again.
        singles: Messages of the publisher in each run.
        rounds: Number of repetitions of each.
    """
    directory = work_dir / "beside"
    nats = NatsServer(directory)
    broker = Broker(directory, nats_url=nats.url)
    found: dict[str, list[float]] = {"": [], "batches": [], "messages": []}
    python = python_generator()
    try:
        with nats, broker:
            for stream in ("bulk", "acks"):
                load.run("lb-create", server=broker.address, stream=stream, subject=stream, count=1)
            python.run("batch-publish", server=broker.address, stream="bulk", count=count)
            for _ in range(rounds):
                for kind, p99s in found.items():
                    reading = (
                        python.reader(broker.address, "bulk", count, kind)
                        if kind
                        else nullcontext()
                    )
                    with reading:
                        done = load.run(
                            "lb-latency", server=broker.address, nats=nats.url, stream="acks",
                            subject="acks", count=singles, rate=RATE,
                        )  # fmt: skip
                    p99s.append(done.number("p99_us") or 0.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return BesideResult(*(median(found[kind]) for kind in ("", "batches", "messages")))
