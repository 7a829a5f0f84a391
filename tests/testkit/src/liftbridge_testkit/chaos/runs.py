"""One run: a cluster, clients, faults one after the other, calm, and the check of everything.

Promises that are checked:

- what `liftbridge_testkit.checker` lists: acknowledged messages are stored at their offset, refused
  ones are not, nothing is changed, doubled or out of order, readers saw what is stored;
- after the last fault every partition takes writes again in time, by every client;
- the replicas of a partition hold the same bytes;
- no broker ended by itself, or wrote of an error that does not belong to what was done (`logs.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_broker.errors import CorruptionError
from liftbridge_proto import api_pb2
from liftbridge_testkit.chaos.clients import PlainPublisher
from liftbridge_testkit.chaos.faults import FAULTS, Storm, await_in_sync
from liftbridge_testkit.chaos.logs import Diary, Judged
from liftbridge_testkit.chaos.replicas import check_replicas, read_replicas, stored
from liftbridge_testkit.checker import History, Outcome, Violation, check
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.steady import OwnClientPublisher, SteadyReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from liftbridge_testkit.steady import SteadyWorker

REPLICAS: Final = 3
STREAMS: Final = ("orders", "events")
CALM_SECONDS_MAX: Final = 40.0
QUIET_CHANCE: Final = 0.3
ERRORS_MAX: Final = 20
_TRUNCATED: Final = re.compile(r"log_truncated.*removed_messages=[1-9]")


@dataclass(frozen=True)
class RunOptions:
    """Configuration of a run.

    Attributes:
        seed: Decides faults and times; real processes decide the rest.
        size: Brokers.
        seconds: Time under load and faults.
        acks_min: Continues for longer than `seconds` until so many are acknowledged.
        faults_min: And until so many faults were done.
        faults: Names of the faults to choose from.
    """

    seed: int
    size: int = 3
    seconds: float = 20.0
    acks_min: int = 20_000
    faults_min: int = 3
    faults: Sequence[str] = tuple(FAULTS)

    @property
    def seconds_max(self) -> float:
        """Return the time limit of a run; missing acks or faults are then a violation."""
        return self.seconds * 4 + 20.0


@dataclass
class RunResult:
    """Outcome of a run.

    Attributes:
        options: Its options.
        faults: Faults as done: name and target.
        acked: Messages acknowledged.
        unknown: Messages with unknown outcome.
        refused: Messages refused with certainty.
        stored: Records stored.
        elections: Changes of partition leaders, as the brokers told.
        truncations: Non-empty truncations, as the brokers told.
        pause_seconds: Longest time that any publisher waited for an ack.
        seconds: Time the run took as a whole.
        errors: Errors that clients received instead of acks, by text, the most frequent ones.
        logged_errors: Errors in the logs of brokers that belong to what was done, by event.
        violations: Broken promises.
    """

    options: RunOptions
    faults: list[tuple[str, str]] = field(default_factory=list)
    acked: int = 0
    unknown: int = 0
    refused: int = 0
    stored: int = 0
    elections: int = 0
    truncations: int = 0
    pause_seconds: float = 0.0
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    logged_errors: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


class Run:
    """See the module; `do` does it once."""

    def __init__(
        self, work_dir: Path, options: RunOptions, *, tell: Callable[[str], object]
    ) -> None:
        """Start nothing yet.

        Args:
            work_dir: Gets logs and data.
            options: Options of the run.
            tell: Receives progress, a line at a time.
        """
        self._work_dir = work_dir
        self._options = options
        self._tell = tell
        self._rng = Random(options.seed)
        self._diary = Diary()
        self._histories = {stream: History() for stream in STREAMS}
        self._publishers: list[SteadyWorker] = []
        self._readers: list[SteadyWorker] = []
        self._leaders: dict[str, str] = {}
        self.result = RunResult(options)

    def do(self) -> RunResult:
        """Do the run."""
        began = monotonic()
        result = self.result
        cluster = ClusterKit(self._work_dir, self._options.size)
        try:
            cluster.start()
            self._create(cluster)
            self._start_clients(cluster)
            self._storm(cluster)
            self._calm(cluster)
            self._stop_clients()
            self._end(cluster)
            self._check_disks(cluster)
        except (ProcessError, CorruptionError, AssertionError, OSError) as error:
            result.violations.append(Violation("run", f"{type(error).__name__}: {error}"))
        finally:
            for worker in (*self._publishers, *self._readers):
                worker.abandon()
            cluster.close()
        self._count(cluster)
        result.seconds = monotonic() - began
        return result

    # Parts, in order.

    def _create(self, cluster: ClusterKit) -> None:
        for stream in STREAMS:
            # Before the faults too a slow machine may be without a metadata leader for a moment.
            cluster.until(partial(is_created, cluster, stream), f"{stream} created")
            cluster.await_leader(stream)

    def _start_clients(self, cluster: ClusterKit) -> None:
        addresses = [broker.address for broker in cluster.brokers.values()]
        orders, events = STREAMS
        for stream, batch_count, idempotent, pause_seconds in (
            (orders, 50, False, 0.02),
            (orders, 50, True, 0.02),
            (orders, 1, False, 0.0),
            (events, 50, True, 0.02),
            (events, 1, True, 0.0),
        ):
            self._publishers.append(
                OwnClientPublisher(
                    self._histories[stream].new_publisher(),
                    addresses,
                    stream,
                    batch_count=batch_count,
                    idempotent=idempotent,
                    pause_seconds=pause_seconds,
                )
            )
        self._publishers.append(
            PlainPublisher(self._histories[events], lambda: leader_address(cluster, events), events)
        )
        for stream, reads_replica in ((orders, False), (orders, True), (events, False)):
            history = self._histories[stream]
            self._readers.append(
                SteadyReader(history, addresses, stream, reads_replica=reads_replica)
            )
        for worker in (*self._publishers, *self._readers):
            worker.start()
        for publisher in self._publishers:
            publisher.wait_for(1)

    def _storm(self, cluster: ClusterKit) -> None:
        options, rng, storm = self._options, self._rng, self._storm_over(cluster)
        began = monotonic()
        while self._is_short(monotonic() - began):
            self._check_alive(cluster)
            storm.note_rest()
            name = rng.choice(list(options.faults))
            met = FAULTS[name](storm)
            self.result.faults.append((name, met))
            self._tell(f"  {monotonic() - began:5.1f} s {name} {met}: {self._acked():,} acks")
            if rng.random() > QUIET_CHANCE:
                storm.last(0.0, 2.0)

    def _storm_over(self, cluster: ClusterKit) -> Storm:
        return Storm(cluster, STREAMS, self._rng, Event().wait, self._diary)

    def _is_short(self, elapsed: float) -> bool:
        options = self._options
        if elapsed < options.seconds:
            return True
        is_done = (
            self._acked() >= options.acks_min and len(self.result.faults) >= options.faults_min
        )
        return not is_done and elapsed < options.seconds_max

    def _acked(self) -> int:
        return sum(publisher.done_count for publisher in self._publishers)

    def _check_alive(self, cluster: ClusterKit) -> None:
        for name, broker in cluster.brokers.items():
            if not broker.is_alive():
                raise ProcessError(f"{name} ended by itself: {broker.log_text()[-2_000:]}")

    def _calm(self, cluster: ClusterKit) -> None:
        """Everything is whole: all replicas get in sync, and every client gets acks."""
        self._check_alive(cluster)
        began = monotonic()
        await_in_sync(self._storm_over(cluster))
        for publisher in self._publishers:
            publisher.wait_for(publisher.done_count + 1, CALM_SECONDS_MAX)
        self._tell(f"  calm after {monotonic() - began:.1f} s")

    def _stop_clients(self) -> None:
        for publisher in self._publishers:
            publisher.stop()
            pause = publisher.longest_pause_seconds
            self.result.pause_seconds = max(self.result.pause_seconds, pause)
        for reader in self._readers:
            reader.stop()

    def _end(self, cluster: ClusterKit) -> None:
        """Get everything onto every replica, then stop all, or kill all."""
        await_in_sync(self._storm_over(cluster))
        for stream in STREAMS:
            cluster.until(partial(has_all, cluster, stream), f"{stream} committed")
        if self._rng.random() < 0.5:
            codes = cluster.stop()
            if any(codes):
                text = f"brokers ended with {codes} after SIGTERM"
                self.result.violations.append(Violation("stop", text))
        else:
            for broker in cluster.brokers.values():
                broker.kill()

    def _check_disks(self, cluster: ClusterKit) -> None:
        directories = {name: broker.data_dir for name, broker in cluster.brokers.items()}
        for stream, history in self._histories.items():
            replicas = read_replicas(directories, stream)
            self.result.violations += check_replicas(replicas, REPLICAS)
            if not replicas:
                continue
            longest = max(replicas.values(), key=len)
            self.result.stored += len(longest)
            self.result.violations += check(history, stored(longest))

    def _count(self, cluster: ClusterKit) -> None:
        result, options = self.result, self._options
        histories = self._histories.values()
        workers = (*self._publishers, *self._readers)
        errors = sum((worker.errors for worker in workers), Counter[str]())
        result.errors = dict(errors.most_common(ERRORS_MAX))
        result.acked = sum(history.count(Outcome.ACKED) for history in histories)
        result.unknown = sum(history.count(Outcome.UNKNOWN) for history in histories)
        result.refused = sum(history.count(Outcome.REFUSED) for history in histories)
        judged = Judged()
        for name, broker in cluster.brokers.items():
            text = broker.log_text()
            result.truncations += len(_TRUNCATED.findall(text))
            judged.add(name, text, self._diary)
        result.elections = judged.events["partition_leader_elected"]
        result.logged_errors = dict(judged.expected_errors)
        result.violations += judged.violations
        if result.acked < options.acks_min:
            result.violations.append(Violation("load", f"only {result.acked:,} acks"))
        if len(result.faults) < options.faults_min:
            result.violations.append(Violation("load", f"only {len(result.faults)} faults"))


def is_created(cluster: ClusterKit, stream: str) -> bool:
    """Ask for a stream; whether it exists now."""
    request = api_pb2.CreateStreamRequest(name=stream, subject=stream, replicationFactor=REPLICAS)
    with cluster["b1"].channel() as channel:
        try:
            api(channel).CreateStream(request, timeout=10.0)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.ALREADY_EXISTS)
    return True


def leader_address(cluster: ClusterKit, stream: str) -> str:
    """Address of the leader of a stream by the first broker that answers; empty for none."""
    try:
        leader = cluster.leader_of(stream)
    except ProcessError:
        return ""
    return cluster[leader].address if leader else ""


def has_all(cluster: ClusterKit, stream: str) -> bool:
    """Return whether the leader of a stream knows everything to be on all replicas."""
    leader = cluster.leader_of(stream)
    partition = cluster.partition(stream, at=leader)
    return bool(leader) and partition.highWatermark == partition.newestOffset
