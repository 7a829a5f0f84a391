"""Several brokers as real processes around one NATS server, with a hurtable network each.

    with ClusterKit(tmp_path, 3) as cluster:
        leader = cluster.leader_of("orders")
        cluster[leader].kill()                 # SIGKILL
        cluster.proxies[leader].hold()         # or its network stops
        cluster.await_leader("orders", other_than=leader)

Every broker reaches NATS by a proxy of its own. Calls return when what they name has happened, or
raise with the end of the logs.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import urllib.request
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, Self

import grpc

from liftbridge_client import PartitionName, connect_admin_sync, connect_sync
from liftbridge_proto import api_pb2
from liftbridge_testkit.load import api, read_log
from liftbridge_testkit.nats_proxy import NatsProxy
from liftbridge_testkit.processes import READY_SECONDS_MAX, Broker, NatsServer, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from liftbridge_testkit.checker import Stored

CALL_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02
_MOVED: Final = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
"""Codes of a broker that leads a partition no more, or cannot prove that it does."""

SECRET: Final = "0123456789abcdef0123456789abcdef"
"""Key of every cluster that names no other."""

BASE_CONFIG: Final[Mapping[str, object]] = {"data.reserve.bytes": 0, "data.free.min.bytes": 0}


class ClusterKit:
    """See the module.

    Attributes:
        nats: The NATS server.
        brokers: Brokers by name, `b1` first.
        proxies: Their ways to NATS, by name.
        secret_file: File with their keys.
    """

    def __init__(
        self,
        work_dir: Path,
        size: int = 3,
        *,
        config: Mapping[str, object] | None = None,
        has_seed: bool = False,
        has_proxies: bool = True,
        keys: Sequence[str] = (SECRET,),
        environment: Callable[[str], Mapping[str, str]] | None = None,
        broker_class: type[Broker] = Broker,
    ) -> None:
        """Start NATS and describe the brokers.

        Args:
            work_dir: Gets logs, configurations and data.
            size: Brokers.
            config: Settings of all of them.
            has_seed: Whether the first founds the cluster and the others join it, instead of all
                founding it together.
            has_proxies: Whether brokers reach NATS through proxies, which can be cut; they take a
                part of the processor that a cluster under full load would have for itself.
            keys: Lines of the file with the cluster's secret; none for a cluster without one.
            environment: Gives further variables of the broker of a name.
            broker_class: How a broker runs.
        """
        self._work_dir = work_dir
        self._config = {**BASE_CONFIG, **(config or {})}
        self.secret_file = work_dir / "cluster.keys"
        if keys:
            self.write_keys(*keys)
            self._config["clustering.secret.file"] = str(self.secret_file)
        self.nats = NatsServer(work_dir)
        self.nats.start()
        self.brokers: dict[str, Broker] = {}
        self.proxies: dict[str, NatsProxy] = {}
        self._has_proxies = has_proxies
        self._environment = environment
        self._broker_class = broker_class
        names = [f"b{number}" for number in range(1, size + 1)]
        listed = ("--raft-bootstrap-peers", ",".join(names))
        for name in names:
            joins = () if name != names[0] else ("--raft-bootstrap-seed",)
            self.add(name, bootstrap=joins if has_seed else listed)

    def write_keys(self, *lines: str) -> None:
        """Replace the secret of all brokers, as a mounted Secret is replaced."""
        fresh = self.secret_file.with_suffix(".new")
        fresh.write_text("\n".join(lines))
        fresh.rename(self.secret_file)

    def add(
        self,
        name: str,
        *,
        bootstrap: Sequence[str] = (),
        config: Mapping[str, object] | None = None,
    ) -> Broker:
        """Describe one more broker; without flags it joins, `config` is its own."""
        url = self.nats.url
        if self._has_proxies:
            proxy = self.proxies[name] = NatsProxy(self.nats.port)
            url = proxy.url
        broker = self.brokers[name] = self._broker_class(
            self._work_dir,
            nats_url=url,
            name=name,
            config={**self._config, **(config or {})},
            environment=self._environment(name) if self._environment else None,
            bootstrap=bootstrap or ("--set", "clustering.raft.bootstrap.wait=true"),
        )
        return broker

    def __getitem__(self, name: str) -> Broker:
        return self.brokers[name]

    # Life

    def start(self, *names: str) -> Self:
        """Start brokers, or all, at once and wait until they serve."""
        chosen = [self.brokers[name] for name in names or self.brokers]
        for broker in chosen:
            broker.spawn()
        for broker in chosen:
            broker.wait_until(broker.is_ready, "ready", seconds_max=READY_SECONDS_MAX)
        return self

    def stop(self, *names: str) -> list[int]:
        """SIGTERM to brokers, or to all, at once; their exit codes."""
        chosen = [self.brokers[name] for name in names or self.brokers]
        for broker in chosen:
            broker.terminate()
        return [broker.wait() for broker in chosen]

    def wipe(self, name: str) -> None:
        """Kill a broker and remove all of its data."""
        self.brokers[name].kill()
        shutil.rmtree(self.brokers[name].data_dir)

    def close(self) -> None:
        """Kill everything."""
        for broker in self.brokers.values():
            broker.kill()
        for proxy in self.proxies.values():
            proxy.close()
        self.nats.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    # State

    @property
    def living(self) -> Iterator[Broker]:
        """Brokers whose process exists."""
        return (broker for broker in self.brokers.values() if broker.is_alive())

    def metadata(self, at: str = "") -> api_pb2.FetchMetadataResponse:
        """Return metadata as one broker tells them, or the first that answers.

        Raises:
            ProcessError: No broker does.
        """
        for broker in [self.brokers[at]] if at else self.living:
            with contextlib.suppress(grpc.RpcError), broker.channel() as channel:
                response: api_pb2.FetchMetadataResponse = api(channel).FetchMetadata(
                    api_pb2.FetchMetadataRequest(), timeout=CALL_SECONDS
                )
                return response
        raise ProcessError("no broker answers")

    def partition(self, stream: str, number: int = 0, at: str = "") -> api_pb2.PartitionMetadata:
        """Return the metadata of a partition; empty when there is none."""
        for described in self.metadata(at).streamMetadata:
            if described.name == stream and number in described.partitions:
                found: api_pb2.PartitionMetadata = described.partitions[number]
                return found
        return api_pb2.PartitionMetadata()

    def leader_of(self, stream: str, number: int = 0) -> str:
        """Broker that leads a partition; empty for none."""
        leader: str = self.partition(stream, number).leader
        return leader

    def leader_and_follower(self, stream: str) -> tuple[str, str]:
        """Return the brokers of a partition with two replicas."""
        found = self.partition(stream)
        (follower,) = [replica for replica in found.replicas if replica != found.leader]
        return found.leader, follower

    def publish(self, stream: str, values: Sequence[bytes]) -> None:
        """Publish what all replicas in sync acknowledge."""
        servers = ",".join(one.address for one in self.brokers.values())
        with (
            connect_sync(servers) as lb,
            lb.streams.get(stream).publisher(ack_policy="all") as sender,
        ):
            for value in values:
                sender.publish(value)

    def elect_unclean(self, stream: str, broker: str) -> None:
        """Elect a replica as an operator does, once the cluster knows that no other can lead."""
        with connect_admin_sync(",".join(one.admin_address for one in self.living)) as admin:

            def is_elected() -> bool:
                (state,) = admin.partitions(stream)
                if state.unclean_epoch:
                    return not state.is_recovering
                if not state.leader:
                    name = PartitionName(stream, 0)
                    admin.elect_unclean(name, broker, partition_epoch=state.partition_epoch)
                return False

            self.until(is_elected, f"{broker} to lead")

    def await_leader(self, stream: str, *, other_than: str = "", number: int = 0) -> str:
        """Wait until a partition is led, and by another broker than one."""

        def is_led() -> bool:
            return self.leader_of(stream, number) not in ("", other_than)

        self.until(is_led, f"a leader of {stream}/{number} that is not {other_than!r}")
        return self.leader_of(stream, number)

    def read_log(self, stream: str) -> list[Stored]:
        """Read a stream of one partition at its leader; again if another broker leads by then."""
        deadline = monotonic() + READY_SECONDS_MAX
        while True:
            try:
                with self[self.await_leader(stream)].channel() as channel:
                    return read_log(channel, stream)
            except grpc.RpcError as error:
                if error.code() not in _MOVED or monotonic() > deadline:
                    raise
                sleep(_POLL_SECONDS)

    def metric(self, name: str, at: str) -> float:
        """Sum of the samples of a metric of one broker."""
        url = f"http://127.0.0.1:{self.brokers[at].metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=CALL_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        wanted = (f"liftbridge_{name}{{", f"liftbridge_{name} ")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted))

    def until(
        self, condition: Callable[[], bool], what: str, *, seconds_max: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until a condition holds; one that cannot be asked does not.

        Raises:
            ProcessError: It did not in time; holds the end of each log.
        """
        deadline = monotonic() + seconds_max
        while True:
            with contextlib.suppress(ProcessError, OSError):
                if condition():
                    return
            if monotonic() > deadline:
                logs = "\n".join(self._end_of(broker) for broker in self.brokers.values())
                raise ProcessError(f"not {what} after {seconds_max} s\n{logs}")
            sleep(_POLL_SECONDS)

    def await_voters(self, count: int) -> None:
        """Wait until so many brokers vote on the metadata, each with the disk that it has now.

        Before that the metadata group may bear no loss of another disk.

        Raises:
            ProcessError: It does not happen in time.
        """
        self.everywhere(
            lambda at: (
                self.metric("raft_voters", at) == count and not self.metric("raft_learners", at)
            ),
            f"{count} voters and no learner",
        )

    def everywhere(
        self, condition: Callable[[str], bool], what: str, *, seconds_max: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until a condition holds at every broker that lives; see `until`."""
        for broker in list(self.living):
            self.until(
                functools.partial(condition, broker.name),
                f"{what} at {broker.name}",
                seconds_max=seconds_max,
            )

    @staticmethod
    def _end_of(broker: Broker) -> str:
        tail = "\n".join(broker.log_text().splitlines()[-15:])
        return f"--- end of {broker.log_path}\n{tail}"
