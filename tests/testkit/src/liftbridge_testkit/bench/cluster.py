"""Three brokers beside three clustered nats-servers with JetStream, all replicas acknowledged.

Both keep three replicas of one stream and acknowledge what a majority (JetStream R3) or the in-sync
set (ack policy ALL) holds. CPU is summed over all servers, the nats-server of the brokers included.
"""

from __future__ import annotations

import contextlib
import shutil
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, Self

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.bench.loadgen import LoadError, python_generator
from liftbridge_testkit.bench.systems import Sample, measured
from liftbridge_testkit.cluster import SECRET
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker, NatsServer, ProcessError, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator
    from liftbridge_testkit.bench.systems import Sizes

SIZE: Final = 3
READY_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.05
FIRST_TIMES: Final = 10
WARM_UP_SHARE: Final = 10
"""A tenth of the messages is published before, to a stream of its own."""

DELIVER_RATE: Final = 1_000
"""Messages a second of the work that measures delivery to a subscriber."""


class ClusterJetStream:
    """Three nats-servers in one cluster, streams with file storage and three replicas."""

    name = "jetstream"

    def __init__(self, load: LoadGenerator, work_dir: Path, sizes: Sizes) -> None:
        """Describe the servers; entering starts them."""
        self._load = load
        self._dir = work_dir / "cluster-jetstream"
        self._sizes = sizes
        routes = [free_port() for _ in range(SIZE)]
        listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        self._servers = [
            NatsServer(
                self._dir,
                name=f"n{number}",
                jetstream=True,
                config=(
                    f"server_name: n{number}\n"
                    f"cluster {{ name: bench, listen: 127.0.0.1:{port}, routes: [{listed}] }}\n"
                ),
            )
            for number, port in enumerate(routes, 1)
        ]

    def __enter__(self) -> Self:
        for server in self._servers:
            server.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for server in self._servers:
            server.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    def works(self) -> Mapping[str, Callable[[], Sample]]:
        """Return the works it can do, in the order they must run."""
        return {
            "cluster-publish": lambda: self._measure("js-publish", "publish", self._sizes.count),
            "cluster-latency": lambda: self._measure("js-latency", "latency", self._sizes.singles),
            "cluster-deliver": lambda: self._measure(
                "js-deliver", "deliver", self._sizes.singles // 5, rate=DELIVER_RATE
            ),
        }

    def cpu_seconds(self) -> float:
        """Return the CPU time of all servers."""
        return sum(server.cpu_seconds() for server in self._servers)

    def _create(self, stream: str) -> None:
        """Create a stream; the servers need a moment to find their leader."""
        deadline = monotonic() + READY_SECONDS_MAX
        while True:
            try:
                self._load.run(
                    "js-create",
                    nats=self._servers[0].url,
                    stream=stream,
                    subject=stream,
                    replicas=SIZE,
                )
            except LoadError:
                if monotonic() > deadline:
                    raise
                sleep(_POLL_SECONDS)
            else:
                return

    def _measure(self, command: str, stream: str, count: int, **flags: float) -> Sample:
        found = []
        for name, number in ((f"{stream}-warm", count // WARM_UP_SHARE), (stream, count)):
            self._create(name)
            found.append(self._publish(command, name, number, flags))
        return found[-1]

    def _publish(self, command: str, stream: str, count: int, flags: Mapping[str, float]) -> Sample:
        return measured(
            lambda: self._load.run(
                command,
                nats=self._servers[0].url,
                stream=stream,
                subject=stream,
                count=count,
                size=self._sizes.value_bytes,
                window=self._sizes.window,
                **flags,
            ),
            self.cpu_seconds,
        )


class ClusterLiftbridge:
    """Three brokers around one nats-server, streams with three replicas, acks of all.

    Our own have a secret, as every cluster should.
    """

    def __init__(
        self, load: LoadGenerator, work_dir: Path, sizes: Sizes, *, binary: Path | None = None
    ) -> None:
        """Describe the servers, of another program if it is given; entering starts them."""
        self.name = "peer" if binary else "liftbridge"
        self._load = load
        self._dir = work_dir / f"cluster-{self.name}"
        self._sizes = sizes
        self._nats = NatsServer(self._dir)
        names = [f"b{number}" for number in range(1, SIZE + 1)]
        self._brokers = {
            name: Broker(
                self._dir,
                nats_url=self._nats.url,
                name=name,
                binary=binary,
                config=self._config(is_ours=binary is None),
                bootstrap=("--raft-bootstrap-peers", ",".join(names)),
            )
            for name in names
        }

    def _config(self, *, is_ours: bool) -> dict[str, object]:
        if is_ours:
            return {"clustering.secret.file": str(self._dir / "cluster.keys")}
        # The ports of their own that other programs take by themselves are one for all brokers.
        return {one: f"127.0.0.1:{free_port()}" for one in ("metrics.listen", "admin.listen")}

    def __enter__(self) -> Self:
        self._dir.mkdir(parents=True, exist_ok=True)
        (self._dir / "cluster.keys").write_text(SECRET)
        self._nats.start()
        try:
            for broker in self._brokers.values():
                broker.spawn()
            for broker in self._brokers.values():
                broker.wait_until(broker.is_ready, "ready", seconds_max=READY_SECONDS_MAX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for broker in self._brokers.values():
            broker.kill()
        self._nats.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    def works(self) -> Mapping[str, Callable[[], Sample]]:
        """Return the works it can do, in the order they must run."""
        count, singles = self._sizes.count, self._sizes.singles
        return {
            "cluster-publish": lambda: self._measure(
                "lb-publish", "publish", count, window=self._sizes.window
            ),
            "cluster-publish-four": lambda: self._measure(
                "lb-publish", "publish4", count, window=self._sizes.window, streams=4, conns=4
            ),
            "cluster-latency": lambda: self._measure("lb-latency", "latency", singles),
            "cluster-latency-unary": lambda: self._measure(
                "lb-latency", "unary", singles // 5, mode="unary"
            ),
            "cluster-deliver": lambda: self._measure(
                "lb-deliver", "deliver", singles // 5, rate=DELIVER_RATE
            ),
            "cluster-batch-publish": self._batches,
            "cluster-first": self._first,
        }

    def cpu_seconds(self) -> float:
        """Return the CPU time of the brokers and their nats-server."""
        return sum(server.cpu_seconds() for server in (self._nats, *self._brokers.values()))

    def _create(self, stream: str) -> Broker:
        """Create a stream; the broker that leads it."""
        with self._brokers["b1"].channel() as channel:
            request = api_pb2.CreateStreamRequest(
                name=stream, subject=stream, replicationFactor=SIZE
            )
            api(channel).CreateStream(request, timeout=READY_SECONDS_MAX)
            deadline = monotonic() + READY_SECONDS_MAX
            while monotonic() < deadline:
                answer = api(channel).FetchMetadata(
                    api_pb2.FetchMetadataRequest(), timeout=READY_SECONDS_MAX
                )
                for found in answer.streamMetadata:
                    if found.name == stream and found.partitions[0].leader:
                        return self._brokers[found.partitions[0].leader]
                sleep(_POLL_SECONDS)
        raise ProcessError(f"{stream} got no leader")

    def _measure(self, command: str, stream: str, count: int, **flags: float | str) -> Sample:
        found = []
        for name, number in ((f"{stream}-warm", count // WARM_UP_SHARE), (stream, count)):
            found.append(self._publish(command, name, number, flags))
        return found[-1]

    def _publish(
        self, command: str, stream: str, count: int, flags: Mapping[str, float | str]
    ) -> Sample:
        leader = self._create(stream)
        return measured(
            lambda: self._load.run(
                command,
                server=leader.address,
                nats=self._nats.url,
                stream=stream,
                subject=stream,
                count=count,
                size=self._sizes.value_bytes,
                policy="all",
                **flags,
            ),
            self.cpu_seconds,
        )

    def _batches(self) -> Sample:
        leader = self._create("batches")
        return measured(
            lambda: python_generator().run(
                "batch-publish",
                server=leader.address,
                stream="batches",
                count=self._sizes.count,
                size=self._sizes.value_bytes,
                policy="all",
            ),
            self.cpu_seconds,
        )

    def _first(self) -> Sample:
        """Return the time from the creation of a stream until it has acknowledged a publish."""
        found = []
        before = self.cpu_seconds()
        for number in range(FIRST_TIMES):
            stream = f"first{number}"
            with self._brokers["b1"].channel() as channel:
                request = api_pb2.CreateStreamRequest(
                    name=stream, subject=stream, replicationFactor=SIZE
                )
                api(channel).CreateStream(request, timeout=READY_SECONDS_MAX)
                found.append(self._until_acked(channel, stream))
        used = self.cpu_seconds() - before
        ordered = sorted(found)
        details = {"p50_us": ordered[len(ordered) // 2] * 1e6, "p99_us": ordered[-1] * 1e6}
        return Sample(FIRST_TIMES / sum(found), used * 1e6 / FIRST_TIMES, details)

    @staticmethod
    def _until_acked(channel: grpc.Channel, stream: str) -> float:
        """Return seconds until a publish to a broker that need not lead is acknowledged."""
        began = monotonic()
        while monotonic() - began < READY_SECONDS_MAX:
            with contextlib.suppress(grpc.RpcError):
                api(channel).Publish(
                    api_pb2.PublishRequest(
                        stream=stream, value=b"first", ackPolicy=api_pb2.ALL, expectedOffset=-1
                    ),
                    timeout=READY_SECONDS_MAX,
                )
                return monotonic() - began
        raise ProcessError(f"{stream} took no publish")
