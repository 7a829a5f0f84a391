"""Measures how long a partition of a real cluster accepts no writes after the loss of a broker.

Three brokers, factor 3, default settings, one publisher with acks of all that looks for the leader
as fast as it can. `python -m liftbridge_testkit.failover --times 30` does each of these so often:

- `leader`: SIGKILL of the partition leader, which does not lead the metadata;
- `both`: SIGKILL of the partition leader, which leads the metadata too;
- `stop`: SIGTERM of the partition leader;
- `follower`: SIGKILL of a follower;
- `hang`: SIGSTOP of the partition leader;
- `cut`: the partition leader is cut off from NATS; its connections stay open.

Measured is the longest time without an ack from the moment of the fault on: the publisher keeps a
few messages in flight, so an ack normally comes every few milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import Worker, api
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftbridge_testkit.processes import Broker

WINDOW: Final = 16
WARM_UP_COUNT: Final = 1_000
CREATE_SECONDS: Final = 10.0
ATTEMPTS_MAX: Final = 20
CALL_SECONDS: Final = 0.25
AFTER_SECONDS_MAX: Final = 30.0
PATIENCE_SECONDS: Final = 0.3
"""Time by which an ack may be overdue before the publisher looks for another leader."""

APART: Final = ("leader", "both", "follower")
"""Kinds that ask whether the partition leader leads the metadata too."""

WATCH_SECONDS: Final = 4.0
"""Time after a fault in which the longest stall is measured."""


def _kill(cluster: ClusterKit, name: str) -> None:
    cluster[name].kill()


def _restart(cluster: ClusterKit, name: str) -> None:
    cluster.start(name)


def _stop(cluster: ClusterKit, name: str) -> None:
    cluster[name].terminate()


def _restart_stopped(cluster: ClusterKit, name: str) -> None:
    if cluster[name].wait() != 0:
        raise ProcessError(f"{name} did not stop cleanly")
    cluster.start(name)


class Kind(NamedTuple):
    """A way to lose a broker, and what is asked of it.

    Attributes:
        title: Title for the reader.
        p99_seconds_max: Bound of the 99th percentile.
        lose: Loses a broker.
        mend: Makes the cluster whole again.
    """

    title: str
    p99_seconds_max: float
    lose: Callable[[ClusterKit, str], None] = _kill
    mend: Callable[[ClusterKit, str], None] = _restart


KINDS: Final = {
    "leader": Kind("kill -9 of the leader", 0.25),
    "both": Kind("kill -9 of the leader, metadata leader too", 0.25),
    "stop": Kind("controlled stop of the leader", 0.05, _stop, _restart_stopped),
    "follower": Kind("kill -9 of a follower", 0.12),
    "hang": Kind(
        "SIGSTOP of the leader",
        1.5,
        lambda cluster, name: cluster[name].pause(),
        lambda cluster, name: cluster[name].resume(),
    ),
    "cut": Kind(
        "the leader is cut off from NATS",
        1.5,
        lambda cluster, name: cluster.proxies[name].hold(),
        lambda cluster, name: cluster.proxies[name].heal(),
    ),
}


class Publisher(Worker):
    """Publishes to whoever leads and notes when acks came.

    Attributes:
        acks: Times of acks; only ever appended to.
    """

    def __init__(self, cluster: ClusterKit, stream: str) -> None:
        super().__init__(f"publisher-{stream}")
        self.acks: list[float] = []
        self._cluster = cluster
        self._stream = stream
        self._failed: Broker | None = None

    def run(self) -> None:
        """Call after call until stopped."""
        while not self._stopping.is_set():
            if leader := self._leader():
                with contextlib.suppress(grpc.RpcError):
                    self._publish(leader)
                self._failed = leader

    def _leader(self) -> Broker | None:
        """Return the leader according to the first broker that answers soon.

        The leader that failed last is asked last: one that is cut off names itself.
        """
        for broker in sorted(self._cluster.living, key=lambda one: one is self._failed):
            with contextlib.suppress(grpc.RpcError), broker.channel() as channel:
                answer = api(channel).FetchMetadata(
                    api_pb2.FetchMetadataRequest(), timeout=CALL_SECONDS
                )
                for stream in answer.streamMetadata:
                    name = stream.partitions[0].leader if stream.name == self._stream else ""
                    if name and self._cluster[name].is_alive():
                        return self._cluster[name]
        self._stopping.wait(0.02)
        return None

    def _publish(self, leader: Broker) -> None:
        window = threading.Semaphore(WINDOW)
        is_over = threading.Event()

        def requests() -> Iterator[api_pb2.PublishRequest]:
            while not self._stopping.is_set() and not is_over.is_set():
                if window.acquire(timeout=0.05):
                    yield api_pb2.PublishRequest(
                        stream=self._stream,
                        value=b"v" * 256,
                        ackPolicy=api_pb2.ALL,
                        expectedOffset=-1,
                    )

        def watch() -> None:
            # gRPC does not ask for a request while the former one cannot be sent.
            while not is_over.wait(0.01):
                if monotonic() - heard > PATIENCE_SECONDS:
                    answers.cancel()

        heard = monotonic()
        with leader.channel() as channel:
            answers = api(channel).PublishAsync(requests())
            threading.Thread(target=watch, daemon=True).start()
            try:
                for answer in answers:
                    heard = monotonic()
                    window.release()
                    if answer.HasField("asyncError"):
                        answers.cancel()
                        return
                    self.acks.append(heard)
                    self._succeeded()
            finally:
                is_over.set()

    def stall_after(self, moment: float, seconds: float = WATCH_SECONDS) -> float:
        """Return the longest time without an ack within some seconds from a moment on."""
        deadline = monotonic() + AFTER_SECONDS_MAX
        end = moment + seconds
        while not self.acks or self.acks[-1] < end:
            if monotonic() > deadline:
                raise ProcessError(f"no ack {AFTER_SECONDS_MAX} s after the fault")
            self._stopping.wait(0.05)
        acks = self.acks
        first = len(acks) - 1
        while first > 0 and acks[first] > moment:
            first -= 1
        # The ack before the fault begins the stall as far as clients see it.
        times = [max(acks[first], moment), *acks[first + 1 :]]
        gaps = pairwise(times)
        return max((later - one for one, later in gaps if one < end), default=0.0)


def measure(cluster: ClusterKit, kind: str, number: int) -> float:
    """Lose a broker once, measure, and make the cluster whole again; seconds.

    Each time has a stream of its own: leaders that are lost again and again are replaced by reports
    of followers ever more rarely, which is not what is measured here.
    """
    stream, victim = _place(cluster, kind, number)
    publisher = Publisher(cluster, stream)
    publisher.start()
    publisher.wait_for(WARM_UP_COUNT)
    moment = monotonic()
    KINDS[kind].lose(cluster, victim)
    stall = publisher.stall_after(moment)
    publisher.stop()
    KINDS[kind].mend(cluster, victim)
    with cluster[victim].channel() as channel:
        api(channel).DeleteStream(api_pb2.DeleteStreamRequest(name=stream), timeout=CREATE_SECONDS)
    return stall


def _place(cluster: ClusterKit, kind: str, number: int) -> tuple[str, str]:
    """Create a stream with the intended leader; return its name, and the broker to lose."""
    for attempt in range(ATTEMPTS_MAX):
        stream = f"{kind}-{number}-{attempt}"
        cluster.until(lambda: len(cluster.metadata().brokers) == len(cluster.brokers), "all")
        controller = metadata_leader(cluster)
        with cluster[controller].channel() as channel:
            request = api_pb2.CreateStreamRequest(name=stream, subject=stream, replicationFactor=3)
            api(channel).CreateStream(request, timeout=CREATE_SECONDS)
            leader = cluster.await_leader(stream)
            if kind not in APART or (leader == controller) == (kind == "both"):
                followers = [n for n in cluster.brokers if n not in (leader, controller)]
                return stream, followers[0] if kind == "follower" else leader
        # It stays, so that the next one is led by another broker.
    raise ProcessError(f"no stream was led as {kind} needs it")


def metadata_leader(cluster: ClusterKit) -> str:
    """Broker that leads the metadata."""
    found = ""

    def is_known() -> bool:
        nonlocal found
        leaders = [
            name
            for name, broker in cluster.brokers.items()
            if broker.is_alive() and cluster.metric("raft_leader", name)
        ]
        found = leaders[0] if len(leaders) == 1 else ""
        return bool(found)

    cluster.until(is_known, "one metadata leader")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, ceil(share * len(ordered)) - 1))]


def report(found: dict[str, list[float]]) -> str:
    """A Markdown table of what was measured."""
    lines = []
    for name, values in found.items():
        kind = KINDS[name]
        p50, p99 = median(values), percentile(values, 0.99)
        asked = f"p99 < {kind.p99_seconds_max:g} s"
        is_met = p99 < kind.p99_seconds_max
        figures = [f"{value:.3f} s" for value in (min(values), p50, p99, max(values))]
        met = "yes" if is_met else "NO"
        lines.append([kind.title, str(len(values)), *figures, asked, met])
    header = ["lost", "times", "min", "p50", "p99", "max", "target", "met"]
    return table(header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and tell; 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="failover", description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=30, help="of each kind (30)")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/failover.json"))
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {}
    about = machine(0.0)
    for kind in options.only:
        with (
            tempfile.TemporaryDirectory(prefix="failover-") as name,
            ClusterKit(Path(name), has_proxies=kind == "cut") as cluster,
        ):
            for number in range(options.times):
                seconds = measure(cluster, kind, number)
                found.setdefault(kind, []).append(seconds)
                say(f"{kind} {number + 1} of {options.times}: {seconds:.3f} s")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "seconds": found}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    say(f"\n{report(found)}\n\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
