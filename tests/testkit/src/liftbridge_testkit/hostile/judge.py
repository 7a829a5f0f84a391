"""Measures the effect of attacks on well-behaved clients of three brokers."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.hostile.attacks import LARGE_STREAM
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.progress import say
from liftbridge_testkit.request_lists import STREAM
from liftbridge_testkit.saturation import ALLOWED, alarms, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftbridge_proto import api_pb2_grpc
    from liftbridge_testkit.cluster import ClusterKit

TURN_SECONDS: Final = 0.05
"""No turn of the loop may be longer, whatever clients do."""

MEMORY_BYTES_MAX: Final = 900 << 20
"""Bytes by which the memory of a broker may grow: both budgets, with the overhead of Python."""

MANY_TURNS: Final = 999
"""Told of a broker that does not answer any more."""

SLOWEST_MS: Final = 5_000
"""A call of a well-behaved client may take no longer, with the connection for it."""

PAUSE_SECONDS: Final = 0.02
VISIT_MESSAGES: Final = 10
"""Published on one connection."""

_OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
CALL_SECONDS: Final = 30.0
STREAM_COUNT: Final = 100
LARGE_BYTES: Final = 900_000
LARGE_COUNT: Final = 20


class Felt(NamedTuple):
    """Effect of one attack.

    Attributes:
        name: The attack.
        long_turns: Turns of the attacked broker above the bound.
        grown_bytes: The most memory it took, above what it had.
        acked: Messages of well-behaved clients that were acknowledged.
        refused: Errors that well-behaved clients received instead.
        p99_ms: Slowest hundredth of them.
        slowest_ms: The slowest, one that was still waited for included.
        alarms: Elections and fences, and in-sync sets of the others' streams below their minimum.
            A flood of a stream may well outrun its own replicas (L5).
    """

    name: str
    long_turns: int
    grown_bytes: int
    acked: int
    refused: Sequence[str]
    p99_ms: int
    slowest_ms: int
    alarms: str


class Visitor(threading.Thread):
    """A well-behaved client that publishes one message after the other, and often reconnects."""

    def __init__(self, address: str, stream: str) -> None:
        """Publish to a stream at its leader, from `start` on."""
        super().__init__(daemon=True)
        self._address, self.stream = address, stream
        self._is_over = threading.Event()
        self._times: list[float] = []
        self._began = 0.0
        self._refused: list[str] = []

    def run(self) -> None:
        """Publish until `end`."""
        while not self._is_over.is_set():
            with grpc.insecure_channel(self._address, _OWN_CONNECTION) as channel:
                self._publish(api(channel))

    def _publish(self, stub: api_pb2_grpc.APIStub) -> None:
        """Publish some messages on one connection."""
        request = api_pb2.PublishRequest(
            stream=self.stream, value=b"v" * 200, ackPolicy=api_pb2.ALL, expectedOffset=-1
        )
        for _ in range(VISIT_MESSAGES):
            if not self._is_over.wait(PAUSE_SECONDS):
                self._began = began = monotonic()
                try:
                    stub.Publish(request, timeout=CALL_SECONDS)
                except grpc.RpcError as error:
                    self._refused.append(f"{error.code().name}: {error.details()}")
                self._began = 0.0
                self._times.append(monotonic() - began)

    def waits(self) -> float:
        """Return the time that the present call has taken, 0 without one."""
        began = self._began
        return monotonic() - began if began else 0.0

    def take(self) -> tuple[list[float], list[str]]:
        """Return times and refusals since the last call."""
        times, self._times = self._times, []
        refused, self._refused = self._refused, []
        return times, refused

    def end(self) -> None:
        """Stop, and wait for it."""
        self._is_over.set()
        self.join()


def prepare(cluster: ClusterKit) -> dict[str, str]:
    """Create what attacks are about; the loaded stream of each broker."""
    with cluster["b1"].channel() as channel:
        stub = api(channel)
        for number in range(STREAM_COUNT):
            name = f"{STREAM}{number or ''}"
            stub.CreateStream(
                api_pb2.CreateStreamRequest(name=name, subject=name, partitions=3),
                timeout=CALL_SECONDS,
            )
        stub.CreateStream(
            api_pb2.CreateStreamRequest(
                name=LARGE_STREAM, subject=LARGE_STREAM, replicationFactor=3
            ),
            timeout=CALL_SECONDS,
        )
    leader = cluster.await_leader(LARGE_STREAM)
    with cluster[leader].channel() as channel:
        for _ in range(LARGE_COUNT):
            api(channel).Publish(
                api_pb2.PublishRequest(
                    stream=LARGE_STREAM,
                    value=bytes(LARGE_BYTES),
                    ackPolicy=api_pb2.LEADER,
                    expectedOffset=-1,
                ),
                timeout=CALL_SECONDS,
            )
    return place(cluster)


def judge(
    cluster: ClusterKit, names: Sequence[str], *, seconds: float, bound: float = TURN_SECONDS
) -> list[Felt]:
    """Attack the broker that leads the stream of large records, while others use the cluster."""
    led = prepare(cluster)
    target = cluster[cluster.leader_of(LARGE_STREAM)]
    visitors = [Visitor(cluster[leader].address, stream) for leader, stream in led.items()]
    ways = (target.address, cluster.nats.url.removeprefix("nats://"))
    command = (sys.executable, "-m", "liftbridge_testkit.hostile.driver", *ways)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as driver:
        try:
            for one in visitors:
                one.start()
            found = []
            for name in ("", *names):
                felt = _attack(cluster, target.name, driver, visitors, name, seconds, bound)
                say(_line(felt))
                if name:
                    found.append(felt)
        finally:
            for one in visitors:
                one.end()
            driver.kill()
    return found


def _attack(
    cluster: ClusterKit,
    target: str,
    driver: subprocess.Popen[str],
    visitors: Sequence[Visitor],
    name: str,
    seconds: float,
    bound: float,
) -> Felt:
    """Return one attack, or the quiet before the first, and what was felt."""
    pid = cluster[target].pid
    _forget_peak(pid)
    streams = {visitor.stream for visitor in visitors}
    memory, before = _peak(pid), alarms(cluster, streams)
    turns = _long_turns(cluster, target, bound)
    for visitor in visitors:
        visitor.take()
    if name:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(f"{name} {seconds}\n")
        if driver.stdout.readline() != "over\n":
            raise ProcessError(f"the attack {name!r} could not be made")
    else:
        sleep(seconds)
    waits = max(visitor.waits() for visitor in visitors)
    taken = [visitor.take() for visitor in visitors]
    times = sorted(time for found, _ in taken for time in found)
    after = alarms(cluster, streams)
    try:
        long_turns = _long_turns(cluster, target, bound) - turns
    except OSError:
        long_turns = MANY_TURNS
    return Felt(
        name or "(quiet)",
        long_turns,
        _peak(pid) - memory,
        len(times),
        [text for _, refused in taken for text in refused],
        int(times[len(times) * 99 // 100] * 1_000) if times else -1,
        int(max([waits, *times]) * 1_000),
        ", ".join(
            f"{kind} {count}" for kind, count in (after - before).items() if kind not in ALLOWED
        ),
    )


def faults(felt: Felt) -> list[str]:
    """Return the violations."""
    found = []
    if felt.long_turns:
        found.append(f"{felt.long_turns} long turns")
    if felt.grown_bytes > MEMORY_BYTES_MAX:
        found.append(f"{felt.grown_bytes >> 20} MiB more memory")
    if felt.refused:
        found.append(f"others were refused: {felt.refused[0]}")
    if felt.slowest_ms > SLOWEST_MS:
        found.append(f"somebody waited for {felt.slowest_ms} ms")
    if not felt.acked:
        found.append("nobody else was served")
    if felt.alarms:
        found.append(felt.alarms)
    return found


def _line(felt: Felt) -> str:
    bad = "; ".join(faults(felt))
    return (
        f"{felt.name:50} p99 {felt.p99_ms:6} ms  slowest {felt.slowest_ms:6} ms  "
        f"{felt.acked:5} acked  {felt.grown_bytes >> 20:5} MiB  {bad}"
    )


def _long_turns(cluster: ClusterKit, at: str, bound: float) -> int:
    """Return the turns of a broker above a bound that is one of its buckets."""
    url = f"http://127.0.0.1:{cluster[at].metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=CALL_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if "liftbridge_loop_turn_seconds_" in line)
    name = "liftbridge_loop_turn_seconds"
    below = float(counts[f'{name}_bucket{{le="{bound}"}}'])
    return int(float(counts[f"{name}_count"]) - below)


def _forget_peak(pid: int) -> None:
    _path(pid, "clear_refs").write_text("5")


def _peak(pid: int) -> int:
    """Most resident memory since the peak was forgotten."""
    lines = _path(pid, "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _path(pid: int, name: str) -> Path:
    return Path(f"/proc/{pid}/{name}")
