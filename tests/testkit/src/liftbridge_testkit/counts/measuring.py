"""Counts what three real brokers do for one record, and for one batch, with acks of all.

One record, or one batch, is published at a time; the next one leaves when no count moves any more.
A broker also probes, reports and checks by time. So each figure is the lower decile over all
rounds: what a record costs when nothing else happens beside it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_client import connect_sync
from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.counts.watched import CALLBACKS, CALLS, NAMES, mapped
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ROUNDS: Final = 60
WARM_UP_ROUNDS: Final = 10
STREAM: Final = "counts"
VALUE: Final = b"v" * 256
BATCH_RECORDS: Final = 1_000
REQUEST: Final = api_pb2.PublishRequest(
    stream=STREAM, value=VALUE, ackPolicy=api_pb2.ALL, expectedOffset=-1
)

CALL_SECONDS: Final = 5.0
"""Without a deadline a unary call does not wait for the ack."""

LOOP: Final = "record, unary calls without a pause"
UNARY: Final = "record, unary call"
STREAMED: Final = "record, PublishAsync"
BATCH: Final = f"batch of {BATCH_RECORDS:,} records"

QUIET_SECONDS: Final = 0.01
"""Time without a frame between brokers after which a round is over.

A leader sends a high watermark that no records go with after 5 ms.
"""

ROUND_SECONDS_MAX: Final = 5.0

FRAMES: Final = ("frames sent", "frames received")
SLEEPS: Final = "sleeps"
SYSTEM_CALLS: Final = "system calls"
TITLES: Final = (*NAMES[:-2], SYSTEM_CALLS, SLEEPS, CALLBACKS, CALLS)
"""What is counted: calls, system calls that read or write, and times that the loop slept."""

Counts = dict[str, int]


class CountingBroker(Broker):
    """A broker that counts its work."""

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start, with the file of the counts."""
        _, *arguments = super().command()
        module = "liftbridge_testkit.counts.process"
        return [sys.executable, "-m", module, str(self.counts_file), *arguments]

    @property
    def counts_file(self) -> Path:
        """File of the counts."""
        return self.work_dir / f"{self.name}.counts"


class _Reader:
    """Reads the counts of a broker."""

    def __init__(self, broker: CountingBroker) -> None:
        self._counts = mapped(broker.counts_file)
        self._proc = Path("/proc") / str(broker.pid)

    @property
    def frames(self) -> tuple[int, ...]:
        """Frames that came from or left to other brokers."""
        return tuple(self._counts[NAMES.index(title)] for title in FRAMES)

    def read(self) -> Counts:
        """Return all counts since the start of the broker."""
        found = dict(zip(NAMES, self._counts, strict=True))
        io = _numbers(self._proc / "io")
        found[SYSTEM_CALLS] = io["syscr"] + io["syscw"]
        task = self._proc / "task" / self._proc.name / "status"
        found[SLEEPS] = _numbers(task)["voluntary_ctxt_switches"]
        return found


class Work(NamedTuple):
    """Counts of one round by kind of broker: the leader, and the busier one of the followers."""

    leader: Mapping[str, float]
    follower: Mapping[str, float]


def measure(work_dir: Path, *, rounds: int = ROUNDS, loop_count: int = 0) -> dict[str, Work]:
    """Return the work for a record as a unary call, in PublishAsync, and for a batch.

    Args:
        work_dir: Gets logs, configurations and data.
        rounds: Rounds of each.
        loop_count: Records that are published without a pause, whose mean is added.

    Raises:
        ProcessError: A watched function was never called: it has another name now.
    """
    batch = [VALUE] * BATCH_RECORDS
    with (
        ClusterKit(work_dir, has_proxies=False, broker_class=CountingBroker) as cluster,
        connect_sync(cluster["b1"].address) as lb,
        lb.streams.create(STREAM, replication=3).publisher(ack_policy="all") as publisher,
    ):
        leader = cluster.await_leader(STREAM)
        readers = _readers(cluster, leader)
        with cluster[leader].channel() as channel:
            call = api(channel).Publish
            publish = partial(call, REQUEST, timeout=CALL_SECONDS)
            found = {
                UNARY: _rounds(publish, readers, rounds),
                STREAMED: _rounds(lambda: publisher.publish(VALUE), readers, rounds),
                BATCH: _rounds(lambda: publisher.publish_batch(batch), readers, rounds),
            }
            if loop_count:
                found[LOOP] = _loop(publish, readers, loop_count)
        _check(readers)
    return found


def _readers(cluster: ClusterKit, leader: str) -> list[_Reader]:
    """Return the readers of all brokers, the leader's first."""
    followers = [name for name in cluster.brokers if name != leader]
    brokers = [cluster[name] for name in (leader, *followers)]
    return [_Reader(broker) for broker in brokers if isinstance(broker, CountingBroker)]


def _rounds(publish: Callable[[], object], readers: Sequence[_Reader], count: int) -> Work:
    found: list[list[Counts]] = [[] for _ in readers]
    before = _settled(readers)
    for number in range(WARM_UP_ROUNDS + count):
        publish()
        after = _settled(readers)
        if number >= WARM_UP_ROUNDS:
            for rows, old, new in zip(found, before, after, strict=True):
                rows.append({title: new[title] - old[title] for title in TITLES})
        before = after
    return _work({title: _low(rows, title) for title in TITLES} for rows in found)


def _loop(publish: Callable[[], object], readers: Sequence[_Reader], count: int) -> Work:
    for _ in range(count):
        publish()
    before = _settled(readers)
    for _ in range(count):
        publish()
    after = _settled(readers)
    return _work(
        {title: (new[title] - old[title]) / count for title in TITLES}
        for old, new in zip(before, after, strict=True)
    )


def _work(figures: Iterable[Mapping[str, float]]) -> Work:
    """Return the work of the leader, whose figures come first, and of the followers."""
    leader, *followers = figures
    return Work(leader, {title: max(one[title] for one in followers) for title in TITLES})


def _low(rows: Sequence[Counts], title: str) -> float:
    return quantiles([row[title] for row in rows], n=10)[0]


def _settled(readers: Sequence[_Reader]) -> list[Counts]:
    """Return the counts once no frame came or left for `QUIET_SECONDS`."""
    deadline = monotonic() + ROUND_SECONDS_MAX
    before = [reader.frames for reader in readers]
    while monotonic() < deadline:
        sleep(QUIET_SECONDS)
        frames = [reader.frames for reader in readers]
        if frames == before:
            return [reader.read() for reader in readers]
        before = frames
    raise ProcessError(f"the brokers were not quiet within {ROUND_SECONDS_MAX} s")


def _check(readers: Sequence[_Reader]) -> None:
    totals = [reader.read() for reader in readers]
    unseen = [title for title in NAMES if not any(total[title] for total in totals)]
    if unseen:
        raise ProcessError(f"never called, see counts/watched.py: {', '.join(unseen)}")


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split(":") for line in path.read_text().splitlines())
    return {name: int(value) for name, value in lines if value.strip().isdecimal()}
