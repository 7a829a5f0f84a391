"""Checks that a cluster under full load never treats a busy broker as dead.

The cluster has three brokers, factor 3 and default settings. Each broker leads a partition that a
separate process fills as fast as it can with ack policy ALL, until no CPU is left. `python -m
liftbridge_testkit.saturation --minutes 10` counts events that must not happen: another leader of
the metadata or of a partition, a broker that is fenced or fences itself, an in-sync set below its
minimum, a refused publisher. It also reports in-sync sets that shrink and stay at their minimum or
above, which is allowed. After any such event the logs of the brokers are kept beside the output.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

WINDOW: Final = 1_024
SIZE: Final = 256
MIN_ISR: Final = 2
SETTLE_SECONDS: Final = 10.0
"""Seconds of load before counting begins, for connections and first elections."""

TELL_SECONDS: Final = 30.0
CREATE_SECONDS: Final = 10.0
ATTEMPTS_MAX: Final = 30
END_SECONDS_MAX: Final = 30.0
ALARMS: Final = (
    "metadata_leader_changed",
    "partition_leader_elected",
    "partition_leaderless",
    "self_fenced",
)
"""Kinds of events that load alone must not cause."""

ALLOWED: Final = frozenset({"acknowledged", "in-sync set changed"})
"""Events that are reported and allowed."""

PUBLISHER: Final = (sys.executable, "-m", "liftbridge_testkit.saturation", "--publish")


class Load(NamedTuple):
    """A process that publishes.

    Attributes:
        stream: Stream to publish to.
        leader: Leader of the stream.
        process: The process; prints the number of acknowledged messages when its input ends.
    """

    stream: str
    leader: str
    process: subprocess.Popen[str]


def value(number: int) -> bytes:
    """Return the value of a message by its sequence number.

    The publisher is the only one of its stream.
    """
    return number.to_bytes(8, "big").ljust(SIZE, b"v")


def publish(address: str, stream: str) -> int:
    """Publish until the input ends; print the number of acks. Return 1 after a refusal."""
    window = threading.Semaphore(WINDOW)
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()

    def requests() -> Iterator[api_pb2.PublishRequest]:
        number = 0
        while not is_over.is_set():
            if window.acquire(timeout=0.1):
                yield api_pb2.PublishRequest(
                    stream=stream, value=value(number), ackPolicy=api_pb2.ALL, expectedOffset=-1
                )
                number += 1

    acked = 0
    refused = ""
    with grpc.insecure_channel(address) as channel:
        try:
            for answer in api(channel).PublishAsync(requests()):
                if answer.HasField("asyncError"):
                    refused = answer.asyncError.message
                    break
                if answer.ack.offset != acked:
                    refused = f"message {acked} was acknowledged at offset {answer.ack.offset}"
                    break
                acked += 1
                window.release()
        except grpc.RpcError as error:
            refused = str(error)
    sys.stdout.write(json.dumps({"acked": acked, "refused": refused}) + "\n")
    return 1 if refused else 0


def place(cluster: ClusterKit) -> dict[str, str]:
    """Create streams until each broker leads one. Return the stream of each broker."""
    led: dict[str, str] = {}
    for number in range(ATTEMPTS_MAX):
        stream = f"load-{number}"
        with cluster["b1"].channel() as channel:
            request = api_pb2.CreateStreamRequest(name=stream, subject=stream, replicationFactor=3)
            api(channel).CreateStream(request, timeout=CREATE_SECONDS)
        led.setdefault(cluster.await_leader(stream), stream)
        if len(led) == len(cluster.brokers):
            return led
    raise ProcessError(f"after {ATTEMPTS_MAX} streams only {sorted(led)} lead one")


def events(cluster: ClusterKit) -> Iterator[Mapping[str, Any]]:
    """Yield the log entries of all brokers so far."""
    for broker in cluster.brokers.values():
        for line in broker.log_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)


def alarms(cluster: ClusterKit, streams: Container[str] | None = None) -> Counter[str]:
    """Return the count of each alarm so far, and of in-sync set changes of `streams`."""
    found: Counter[str] = Counter()
    for event in events(cluster):
        kind = event["event"]
        if kind == "in_sync_set_changed":
            if streams is not None and event["stream"] not in streams:
                continue
            count = len(event["in_sync"])
            found["in-sync set changed"] += 1
            found["in-sync set below its minimum"] += count < MIN_ISR
        elif kind in ALARMS:
            found[kind.replace("_", " ")] += 1
    return found


def look(cluster: ClusterKit) -> Counter[str]:
    """Return the present status of the brokers."""
    found: Counter[str] = Counter()
    for name in cluster.brokers:
        try:
            found["broker seen fenced"] += bool(cluster.metric("broker_fenced", name))
        except OSError:
            found["broker did not answer"] += 1
    return found


def begin(cluster: ClusterKit) -> list[Load]:
    """Start a publisher at every broker."""
    return [
        Load(
            stream,
            leader,
            subprocess.Popen(
                [*PUBLISHER, cluster[leader].address, stream],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ),
        )
        for leader, stream in place(cluster).items()
    ]


def measure(cluster: ClusterKit, seconds: float) -> dict[str, float]:
    """Load the cluster for some seconds. Return the count of each event."""
    loads = begin(cluster)
    try:
        sleep(SETTLE_SECONDS)
        before = alarms(cluster)
        seen = _watch(cluster, loads, seconds)
        after = alarms(cluster)
        said = [
            json.loads(load.process.communicate("", timeout=END_SECONDS_MAX)[0]) for load in loads
        ]
    finally:
        for load in loads:
            load.process.kill()
    refused = [one["refused"] for one in said if one["refused"]]
    for text in refused:
        say(f"refused: {text}")
    return {
        "acknowledged": sum(one["acked"] for one in said),
        "publisher refused": len(refused),
        "broker seen fenced": 0,
        "broker did not answer": 0,
        **{kind.replace("_", " "): 0 for kind in ALARMS},
        "in-sync set below its minimum": 0,
        "in-sync set changed": 0,
        **seen,
        **(after - before),
    }


def _watch(cluster: ClusterKit, loads: Sequence[Load], seconds: float) -> Counter[str]:
    """Check the brokers until time is over or a publisher ends; report progress."""
    began = told = monotonic()
    seen: Counter[str] = Counter()
    while (now := monotonic()) - began < seconds:
        if any(load.process.poll() is not None for load in loads):
            break
        seen += look(cluster)
        if now - told > TELL_SECONDS:
            told = now
            say(f"{now - began:.0f} of {seconds:.0f} s, {dict(seen + alarms(cluster))}")
        sleep(1.0)
    return seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Return 1 after any event that must not happen."""
    parser = argparse.ArgumentParser(prog="saturation", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of load (10)")
    parser.add_argument("--publish", nargs=2, metavar=("ADDRESS", "STREAM"), help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/saturation.json"))
    options = parser.parse_args(arguments)
    if options.publish:
        return publish(*options.publish)
    about = machine(0.0)
    config = {"logging.format": "json"}
    with (
        tempfile.TemporaryDirectory(prefix="saturation-") as name,
        ClusterKit(Path(name), config=config, has_proxies=False) as cluster,
    ):
        found = measure(cluster, 60 * options.minutes)
        is_calm = not any(count for what, count in found.items() if what not in ALLOWED)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for broker in () if is_calm else cluster.brokers.values():
            shutil.copy(broker.log_path, options.output.parent / f"saturation-{broker.name}.log")
    document = {"machine": about, "minutes": options.minutes, "counts": found}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    rows = [
        [what, f"{count:,.0f}", "" if what in ALLOWED else "0"] for what, count in found.items()
    ]
    say(f"\n{table(['what', 'times', 'target'], rows)}\n\nwritten: {options.output}")
    return 0 if is_calm else 1


if __name__ == "__main__":
    sys.exit(main())
