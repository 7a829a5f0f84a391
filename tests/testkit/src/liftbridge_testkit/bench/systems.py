"""The systems that are compared, each able to do the works of the benchmark.

A work is named by what a user does (publish, replay, latency, ...). Each system does it its own
way, with shipped defaults, and answers with a `Sample`: rate, latency, and the CPU time its servers
used for each message. For Liftbridge servers means broker and nats-server together.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from liftbridge_testkit.bench.loadgen import python_generator
from liftbridge_testkit.processes import Broker, NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator, Measurement

# Steps of the search for the highest rate without loss; each one halves the interval.
INTAKE_STEPS_MAX = 6


@dataclass(frozen=True)
class Sizes:
    """Amount of each work.

    Attributes:
        count: Messages of the bulk works.
        singles: Messages published one at a time.
        value_bytes: Size of a value.
        window: Messages in flight on one publishing stream.
    """

    count: int = 1_000_000
    singles: int = 100_000
    value_bytes: int = 256
    window: int = 1_024


@dataclass(frozen=True)
class Sample:
    """One run of one work on one system.

    Attributes:
        rate: Messages a second.
        cpu_us: CPU microseconds of all servers for each message.
        details: Latencies in microseconds and other figures of the load generator.
        notes: Notes for readers of this run.
        is_complete: Whether all of the work was done: every message also reached the plain
            subscriber. A run that left out part of the work proves nothing about its speed.
    """

    rate: float
    cpu_us: float
    details: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_complete: bool = True

    def value(self, metric: str) -> float | None:
        """Return a figure by name: `rate`, `cpu_us` or a detail such as `p50_us`."""
        if metric == "rate":
            return self.rate
        if metric == "cpu_us":
            return self.cpu_us
        found = self.details.get(metric)
        return float(found) if isinstance(found, int | float) else None


class System(Protocol):
    """A running system under measurement; leaving the context stops it and removes its files."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...

    def works(self) -> Mapping[str, Callable[[], Sample]]:
        """Return the works it can do, in the order they must run."""
        ...


class JetStream:
    """A nats-server with JetStream: file storage, one replica, everything else as shipped."""

    name = "jetstream"

    def __init__(self, load: LoadGenerator, work_dir: Path, sizes: Sizes) -> None:
        self._load = load
        self._dir = work_dir / self.name
        self._sizes = sizes
        self._server = NatsServer(self._dir, jetstream=True)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._server.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    def works(self) -> Mapping[str, Callable[[], Sample]]:
        """Return the works it can do, in the order they must run."""
        return {
            "publish": self._publish,
            "replay": lambda: self._replay("ordered"),
            "replay-push": lambda: self._replay("push"),
            "latency": self._latency,
            "intake": self._intake,
            "core": self._core,
        }

    def _create(self, stream: str) -> None:
        self._load.run("js-create", nats=self._server.url, stream=stream, subject=stream)

    def _measure(self, command: str, stream: str, count: int, mode: str = "") -> Sample:
        def run() -> Measurement:
            return self._load.run(
                command,
                nats=self._server.url,
                stream=stream,
                subject=stream,
                count=count,
                size=self._sizes.value_bytes,
                window=self._sizes.window,
                mode=mode,
            )

        return measured(run, self._server.cpu_seconds)

    def _publish(self) -> Sample:
        self._create("publish")
        with self._load.bystander(self._server.url, "publish") as bystander:
            sample = self._measure("js-publish", "publish", self._sizes.count)
        return witnessed(sample, bystander.count, self._sizes.count)

    def _replay(self, mode: str) -> Sample:
        return self._measure("js-replay", "publish", self._sizes.count, mode)

    def _latency(self) -> Sample:
        self._create("latency")
        count = self._sizes.singles
        with self._load.bystander(self._server.url, "latency") as bystander:
            sample = self._measure("js-latency", "latency", count)
        return witnessed(sample, bystander.count, count)

    def _intake(self) -> Sample:
        self._create("intake")
        return self._measure("js-intake", "intake", self._sizes.count)

    def _core(self) -> Sample:
        with self._load.bystander(self._server.url, "core"):
            return self._measure("nats-publish", "core", self._sizes.count)


class Liftbridge:
    """A broker beside a nats-server of its own; ours, or another program with the same flags."""

    def __init__(
        self, load: LoadGenerator, work_dir: Path, sizes: Sizes, *, binary: Path | None = None
    ) -> None:
        self.name = "peer" if binary else "liftbridge"
        self._load = load
        self._dir = work_dir / self.name
        self._sizes = sizes
        self._nats = NatsServer(self._dir)
        self._broker = Broker(self._dir, nats_url=self._nats.url, binary=binary)

    def __enter__(self) -> Self:
        self._nats.start()
        try:
            self._broker.start()
        except BaseException:
            self._nats.kill()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._broker.kill()
        self._nats.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    def works(self) -> Mapping[str, Callable[[], Sample]]:
        """Return the works it can do, in the order they must run."""
        return {
            "publish": lambda: self._publish("publish", streams=1),
            "publish-four": lambda: self._publish("publish4", streams=4),
            "replay": lambda: self._replay("publish", self._sizes.count),
            "latency": lambda: self._latency("latency", "async"),
            "latency-unary": lambda: self._latency("unary", "unary"),
            "replay-singles": lambda: self._replay("latency", self._sizes.singles),
            "intake": self._intake,
        } | self._batch_works()

    def _batch_works(self) -> dict[str, Callable[[], Sample]]:
        """Return the works of our own API, which no other broker has."""
        if self.name == "peer":
            return {}
        return {
            "batch-publish": self._batch_publish,
            "batch-read": self._batch_read,
            "batch-read-varying": self._batch_read_varying,
        }

    def _batch_publish(self) -> Sample:
        self.create("batches")
        with self._load.bystander(self._nats.url, "batches") as bystander:
            sample = self._measure_batches("batch-publish", "batches")
        return witnessed(sample, bystander.count, self._sizes.count)

    def _batch_read(self) -> Sample:
        return self._measure_batches("batch-read", "batches")

    def _batch_read_varying(self) -> Sample:
        self.create("varying")
        self._measure_batches("batch-publish", "varying", mode="varying")
        return self._measure_batches("batch-read", "varying", mode="varying")

    def _measure_batches(self, command: str, stream: str, mode: str = "") -> Sample:
        def run() -> Measurement:
            return python_generator().run(
                command,
                server=self._broker.address,
                stream=stream,
                count=self._sizes.count,
                size=self._sizes.value_bytes,
                mode=mode,
            )

        return measured(run, self.cpu_seconds)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the broker and its nats-server."""
        return self._broker.cpu_seconds() + self._nats.cpu_seconds()

    def create(self, stream: str) -> None:
        """Create a stream of one partition on the subject of the same name."""
        self._load.run(
            "lb-create", server=self._broker.address, stream=stream, subject=stream, count=1
        )

    def _measure(self, command: str, stream: str, count: int, **flags: float | str) -> Sample:
        def run() -> Measurement:
            return self._load.run(
                command,
                server=self._broker.address,
                nats=self._nats.url,
                stream=stream,
                subject=stream,
                count=count,
                size=self._sizes.value_bytes,
                **flags,
            )

        return measured(run, self.cpu_seconds)

    def _publish(self, stream: str, *, streams: int) -> Sample:
        self.create(stream)
        with self._load.bystander(self._nats.url, stream) as bystander:
            sample = self._measure(
                "lb-publish",
                stream,
                self._sizes.count,
                streams=streams,
                conns=streams,
                window=self._sizes.window,
            )
        return witnessed(sample, bystander.count, self._sizes.count)

    def _replay(self, stream: str, count: int) -> Sample:
        return self._measure("lb-replay", stream, count)

    def _latency(self, stream: str, mode: str) -> Sample:
        self.create(stream)
        count = self._sizes.singles if mode == "async" else self._sizes.singles // 5
        with self._load.bystander(self._nats.url, stream) as bystander:
            sample = self._measure("lb-latency", stream, count, mode=mode)
        return witnessed(sample, bystander.count, count)

    def _intake(self) -> Sample:
        """Find the highest rate of plain NATS publishes that is stored without loss."""
        attempts: list[str] = []

        def attempt(rate: float) -> Sample:
            stream = f"intake{len(attempts)}"
            self.create(stream)
            sample = self._measure("lb-intake", stream, self._sizes.count, rate=rate)
            lost = int(sample.value("lost") or 0)
            asked = f"{rate / 1e3:,.0f} k/s" if rate else "as fast as possible"
            attempts.append(f"{asked}: {lost:,} lost, stored at {sample.rate / 1e3:,.0f} k/s")
            return sample

        best = search(attempt, INTAKE_STEPS_MAX)
        return Sample(best.rate, best.cpu_us, best.details, (*best.notes, *attempts))


def search(attempt: Callable[[float], Sample], steps: int) -> Sample:
    """Find the run with the highest stored rate that lost nothing.

    Args:
        attempt: Does one run at a rate in messages a second; 0 means as fast as possible.
        steps: Runs after the first one, when that loses something.

    Returns:
        The best run. When every run lost something: the last one, with rate 0 and a note.
    """
    sample = attempt(0.0)
    if not sample.value("lost"):
        return sample
    best: Sample | None = None
    # What was stored although some was lost is a good guess of what can be stored.
    low, high = 0.0, sample.value("offered_rate") or sample.rate
    rate = min(sample.rate, high)
    for _ in range(steps):
        sample = attempt(rate)
        if sample.value("lost"):
            high = rate
        else:
            low = rate
            if best is None or sample.rate > best.rate:
                best = sample
        rate = (low + high) / 2
    if best is None:
        return Sample(0.0, sample.cpu_us, sample.details, ("every rate tried lost messages",))
    return best


def measured(run: Callable[[], Measurement], cpu_seconds: Callable[[], float]) -> Sample:
    """Do a run and charge the CPU time the servers used meanwhile to its messages."""
    before = cpu_seconds()
    measurement = run()
    used = cpu_seconds() - before
    count = measurement.count + int(measurement.number("warm_up") or 0)
    return Sample(measurement.rate, used * 1e6 / max(count, 1), measurement.details)


def witnessed(sample: Sample, seen: int, published: int) -> Sample:
    """Add what the plain subscriber saw; a note when it missed something."""
    published += int(sample.value("warm_up") or 0)
    details = {**sample.details, "plain_subscriber_received": seen}
    notes = sample.notes
    if seen != published:
        notes = (*notes, f"the plain subscriber received {seen:,} of {published:,}")
    return Sample(sample.rate, sample.cpu_us, details, notes, is_complete=seen == published)
