"""What the log costs per record: encoding, appending, reading. Prints microseconds per record.

Run: `python tests/bench/bench_log.py`. Each figure is CPU time of the best of several runs in one
process, on real files in a temporary directory, read from the page cache: it says what the code
costs and nothing of a disk.

Blocks of 128 KiB and more go back to the system when they are freed, unless the C library is told
otherwise, and getting them again costs more than filling them. With
`MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=33554432` in the environment the figures for
large batches fall by half.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader, read_header, seal
from liftbridge_broker.logformat.cipher import KEY_SIZE, BatchCipher
from liftbridge_broker.logformat.encryption import SALT_SIZE
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.ports.files import FileHandle, Token
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits, ReadResult

PARTITION = PartitionId(1 << 24)
VALUE_BYTES = 256
BATCH_RECORDS = 512
BLOCK_BYTES = 256 * 1024
REPEATS = 5


class PlainFiles:
    """The port `Files` on plain system calls, without what only faults and tokens need."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def list(self, path: str) -> Sequence[str]:
        folder = self._root / path
        return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else ()

    def make_directory(self, path: str) -> None:
        (self._root / path).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def submit_remove(self, token: Token, path: str) -> None:
        """Nothing: not measured here."""

    def rename(self, source: str, target: str) -> None:
        (self._root / source).rename(self._root / target)

    def sync_directory(self, path: str) -> None:
        """Nothing: durability is not measured here."""

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        return FileHandle(os.open(self._root / path, flags, 0o644))

    def close(self, handle: FileHandle) -> None:
        os.close(handle)

    def size(self, handle: FileHandle) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        return os.pread(handle, length, position)

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        return os.pread(handle, length, position)

    def submit_read(self, token: Token, handle: FileHandle, position: int, length: int) -> None:
        """Nothing: all is in the page cache."""

    def append(self, handle: FileHandle, data: bytes) -> None:
        os.write(handle, data)

    def truncate(self, handle: FileHandle, length: int) -> None:
        os.ftruncate(handle, length)

    def rewrite(self, handle: FileHandle, position: int) -> None:
        """Nothing: durability is not measured here."""

    def sync(self, handle: FileHandle) -> None:
        """Nothing: durability is not measured here."""

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """Nothing: durability is not measured here."""

    def free_bytes(self) -> int:
        return 1 << 40

    def total_bytes(self) -> int:
        return 1 << 40


def best(work: Callable[[], int]) -> float:
    """Microseconds per record of the quickest run; `work` returns the number of records."""
    times = []
    for _ in range(REPEATS):
        start = process_time()
        records = work()
        times.append((process_time() - start) / records)
    return min(times) * 1e6


def report(name: str, microseconds: float) -> None:
    sys.stdout.write(f"{name:<58} {microseconds:8.3f} us\n")
    sys.stdout.flush()


def make_batch(encoder: RecordEncoder, base: int, values: Sequence[bytes]) -> bytes:
    pieces = encoder.encode(
        base_offset=base,
        timestamp=1_700_000_000_000_000_000,
        subject="foo",
        reply="",
        values=values,
    )
    return seal(
        frames=pieces,
        partition_id=PARTITION,
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(base),
        last_offset=Offset(base + len(values) - 1),
        count=len(values),
        first_timestamp=1_700_000_000_000_000_000,
        largest_timestamp=1_700_000_000_000_000_000,
    )


def bench_encode() -> None:
    encoder = RecordEncoder("foo", 0)
    values = [os.urandom(VALUE_BYTES) for _ in range(BATCH_RECORDS)]
    mixed = [os.urandom(VALUE_BYTES - 128 + n % 256) for n in range(BATCH_RECORDS)]
    keys = [b"key-%d" % n for n in range(BATCH_RECORDS)]
    rounds = 100

    def run(values: Sequence[bytes], keys: Sequence[bytes] | None, start: int) -> Callable[[], int]:
        def work() -> int:
            base = start
            for _ in range(rounds):
                pieces = encoder.encode(
                    base_offset=base,
                    timestamp=1_700_000_000_000_000_000 + base,
                    subject="foo",
                    reply="",
                    values=values,
                    keys=keys,
                )
                seal(
                    frames=pieces,
                    partition_id=PARTITION,
                    leader_epoch=LeaderEpoch(1),
                    base_offset=Offset(base),
                    last_offset=Offset(base + len(values) - 1),
                    count=len(values),
                    first_timestamp=1,
                    largest_timestamp=1,
                )
                base += len(values)
            return rounds * len(values)

        return work

    report("encode + seal, 256 B, batches of 512", best(run(values, None, 1 << 24)))
    report("encode + seal, 128..383 B mixed, batches of 512", best(run(mixed, None, 1 << 24)))
    report("encode + seal, 256 B with keys, batches of 512", best(run(values, keys, 1 << 24)))
    report("encode + seal, 256 B, batches of 16", best(run(values[:16], None, 1 << 24)))
    report("encode + seal, 256 B, batches of 1", best(run(values[:1], None, 1 << 24)))


def open_log(files: PlainFiles, name: str) -> PartitionLog:
    limits = LogLimits(1 << 28, 0)
    log, _ = PartitionLog.open(
        files, name, PARTITION, limits, EMPTY_STATE, clean=False, commit=False
    )
    return log


def batches_of(records: int, batch_records: int) -> list[tuple[bytes, BatchHeader]]:
    encoder = RecordEncoder("foo", 0)
    values = [os.urandom(VALUE_BYTES) for _ in range(batch_records)]
    made = []
    for base in range(0, records, batch_records):
        batch = make_batch(encoder, base, values)
        made.append((batch, read_header(batch, 0)))
    return made


def bench_append(files: PlainFiles, batch_records: int, records: int) -> PartitionLog:
    batches = batches_of(records, batch_records)
    logs: list[PartitionLog] = []

    def work() -> int:
        log = open_log(files, f"append-{batch_records}-{len(logs)}")
        logs.append(log)
        for batch, header in batches:
            log.append(batch, header, 0)
        return records

    report(f"append, batches of {batch_records}", best(work))
    for log in logs[1:]:
        log.close()
    return logs[0]


def forget_verified(log: PartitionLog) -> None:
    for segment in log.live_segments():
        segment.verified.cut(0)


def read_all(read: Callable[[], ReadResult]) -> int:
    count = 0
    while True:
        result = read()
        if not result.slices:
            return count
        count += result.count


def bench_read(log: PartitionLog, what: str) -> None:
    end = log.log_end_offset

    def frames() -> int:
        forget_verified(log)
        reader = log.reader(Offset(0))
        return read_all(lambda: reader.read(BLOCK_BYTES, end))

    def small() -> int:
        reader = log.reader(Offset(0))
        return read_all(lambda: reader.read(8 * 1024, end))

    def batches() -> int:
        forget_verified(log)
        reader = log.batch_reader(Offset(0))
        return read_all(lambda: reader.read(BLOCK_BYTES, end))

    def backwards() -> int:
        reader = ReverseReader(log, Offset(end - 1))
        return read_all(lambda: reader.read(BLOCK_BYTES))

    report(f"read frames, 256 KiB blocks, {what}, verified", best(frames))
    report(f"read frames, 8 KiB asked for, {what}", best(small))
    report(f"read batches, 256 KiB blocks, {what}, verified", best(batches))
    report(f"read backwards, {what}, verified", best(backwards))


def bench_encrypted(files: PlainFiles, batch_records: int, records: int) -> None:
    """Encrypt batches, append them, and read them as a subscriber does."""
    cipher = BatchCipher(PARTITION, lambda: os.urandom(SALT_SIZE))
    cipher.unlock(os.urandom(KEY_SIZE))
    batches = batches_of(records, batch_records)
    log = open_log(files, f"encrypted-{batch_records}")
    for batch, _ in batches:
        closed = cipher.close_batch(batch)
        log.append(closed, read_header(closed, 0), 0)

    def encrypt() -> int:
        for batch, header in batches:
            cipher.encrypt(
                batch[HEADER_SIZE:],
                leader_epoch=header.leader_epoch,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                count=header.count,
                first_timestamp=header.first_timestamp,
            )
        return records

    def frames() -> int:
        forget_verified(log)
        reader = OpenedReader(log, Offset(0), cipher)
        return read_all(lambda: reader.read(BLOCK_BYTES, log.log_end_offset))

    what = f"batches of {batch_records}"
    report(f"encrypt, {what}", best(encrypt))
    report(f"read and decrypt, 256 KiB blocks, {what}, verified", best(frames))
    log.close()


def bench_recovery(files: PlainFiles, log: PartitionLog, name: str, what: str) -> None:
    def work() -> int:
        opened, found = PartitionLog.open(
            files, name, PARTITION, LogLimits(1 << 28, 0), EMPTY_STATE, clean=False, commit=False
        )
        assert found.scanned_bytes == log.size_bytes
        opened.abandon()
        return opened.log_end_offset

    report(f"scan after a crash, {what}", best(work))


def main() -> None:
    sys.stdout.write(f"values of {VALUE_BYTES} bytes, best of {REPEATS}\n")
    bench_encode()
    with tempfile.TemporaryDirectory() as root:
        files = PlainFiles(root)
        for batch_records, records in ((1, 50_000), (64, 200_000), (700, 210_000), (1024, 204_800)):
            log = bench_append(files, batch_records, records)
            what = f"batches of {batch_records}"
            bench_read(log, what)
            bench_recovery(files, log, f"append-{batch_records}-0", what)
            log.close()
            bench_encrypted(files, batch_records, records)


if __name__ == "__main__":
    main()
