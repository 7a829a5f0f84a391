"""Faults of a cluster of real processes: each with its start, duration and end.

Every fault leaves the cluster as able as before: what it killed runs again, what it cut is joined.
The chance that a fault meets the leader of a stream is greater than that of any other broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_broker.logformat.batch import COVERED_START, HEADER_SIZE
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.storage.log.place import QUICK
from liftbridge_proto import api_pb2
from liftbridge_testkit.chaos.logs import Diary
from liftbridge_testkit.cluster import CALL_SECONDS
from liftbridge_testkit.load import api
from liftbridge_testkit.nats_proxy import Way
from liftbridge_testkit.processes import ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from liftbridge_testkit.cluster import ClusterKit

LEADER_CHANCE: Final = 0.6
BREAKS_MAX: Final = 5
ALL_CHANCE: Final = 0.5
NAMESPACE: Final = "liftbridge-default"
SYNC_SECONDS_MAX: Final = 40.0
DAMAGED_BYTES: Final = 16


@dataclass(frozen=True)
class Storm:
    """Context of a fault.

    Attributes:
        cluster: Cluster that suffers the faults.
        streams: Streams that are written to, of partition 0.
        rng: Chance.
        rest: Waits so many seconds, or less when the run is over.
        diary: Gets what a broker may call an error.
    """

    cluster: ClusterKit
    streams: Sequence[str]
    rng: Random
    rest: Callable[[float], object]
    diary: Diary = field(default_factory=Diary)

    def kill(self, *names: str) -> None:
        """SIGKILL to brokers, one right after the other."""
        self.diary.killed(*names)
        for name in names:
            self.cluster[name].kill()

    def note_rest(self) -> None:
        """Write into the diary whether everything is in sync."""
        try:
            is_whole = all(is_in_sync(self.cluster, stream) for stream in self.streams)
        except ProcessError:
            return
        if is_whole:
            self.diary.in_sync()

    def victim(self) -> str:
        """A broker, rather one that leads."""
        names = list(self.cluster.brokers)
        if self.rng.random() < LEADER_CHANCE:
            try:
                leader = self.cluster.leader_of(self.rng.choice(self.streams))
            except ProcessError:
                leader = ""
            if leader:
                return leader
        return self.rng.choice(names)

    def pair(self) -> tuple[str, str]:
        """Two brokers, the first rather one that leads."""
        one = self.victim()
        others = [name for name in self.cluster.brokers if name != one]
        return one, self.rng.choice(others)

    def last(self, seconds_min: float, seconds_max: float) -> None:
        """Let the fault last."""
        self.rest(self.rng.uniform(seconds_min, seconds_max))


def kill(storm: Storm) -> str:
    """SIGKILL one broker and start it again."""
    name = storm.victim()
    storm.kill(name)
    storm.last(0.0, 3.0)
    storm.cluster.start(name)
    return name


def kill_two(storm: Storm) -> str:
    """SIGKILL two brokers, one shortly after the other."""
    one, other = storm.pair()
    storm.kill(one)
    storm.last(0.0, 1.0)
    storm.kill(other)
    storm.last(0.0, 2.0)
    storm.cluster.start(one, other)
    return f"{one} {other}"


def kill_all(storm: Storm) -> str:
    """SIGKILL every broker at once."""
    storm.kill(*storm.cluster.brokers)
    storm.last(0.0, 1.0)
    storm.cluster.start()
    return "all"


def pause(storm: Storm) -> str:
    """SIGSTOP one broker for longer or shorter than a session."""
    name = storm.victim()
    storm.cluster[name].pause()
    storm.last(0.2, 5.0)
    storm.cluster[name].resume()
    return name


def isolate(storm: Storm) -> str:
    """Cut one broker off from all other brokers; its clients still reach it."""
    return _hold(storm, Way.OUT, Way.IN)


def isolate_out(storm: Storm) -> str:
    """One broker receives messages, but cannot send."""
    return _hold(storm, Way.OUT)


def isolate_in(storm: Storm) -> str:
    """One broker sends messages, but receives none."""
    return _hold(storm, Way.IN)


def _hold(storm: Storm, *ways: Way) -> str:
    name = storm.victim()
    storm.cluster.proxies[name].hold(*ways)
    storm.last(0.5, 5.0)
    storm.cluster.proxies[name].heal()
    return name


def cut(storm: Storm) -> str:
    """The connections of one broker to NATS break and cannot be made."""
    name = storm.victim()
    storm.cluster.proxies[name].cut()
    storm.last(0.1, 4.0)
    storm.cluster.proxies[name].heal()
    return name


def break_connections(storm: Storm) -> str:
    """Connections of one broker to NATS break a few times, one or all; it connects again."""
    name = storm.victim()
    for _ in range(storm.rng.randint(1, BREAKS_MAX)):
        storm.cluster.proxies[name].sever(is_all=storm.rng.random() < ALL_CHANCE)
        storm.last(0.0, 0.5)
    return name


def separate(storm: Storm) -> str:
    """Two brokers do not reach each other, while both reach the rest (not transitive)."""
    one, other = storm.pair()
    storm.cluster.proxies[one].lose_to(internal_subject(NAMESPACE, "b", other, ""))
    storm.cluster.proxies[other].lose_to(internal_subject(NAMESPACE, "b", one, ""))
    storm.last(0.5, 6.0)
    storm.cluster.proxies[one].heal()
    storm.cluster.proxies[other].heal()
    return f"{one} | {other}"


def separate_one_way(storm: Storm) -> str:
    """Drop all messages from one broker to another, in one direction."""
    one, other = storm.pair()
    storm.cluster.proxies[one].lose_to(internal_subject(NAMESPACE, "b", other, ""))
    storm.last(0.5, 6.0)
    storm.cluster.proxies[one].heal()
    return f"{one} > {other}"


def delay(storm: Storm) -> str:
    """Everything from and to one broker comes late."""
    name = storm.victim()
    storm.cluster.proxies[name].delay(storm.rng.uniform(0.02, 0.4))
    storm.last(1.0, 5.0)
    storm.cluster.proxies[name].heal()
    return name


def restart_nats(storm: Storm) -> str:
    """SIGKILL NATS and start it again."""
    storm.cluster.nats.kill()
    storm.last(0.0, 3.0)
    storm.cluster.nats.start()
    return "nats"


def stop(storm: Storm) -> str:
    """Stop one broker as an operator does, and start it again."""
    name = storm.victim()
    code = storm.cluster[name].stop()
    if code != 0:
        raise ProcessError(f"{name} ended with code {code} after SIGTERM")
    storm.last(0.0, 2.0)
    storm.cluster.start(name)
    return name


def damage(storm: Storm) -> str:
    """SIGKILL one broker, change bytes in the middle of its logs, and start it again.

    All other brokers must have everything first: one disk may fail, not two. A start scans only
    data that may not be synced; readers find damage below, and it is repaired then.
    """
    name = storm.victim()
    await_in_sync(storm)
    storm.kill(name)
    storm.diary.damaged(name)
    hurt = [flip(path, storm.rng) for path in log_files(storm.cluster[name].data_dir)]
    storm.cluster.start(name)
    await_in_sync(storm)
    for stream, offset in hurt:
        storm.cluster.until(
            partial(is_readable, storm.cluster, name, stream, offset),
            f"offset {offset} of {stream} readable at {name}",
            seconds_max=SYNC_SECONDS_MAX,
        )
    await_in_sync(storm)
    return name


def wipe(storm: Storm) -> str:
    """SIGKILL one broker and give it an empty disk."""
    name = storm.victim()
    await_in_sync(storm)
    storm.diary.killed(name)
    storm.cluster.wipe(name)
    storm.last(0.0, 1.0)
    storm.cluster.start(name)
    await_in_sync(storm)
    storm.cluster.await_voters(len(storm.cluster.brokers))
    return name


def storm_of_all(storm: Storm) -> str:
    """A pause, a partition and a kill at the same time, on three brokers."""
    names = list(storm.cluster.brokers)
    storm.rng.shuffle(names)
    paused, held, killed = names[:3]
    storm.cluster[paused].pause()
    storm.cluster.proxies[held].hold(storm.rng.choice([Way.IN, Way.OUT]))
    storm.kill(killed)
    storm.last(0.5, 3.0)
    storm.cluster[killed].spawn()
    storm.last(0.0, 1.0)
    storm.cluster.proxies[held].heal()
    storm.cluster[paused].resume()
    broker = storm.cluster[killed]
    broker.wait_until(broker.is_ready, "ready")
    return " ".join(names[:3])


FAULTS: Final[dict[str, Callable[[Storm], str]]] = {
    act.__name__: act
    for act in (
        kill,
        kill_two,
        kill_all,
        pause,
        isolate,
        isolate_out,
        isolate_in,
        cut,
        break_connections,
        separate,
        separate_one_way,
        delay,
        restart_nats,
        stop,
        damage,
        wipe,
        storm_of_all,
    )
}
"""All faults by name."""


def await_in_sync(storm: Storm) -> None:
    """Wait until every replica of every stream is in sync.

    Raises:
        ProcessError: One is not in time.
    """
    for stream in storm.streams:
        storm.cluster.until(
            partial(is_in_sync, storm.cluster, stream),
            f"all replicas of {stream} in sync",
            seconds_max=SYNC_SECONDS_MAX,
        )
    storm.note_rest()


def is_in_sync(cluster: ClusterKit, stream: str) -> bool:
    """Return whether a stream has a leader and all replicas in sync, as every broker sees it."""
    for name in cluster.brokers:
        partition = cluster.partition(stream, at=name)
        if not partition.leader or not partition.replicas:
            return False
        if set(partition.isr) != set(partition.replicas):
            return False
    return True


def is_readable(cluster: ClusterKit, name: str, stream: str, offset: int) -> bool:
    """Return whether a broker gives out what is stored at an offset, or has no replica."""
    if name not in cluster.partition(stream).replicas:
        return True
    request = api_pb2.SubscribeRequest(
        stream=stream,
        startPosition=api_pb2.OFFSET,
        startOffset=offset,
        readISRReplica=True,
    )
    with cluster[name].channel() as channel:
        call = api(channel).Subscribe(request, timeout=CALL_SECONDS)
        try:
            next(call)  # tells that it is subscribed
            return bool(next(call).offset == offset)
        except grpc.RpcError:
            return False
        finally:
            call.cancel()


def log_files(data_dir: Path) -> list[Path]:
    """Log files of streams with something in them, the largest first."""
    found = [path for path in data_dir.glob("streams/**/*.log") if path.stat().st_size > 0]
    return sorted(found, key=lambda path: -path.stat().st_size)


def flip(path: Path, rng: Random) -> tuple[str, int]:
    """Change a few bytes in a log file, somewhere.

    Returns:
        The stream, and the first offset of the batch that was met.
    """
    data = bytearray(path.read_bytes())
    position = rng.randrange(max(len(data) - DAMAGED_BYTES, 1))
    offset = batch_at(data, position)
    for at in range(position, min(position + DAMAGED_BYTES, len(data))):
        data[at] ^= 0x5A
    with path.open("r+b") as file:
        file.write(data)
    stream = path.parents[1].name.partition("-")[2]
    return stream, offset


def batch_at(data: bytes | bytearray, position: int) -> int:
    """Base offset of the batch of a log that holds a position, or of the last one."""
    at = offset = 0
    while at <= position and at + HEADER_SIZE <= len(data):
        _, length, _, _, offset, _, _ = QUICK.unpack_from(data, at)
        at += COVERED_START + length
    return offset
