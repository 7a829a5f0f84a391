"""Measures the cost of many partitions to a real cluster: first records, idle CPU, loss, restart.

Three brokers, factor 3, default settings. `python -m liftbridge_testkit.scale` creates 1,000
partitions (`--partitions`), publishes ten messages to each, lets the cluster idle, kills the broker
that leads most, waits until every partition has a leader again, and starts that broker again.

It measures the time of the creation and of the first records, the leaderships that moved meanwhile,
the memory and the CPU of each idle broker, the time from SIGKILL until the last partition has a
leader, and the time from the start of the broker until it serves and until every replica is in sync
again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_proto import api_pb2
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STREAM_PARTITIONS: Final = 50
MESSAGES: Final = 10
SECONDS_MAX: Final = 120.0
"""Maximum time of one call, and of one wait."""


class Figure(NamedTuple):
    """One measured figure and its target."""

    title: str
    value: float
    below: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Return whether the figure meets its target."""
        return self.value < self.below


def partitions(cluster: ClusterKit, at: str = "") -> Iterator[api_pb2.PartitionMetadata]:
    """Yield all partitions as one broker reports them."""
    for stream in cluster.metadata(at).streamMetadata:
        yield from stream.partitions.values()


def leaders(cluster: ClusterKit, at: str = "") -> Counter[str]:
    """Return the number of partitions by leader; those without one under the empty name."""
    return Counter(partition.leader for partition in partitions(cluster, at))


def led_by(cluster: ClusterKit) -> set[tuple[str, int, str]]:
    """Return all partitions with their leaders."""
    return {
        (stream.name, partition.id, partition.leader)
        for stream in cluster.metadata().streamMetadata
        for partition in stream.partitions.values()
    }


def create(cluster: ClusterKit, count: int) -> float:
    """Create partitions in streams of `STREAM_PARTITIONS`; return the seconds it took."""
    begin = monotonic()
    with cluster["b1"].channel() as channel:
        for number, first in enumerate(range(0, count, STREAM_PARTITIONS)):
            request = api_pb2.CreateStreamRequest(
                name=f"stream-{number}",
                subject=f"stream-{number}",
                partitions=min(STREAM_PARTITIONS, count - first),
                replicationFactor=3,
            )
            api(channel).CreateStream(request, timeout=SECONDS_MAX)
            say(f"created {first + request.partitions} of {count} partitions")
    await_in_sync(cluster)
    return monotonic() - begin


def fill(cluster: ClusterKit, count: int) -> float:
    """Publish `MESSAGES` to each partition, with acks of all; return the seconds it took."""
    begin = monotonic()

    def requests() -> Iterator[api_pb2.PublishRequest]:
        for number in range(count * MESSAGES):
            stream, partition = divmod(number // MESSAGES, STREAM_PARTITIONS)
            yield api_pb2.PublishRequest(
                stream=f"stream-{stream}",
                partition=partition,
                value=b"v" * 256,
                ackPolicy=api_pb2.ALL,
                expectedOffset=-1,
            )

    with cluster["b1"].channel() as channel:
        for number, answer in enumerate(api(channel).PublishAsync(requests()), 1):
            if answer.HasField("asyncError"):
                raise ProcessError(answer.asyncError.message)
            if number == count * MESSAGES:
                break
    say(f"published {MESSAGES} messages to each")
    return monotonic() - begin


def await_in_sync(cluster: ClusterKit) -> None:
    """Wait until every replica is in sync."""
    cluster.until(
        lambda: all(len(found.isr) == len(cluster.brokers) for found in partitions(cluster)),
        "every replica in sync",
        seconds_max=SECONDS_MAX,
    )


def idle_cpu(cluster: ClusterKit, seconds: float) -> dict[str, float]:
    """Return the share of a core that each idle broker uses."""
    before = {name: broker.cpu_seconds() for name, broker in cluster.brokers.items()}
    begin = monotonic()
    sleep(seconds)
    passed = monotonic() - begin
    return {
        name: (broker.cpu_seconds() - before[name]) / passed
        for name, broker in cluster.brokers.items()
    }


def lose_leader(cluster: ClusterKit) -> tuple[str, int, float]:
    """Kill the broker that leads most partitions.

    Return its name, its partitions, and the seconds until all have leaders.
    """
    victim, count = leaders(cluster).most_common(1)[0]
    witness = next(name for name in cluster.brokers if name != victim)
    cluster[victim].kill()
    moment = monotonic()

    def is_led() -> bool:
        found = leaders(cluster, witness)
        return not found[""] and not found[victim]

    cluster.until(is_led, "all partitions led", seconds_max=SECONDS_MAX)
    return victim, count, monotonic() - moment


def first_ack(cluster: ClusterKit) -> None:
    """Create a stream of three replicas and publish a message that all of them have."""
    with cluster["b1"].channel() as channel:
        created = api_pb2.CreateStreamRequest(name="first", subject="first", replicationFactor=3)
        published = api_pb2.PublishRequest(stream="first", value=b"v", ackPolicy=api_pb2.ALL)
        api(channel).CreateStream(created, timeout=SECONDS_MAX, wait_for_ready=True)
        api(channel).Publish(published, timeout=SECONDS_MAX)


def measure(work: Path, count: int, idle_seconds: float) -> Iterator[Figure]:
    """Start a cluster and yield all figures, in turn."""
    kit = ClusterKit(work, has_proxies=False)
    begin = monotonic()
    with kit as cluster:
        first_ack(cluster)
        yield Figure("start of a new cluster until its first ack", monotonic() - begin, 2.0, "s")
        yield from measure_partitions(cluster, count, idle_seconds)


def measure_partitions(cluster: ClusterKit, count: int, idle_seconds: float) -> Iterator[Figure]:
    """Yield the figures that depend on the number of partitions."""
    yield Figure("creation", create(cluster, count), 60.0, "s")
    before = led_by(cluster)
    spread = Counter(leader for _, _, leader in before).values()
    yield Figure("most leaderships less fewest", max(spread) - min(spread), 0.05 * count, "")
    say(f"first records: {fill(cluster, count):.1f} s")
    yield Figure("leaderships moved by first records", len(led_by(cluster) - before), 1, "")
    shares = idle_cpu(cluster, idle_seconds)
    say("idle: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    largest = max(broker.rss_bytes() for broker in cluster.brokers.values()) / 1e6
    yield Figure("memory of the largest broker", largest, 600.0, "MB")
    yield Figure("idle CPU, the busiest broker", 100 * max(shares.values()), 15.0, "% of a core")
    victim, led, seconds = lose_leader(cluster)
    say(f"{victim} led {led} partitions: {seconds:.2f} s until all were led")
    yield Figure(f"kill -9 of the leader of {led} partitions, all led again", seconds, 3.0, "s")
    begin = monotonic()
    cluster.start(victim)
    start_max = 2.0 if count <= 1_000 else 20.0
    yield Figure("restart until it serves", monotonic() - begin, start_max, "s")
    await_in_sync(cluster)
    yield Figure("restart until every replica is in sync", monotonic() - begin, 20.0, "s")
    begin = monotonic()
    cluster.stop(victim)
    yield Figure("controlled stop", monotonic() - begin, 20.0, "s")
    begin = monotonic()
    cluster.start(victim)
    await_in_sync(cluster)
    yield Figure("start after it until every replica is in sync", monotonic() - begin, 20.0, "s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=1_000, help="replicated ones (1,000)")
    parser.add_argument("--idle-seconds", type=float, default=30.0, help="at rest (30)")
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/scale.json"))
    options = parser.parse_args(arguments)
    about = machine(0.0)
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        found = list(measure(Path(name), options.partitions, options.idle_seconds))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "figures": [figure._asdict() for figure in found]}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    rows = [
        [
            figure.title,
            f"{figure.value:.2f} {figure.unit}",
            f"< {figure.below:g} {figure.unit}",
            "yes" if figure.is_met else "NO",
        ]
        for figure in found
    ]
    say(f"\n{table(['what', 'measured', 'target', 'met'], rows)}\n\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
