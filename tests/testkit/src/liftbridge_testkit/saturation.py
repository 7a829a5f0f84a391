"""Checks that a cluster under full load never treats a live broker as dead.

The cluster has three brokers, factor 3 and default settings. Each broker leads a partition that a
separate process fills as fast as it can with ack policy ALL, until no CPU is left. Meanwhile, at
even intervals, NATS restarts and connections of brokers to NATS break (`nats_breaks`). `python -m
liftbridge_testkit.saturation --minutes 10` counts events that must not happen: another leader of
the metadata or of a partition, a broker that is fenced or fences itself, an in-sync set that
changes, and without restarts and breaks also a refused message. In the end every acknowledged
message must be at its offset. After any such event the logs of the brokers are kept beside the
output. `--restarts 0 --breaks 0` leaves all of the processor to the load: there are no proxies.

A message whose call fails or that is refused has an unknown outcome: its publisher goes on with the
next number, in a new call if need be, and sends no number twice.
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
from liftbridge_testkit.acked_runs import AckedRuns, Run, missing, records_of
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api, data
from liftbridge_testkit.nats_breaks import Disturber, spread
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

WINDOW: Final = 1_024
SIZE: Final = 256
NUMBER_AT: Final = b"\x1a\x80\x02"
"""Bytes in front of the number in a stored record: tag and length of the value."""

MIN_ISR: Final = 2
SETTLE_SECONDS: Final = 10.0
"""Seconds of load before counting begins, for connections and first elections."""

RESTARTS_PER_MINUTE: Final = 2
BREAKS_PER_MINUTE: Final = 20
LOOK_SECONDS: Final = 1.0
TELL_SECONDS: Final = 30.0
CREATE_SECONDS: Final = 10.0
ATTEMPTS_MAX: Final = 30
END_SECONDS_MAX: Final = 30.0
AGAIN_SECONDS: Final = 0.1
"""Time before a publisher whose call failed calls again."""

ALARMS: Final = (
    "metadata_leader_changed",
    "partition_leader_elected",
    "partition_leaderless",
    "self_fenced",
)
"""Kinds of events that load alone must not cause."""

ALLOWED: Final = frozenset({"acknowledged", "in-sync set changed"})
"""Events that are reported and allowed, where a flood may outrun the replicas of its own stream."""

FIGURES: Final = frozenset(
    {"acknowledged", "restarts of NATS", "breaks", "longest stall of acks, ms"}
)
"""What is reported here without a target."""

OF_DISTURBED: Final = frozenset({"refused messages", "failed calls"})
"""What restarts and breaks may cause: such a message has no ack."""

PUBLISHER: Final = (sys.executable, "-m", "liftbridge_testkit.saturation", "--publish")


class Load(NamedTuple):
    """A process that publishes.

    Attributes:
        stream: Stream to publish to.
        leader: Leader of the stream.
        process: The process; prints what became of its messages when its input ends.
    """

    stream: str
    leader: str
    process: subprocess.Popen[str]


def value(number: int) -> bytes:
    """Return the value of a message by its sequence number.

    The publisher is the only one of its stream.
    """
    return number.to_bytes(8, "big").ljust(SIZE, b"v")


class Publisher:
    """Publishes to one stream in one call after another, until told to end.

    Attributes:
        acked: What was acknowledged.
        refused_count: Messages that were refused.
        failed_count: Calls that failed.
        refused: First reason of either; empty for none.
        stall_seconds: Longest time between two acks.
    """

    def __init__(self, stream: str, is_over: threading.Event) -> None:
        """Begin with number 0."""
        self._stream = stream
        self._is_over = is_over
        self._number = 0
        self._acked_at = 0.0
        self.acked = AckedRuns()
        self.refused_count = self.failed_count = 0
        self.refused = ""
        self.stall_seconds = 0.0

    def run(self, channel: grpc.Channel) -> None:
        """Publish until the end; a call that fails is followed by another one."""
        while not self._is_over.is_set():
            try:
                self._call(channel)
            except grpc.RpcError as error:
                self.failed_count += 1
                self.refused = self.refused or str(error)
                self._is_over.wait(AGAIN_SECONDS)

    def _call(self, channel: grpc.Channel) -> None:
        window = threading.Semaphore(WINDOW)
        has_failed = threading.Event()

        def requests() -> Iterator[api_pb2.PublishRequest]:
            while not (self._is_over.is_set() or has_failed.is_set()):
                if window.acquire(timeout=0.1):
                    number, self._number = self._number, self._number + 1
                    yield api_pb2.PublishRequest(
                        stream=self._stream,
                        value=value(number),
                        correlationId=str(number),
                        ackPolicy=api_pb2.ALL,
                        expectedOffset=-1,
                    )

        try:
            for answer in api(channel).PublishAsync(requests()):
                window.release()
                self._on_answer(answer, monotonic())
        finally:
            has_failed.set()

    def _on_answer(self, answer: api_pb2.PublishResponse, now: float) -> None:
        if answer.HasField("asyncError") or answer.ack.ackError:
            self.refused_count += 1
            self.refused = self.refused or answer.asyncError.message or answer.ack.refusal
            return
        self.acked.add(int(answer.correlationId), answer.ack.offset)
        if self._acked_at:
            self.stall_seconds = max(self.stall_seconds, now - self._acked_at)
        self._acked_at = now


def publish(address: str, stream: str) -> int:
    """Publish until the input ends; print what became of it. Return 1 after a refusal."""
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    publisher = Publisher(stream, is_over)
    with grpc.insecure_channel(address) as channel:
        publisher.run(channel)
    said = {
        "acked": publisher.acked.count,
        "runs": publisher.acked.runs,
        "refused": publisher.refused,
        "refused_count": publisher.refused_count,
        "failed_count": publisher.failed_count,
        "stall_ms": round(publisher.stall_seconds * 1_000),
    }
    sys.stdout.write(json.dumps(said) + "\n")
    return 1 if publisher.refused else 0


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


def measure(cluster: ClusterKit, seconds: float, disturber: Disturber) -> dict[str, float]:
    """Load and disturb the cluster for some seconds. Return the count of each event."""
    loads = begin(cluster)
    try:
        sleep(SETTLE_SECONDS)
        before = alarms(cluster)
        seen = _watch(cluster, loads, seconds, disturber)
        after = alarms(cluster)
        said = [
            json.loads(load.process.communicate("", timeout=END_SECONDS_MAX)[0]) for load in loads
        ]
    finally:
        for load in loads:
            load.process.kill()
    for text in (one["refused"] for one in said if one["refused"]):
        say(f"refused: {text}")
    say("reading what was acknowledged")
    lost = [_missing(cluster, load, one["runs"]) for load, one in zip(loads, said, strict=True)]
    return {
        "acknowledged": sum(one["acked"] for one in said),
        "restarts of NATS": disturber.restarted,
        "breaks": disturber.broken,
        "longest stall of acks, ms": max(one["stall_ms"] for one in said),
        "acknowledged and missing": sum(lost),
        "refused messages": sum(one["refused_count"] for one in said),
        "failed calls": sum(one["failed_count"] for one in said),
        "broker seen fenced": 0,
        "broker did not answer": 0,
        **{kind.replace("_", " "): 0 for kind in ALARMS},
        "in-sync set below its minimum": 0,
        "in-sync set changed": 0,
        **seen,
        **(after - before),
    }


def _missing(cluster: ClusterKit, load: Load, runs: Sequence[Sequence[int]]) -> int:
    """Return how many acknowledged messages of a stream are not where they must be."""
    with cluster[cluster.leader_of(load.stream)].channel() as channel:
        records = records_of(data(channel), load.stream, number_at=NUMBER_AT)
        return missing([Run(*run) for run in runs], records)


def _watch(
    cluster: ClusterKit, loads: Sequence[Load], seconds: float, disturber: Disturber
) -> Counter[str]:
    """Check and disturb until time is over or a publisher ends; report progress."""
    began = told = looked = monotonic()
    seen: Counter[str] = Counter()
    while (now := monotonic()) - began < seconds:
        if any(load.process.poll() is not None for load in loads):
            break
        if now - looked >= LOOK_SECONDS:
            looked = now
            seen += look(cluster)
        if now - told > TELL_SECONDS:
            told = now
            say(f"{now - began:.0f} of {seconds:.0f} s, {dict(seen + alarms(cluster))}")
        due = disturber.next_at()
        if due is not None and now - began >= due:
            say(f"{now - began:.3f} s: {disturber.act()}")
        sleep(0.05)
    return seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Return 1 after any event that must not happen."""
    parser = argparse.ArgumentParser(prog="saturation", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of load (10)")
    parser.add_argument("--restarts", type=int, help="of NATS (2 a minute: 20)")
    parser.add_argument("--breaks", type=int, help="of connections of brokers (20 a minute: 200)")
    parser.add_argument("--publish", nargs=2, metavar=("ADDRESS", "STREAM"), help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/saturation.json"))
    options = parser.parse_args(arguments)
    if options.publish:
        return publish(*options.publish)
    restarts, breaks = (
        round(options.minutes * per_minute) if given is None else given
        for given, per_minute in (
            (options.restarts, RESTARTS_PER_MINUTE),
            (options.breaks, BREAKS_PER_MINUTE),
        )
    )
    seconds = 60 * options.minutes
    about = machine(0.0)
    config = {"logging.format": "json"}
    is_disturbed = restarts + breaks > 0
    may_be = FIGURES | OF_DISTURBED if is_disturbed else FIGURES
    with (
        tempfile.TemporaryDirectory(prefix="saturation-") as name,
        ClusterKit(Path(name), config=config, has_proxies=is_disturbed) as cluster,
    ):
        due = spread(seconds, restarts=restarts, breaks=breaks)
        found = measure(cluster, seconds, Disturber(cluster, due, sleep))
        is_calm = not any(count for what, count in found.items() if what not in may_be)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for broker in () if is_calm else cluster.brokers.values():
            shutil.copy(broker.log_path, options.output.parent / f"saturation-{broker.name}.log")
    document = {"machine": about, "minutes": options.minutes, "counts": found}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    rows = [[what, f"{count:,.0f}", "" if what in may_be else "0"] for what, count in found.items()]
    say(f"\n{table(['what', 'times', 'target'], rows)}\n\nwritten: {options.output}")
    return 0 if is_calm else 1


if __name__ == "__main__":
    sys.exit(main())
