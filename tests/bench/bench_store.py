"""What the store and the disk adapter cost: start-up, group commit, appends, cached and cold reads.

Run: `python tests/bench/bench_store.py [--gibibytes N]`. Works on real files below the current
directory, because a tmpfs has no syncs to wait for. Prints a table; `--gibibytes 10` adds the start
on a large log after a kill, which first writes that much.
"""

import argparse
import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter

from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.logformat.batch import BatchHeader, read_header
from liftbridge_broker.model.ids import Instant, MetadataIndex, PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_testkit.stores import IDENTITY, START_WALL_NS, batch_of, key_of

PARTITIONS = 1_000
COMMITS = 2_000
READS = 400
BLOCK_BYTES = 256 * 1024
SECOND_NS = 1_000_000_000


class Owner:
    """A store over real files, driven by a loop that only carries events."""

    def __init__(self, root: Path) -> None:
        loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[FileEvent] = asyncio.Queue()
        self.files = DiskFiles(root, post=loop.call_soon_threadsafe, deliver=self.deliver)
        self._token = 0

    def deliver(self, events: Sequence[FileEvent]) -> None:
        for event in events:
            self.events.put_nowait(event)

    def new_token(self) -> Token:
        self._token += 1
        return Token(self._token)

    def transition(self, kind: str, fields: object) -> None:
        """Nobody listens."""

    def open(self, partitions: Sequence[PartitionId], options: StreamOptions) -> LogStore:
        now = Instant(SECOND_NS)
        store = open_store(
            self.files,
            IDENTITY,
            StoreOptions(space=SpaceLimits(0, 0)),
            observer=self,
            new_token=self.new_token,
            now=now,
            wall_ns=START_WALL_NS,
        )
        for partition in partitions:
            store.open(partition, StreamName("bench"), options, now)
        store.begin(MetadataIndex(0), now)
        return store


def tell(name: str, value: float, unit: str) -> None:
    sys.stdout.write(f"{name:58} {value:10.2f} {unit}\n")


def timed(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


async def bench_thousand(root: Path) -> None:
    keys = [key_of(n) for n in range(1, PARTITIONS + 1)]
    options = StreamOptions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    owner = Owner(root)
    store = owner.open([], options)
    name = StreamName("bench")
    seconds = timed(lambda: [store.open(key, name, options, Instant(1)) for key in keys])
    tell("make one of 1,000 logs", seconds / PARTITIONS * 1e6, "us")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tell("memory of an idle log", (after - before) / PARTITIONS, "KiB")
    for key in keys:
        log = store.log(key)
        assert log is not None
        batch = batch_of(key, 0, [b"x" * 256])
        log.append(batch, read_header(batch, 0), START_WALL_NS)
        store.note_append(key, Instant(1))
    tell("memory of a log with an open file", rss_growth(after), "KiB")
    tell("close 1,000 dirty logs in order", timed(lambda: store.close(1)), "s")
    owner.files.shut_down()
    owner = Owner(root)
    tell("start with 1,000 logs, clean", timed(lambda: owner.open(keys, options)), "s")
    owner.files.shut_down()
    owner = Owner(root)
    tell("start with 1,000 logs after a kill", timed(lambda: owner.open(keys, options)), "s")
    owner.files.shut_down()


def rss_growth(before: int) -> float:
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / PARTITIONS


async def bench_commit(root: Path) -> None:
    owner = Owner(root)
    key = key_of(1)
    store = owner.open([key], StreamOptions(fsync_policy=FsyncPolicy.COMMIT))
    log = store.log(key)
    assert log is not None
    times = []
    for _ in range(COMMITS):
        batch = batch_of(key, log.log_end_offset, [b"x" * 256])
        header = read_header(batch, 0)
        began = perf_counter()
        log.append(batch, header, START_WALL_NS)
        store.note_append(key, Instant(1))
        store.on_file_event(await owner.events.get(), Instant(1))
        times.append((perf_counter() - began) * 1e6)
    tell("append and commit, one at a time, p50", percentile(times, 0.5), "us")
    tell("append and commit, one at a time, p99", percentile(times, 0.99), "us")
    store.close(1)
    owner.files.shut_down()


async def bench_note_append(root: Path) -> None:
    owner = Owner(root)
    key = key_of(1)
    store = owner.open([key], StreamOptions(fsync_policy=FsyncPolicy.INTERVAL))
    now = Instant(1)
    count = 200_000

    def act() -> None:
        note = store.note_append
        for _ in range(count):
            note(key, now)

    tell("note_append under interval, already waiting", timed(act) / count * 1e9, "ns")
    store.close(1)
    owner.files.shut_down()


async def bench_files(root: Path) -> None:
    owner = Owner(root)
    files = owner.files
    handle = files.open("data", create=True)
    for size in (300, 40_000):
        data = b"x" * size
        count = 5_000
        began = perf_counter()
        for _ in range(count):
            files.append(handle, data)
        tell(f"append {size} bytes on the loop", (perf_counter() - began) / count * 1e6, "us")
    began = perf_counter()
    for number in range(READS):
        files.try_read(handle, number * BLOCK_BYTES, BLOCK_BYTES)
    tell("cached read of 256 KiB", (perf_counter() - began) / READS * 1e6, "us")
    files.sync(handle)
    os.posix_fadvise(files._descriptors[handle], 0, 0, os.POSIX_FADV_DONTNEED)
    missed = 0
    began = perf_counter()
    for number in range(READS):
        if files.try_read(handle, number * BLOCK_BYTES, BLOCK_BYTES) is None:
            missed += 1
            files.submit_read(owner.new_token(), handle, number * BLOCK_BYTES, BLOCK_BYTES)
            await owner.events.get()
    tell("cold read of 256 KiB in order", (perf_counter() - began) / READS * 1e6, "us")
    tell("of which had to wait for the reader thread", missed / READS * 100, "%")
    files.shut_down()


async def bench_large(root: Path, gibibytes: int) -> None:
    owner = Owner(root)
    key = key_of(1)
    options = StreamOptions(fsync_policy=FsyncPolicy.INTERVAL)
    store = owner.open([key], options)
    log = store.log(key)
    assert log is not None
    values = [os.urandom(256) for _ in range(512)]
    now, written = SECOND_NS, 0
    began = perf_counter()
    while written < gibibytes << 30:
        batch = batch_of(key, log.log_end_offset, values)
        header: BatchHeader = read_header(batch, 0)
        log.append(batch, header, START_WALL_NS)
        now = int(perf_counter() * SECOND_NS)
        store.note_append(key, Instant(now))
        store.on_timer(Instant(now), START_WALL_NS)
        await asyncio.sleep(0)
        while not owner.events.empty():
            store.on_file_event(owner.events.get_nowait(), Instant(now))
        written += len(batch)
    tell(f"write {gibibytes} GiB under interval", written / (perf_counter() - began) / 1e6, "MB/s")
    tell("not synced when killed", (log.log_end_offset - log.recovery_point) * 300 / 1e6, "MB")
    # As after kill -9: what was written is visible, nothing was closed.
    owner.files.shut_down()
    owner = Owner(root)
    tell(f"start with {gibibytes} GiB after a kill", timed(lambda: owner.open([key], options)), "s")
    owner.files.shut_down()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gibibytes", type=int, default=0)
    gibibytes = parser.parse_args().gibibytes
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    root = Path(mkdtemp(prefix=".bench-", dir="."))
    try:
        await bench_thousand(root / "thousand")
        await bench_commit(root / "commit")
        await bench_note_append(root / "note")
        await bench_files(root / "files")
        if gibibytes:
            await bench_large(root / "large", gibibytes)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    asyncio.run(main())
