"""Measures the cost of 1,000 streams to one broker: creation, idle CPU, memory, start-up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from liftbridge_testkit.processes import Broker, NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator


@dataclass(frozen=True)
class Bound:
    """A limit for one figure.

    Attributes:
        name: Attribute of `StreamsResult`.
        title: Title for the reader.
        limit: Highest value that is good enough.
        original: The Go broker's figure, if measured.
    """

    name: str
    title: str
    limit: float
    original: float | None


BOUNDS = (
    Bound("create_seconds", "creation, s", 10, 22),
    Bound("idle_cpu_percent", "idle CPU, % of a core", 3, 6.8),
    Bound("rss_mb", "memory, MB", 300, 605),
    Bound("start_seconds", "start-up after SIGTERM, s", 5, None),
    Bound("crash_start_seconds", "start-up after kill -9, s", 5, None),
)


@dataclass(frozen=True)
class StreamsResult:
    """Figures for a broker with many streams; broker process only, without nats-server.

    Attributes:
        streams: Number of streams.
        create_seconds: One CreateStream after another, by one client.
        create_p99_us: 99th percentile of a single creation.
        idle_cpu_percent: CPU of the broker with nothing to do, in percent of one core.
        rss_mb: Resident memory after creation, in 10^6 bytes.
        start_seconds: Time from exec to SERVING after a clean stop.
        crash_start_seconds: The same after kill -9.
    """

    streams: int
    create_seconds: float
    create_p99_us: float
    idle_cpu_percent: float
    rss_mb: float
    start_seconds: float
    crash_start_seconds: float


def measure_streams(
    load: LoadGenerator,
    work_dir: Path,
    *,
    count: int,
    idle_seconds: float,
    rest: Callable[[float], None],
    binary: Path | None = None,
) -> StreamsResult:
    """Create the streams, look at the idle broker, restart it twice.

    Args:
        load: Creates the streams.
        work_dir: Gets the data; emptied afterwards.
        count: Streams.
        idle_seconds: Time for which the idle broker is measured, after as long a rest.
        rest: Waits for a number of seconds.
        binary: Another broker program with the same flags.
    """
    directory = work_dir / "streams"
    nats = NatsServer(directory)
    broker = Broker(directory, nats_url=nats.url, binary=binary)
    try:
        with nats, broker:
            made = load.run(
                "lb-create", server=broker.address, stream="idle", subject="idle", count=count
            )
            rest(idle_seconds)
            before = broker.cpu_seconds()
            rest(idle_seconds)
            idle = (broker.cpu_seconds() - before) / idle_seconds * 100
            rss = broker.rss_bytes() / 1e6
            broker.stop()
            start = timed(broker.start)
            broker.kill()
            crash = timed(broker.start)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return StreamsResult(count, made.seconds, made.number("p99_us") or 0.0, idle, rss, start, crash)


def timed(act: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = monotonic()
    act()
    return monotonic() - start
