"""Measures the time until a restarted broker with a large log serves again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.bench.loadgen import python_generator
from liftbridge_testkit.bench.streams import Bound, timed
from liftbridge_testkit.processes import Broker, NatsServer

if TYPE_CHECKING:
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator

VALUE_BYTES: Final = 4_096

BOUNDS = (
    Bound("start_seconds", "start-up after SIGTERM, s", 2, None),
    Bound("crash_start_seconds", "start-up after kill -9, s", 2, None),
)


@dataclass(frozen=True)
class BigLogResult:
    """Start-up with one large partition; kill -9 comes right after the last ack of the load.

    Attributes:
        log_bytes: Bytes of values in the log.
        write_seconds: Time it took to write them, through PublishBatch.
        start_seconds: Time from exec to SERVING after a clean stop.
        crash_start_seconds: The same after kill -9.
    """

    log_bytes: int
    write_seconds: float
    start_seconds: float
    crash_start_seconds: float


def measure_big_log(load: LoadGenerator, work_dir: Path, *, gigabytes: float) -> BigLogResult:
    """Write a log of this size (10^9 bytes), kill the broker, start, stop, start again.

    Args:
        load: Creates the stream.
        work_dir: Needs room for the log; emptied afterwards.
        gigabytes: Size of the log.
    """
    directory = work_dir / "big-log"
    nats = NatsServer(directory)
    broker = Broker(directory, nats_url=nats.url)
    count = int(gigabytes * 1e9) // VALUE_BYTES
    try:
        with nats, broker:
            load.run("lb-create", server=broker.address, stream="big", subject="big", count=1)
            written = python_generator().run(
                "batch-publish",
                server=broker.address,
                stream="big",
                count=count,
                size=VALUE_BYTES,
            )
            broker.kill()
            crash = timed(broker.start)
            broker.stop()
            start = timed(broker.start)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return BigLogResult(count * VALUE_BYTES, written.seconds, start, crash)
