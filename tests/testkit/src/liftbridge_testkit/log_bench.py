"""A partition log in memory with a simulated owner: journal, syncs, restarts."""

from collections.abc import Callable, Sequence

from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.logformat.frames import Frame
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.ports.files import FileHandle
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.segment import DAMAGED_SUFFIX
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits, RecoveryReport
from liftbridge_testkit.batches import PARTITION, Batches, cipher, frames_of, header_of, offsets_of
from liftbridge_testkit.memory_files import MemoryFiles

DIRECTORY = "streams/foo/0"
UNLIMITED = LogLimits(0, 0)


class LogBench:
    """A log on `MemoryFiles`; the journal is durable immediately.

    Attributes:
        files: The data directory.
        log: The log as last opened.
        report: Report of opening it.
        journal: Small state for the next restart, `None` if lost.
        made: Maker of its batches.
        cipher: Encrypts and decrypts them; `None` for a plain log.
    """

    def __init__(
        self,
        limits: LogLimits = UNLIMITED,
        files: MemoryFiles | None = None,
        journal: LogState | None = EMPTY_STATE,
        cipher: BatchCipher | None = None,
    ) -> None:
        self.files = files or MemoryFiles()
        self.limits = limits
        self.made = Batches()
        self.journal = journal
        self.cipher = cipher
        self.files.make_directory(DIRECTORY)
        for folder in ("streams/foo", "streams", ""):
            self.files.sync_directory(folder)
        self.open()

    def open(
        self,
        *,
        clean: bool = False,
        commit: bool = False,
        on_doubt: Callable[[], object] = lambda: None,
    ) -> RecoveryReport:
        """Open the log with the state in the journal."""
        self.log, self.report = PartitionLog.open(
            self.files,
            DIRECTORY,
            PARTITION,
            self.limits,
            self.journal,
            clean=clean,
            commit=commit,
            on_doubt=on_doubt,
        )
        return self.report

    def append(self, *values: bytes, timestamp: int = 1, epoch: int = 1, wall_ns: int = 0) -> bytes:
        """Append one batch; return its bytes."""
        made = self.made.make(self.log.log_end_offset, values, timestamp=timestamp, epoch=epoch)
        batch = self._closed(made)
        self.log.append(batch, header_of(batch), wall_ns)
        return batch

    def _closed(self, batch: bytes) -> bytes:
        return batch if self.cipher is None else self.cipher.close_batch(batch)

    def append_raw(self, batch: bytes) -> None:
        """Append a batch made elsewhere, which an encrypted log encrypts."""
        batch = self._closed(batch)
        self.log.append(batch, header_of(batch), 0)

    def sync(self) -> None:
        """Sync everything and update the journal."""
        sync_log(self.files, self.log)
        self.journal = self.log.state

    def stop(self) -> None:
        """Close in order and update the journal."""
        self.log.close()
        self.journal = self.log.state

    def reader(self, first: int) -> LogReader | OpenedReader:
        """Return a reader of frames, as a subscription has it."""
        if self.cipher is None:
            return self.log.reader(Offset(first))
        return OpenedReader(self.log, Offset(first), self.cipher)

    def frames(self, first: int | None = None, max_bytes: int = 1 << 20) -> list[Frame]:
        """Return all records from an offset on, by default from the log start."""
        start = self.log.log_start_offset if first is None else Offset(first)
        reader = self.reader(start)
        found: list[Frame] = []
        while True:
            result = reader.read(max_bytes, self.log.log_end_offset)
            if not result.slices:
                reader.close()
                return found
            found += frames_of(result.slices)

    def values(self) -> dict[int, bytes]:
        """Return the values of all records by offset."""
        return {frame.offset: frame.value for frame in self.frames()}

    def paths(self) -> list[str]:
        """Return the names of the files in the log's directory."""
        return [path.removeprefix(DIRECTORY + "/") for path in self.files.paths(DIRECTORY)]


def sync_log(files: MemoryFiles, log: PartitionLog) -> None:
    """Sync everything in a log."""
    end = log.log_end_offset
    handles, directories = log.unsynced()
    for handle in handles:
        files.sync(handle)
    for directory in directories:
        files.sync_directory(directory)
    log.mark_synced(end)


def snapshot(files: MemoryFiles, under: str = "") -> dict[str, bytes]:
    """Return the contents of all files except notes of damage, to detect changes."""
    paths = [path for path in files.paths(under) if not path.endswith(DAMAGED_SUFFIX)]
    return {path: files.content(path) for path in paths}


def damaged(data: bytes, position: int, size: int = 1) -> bytes:
    """Return data with some flipped bytes."""
    turned = bytes(byte ^ 0xFF for byte in data[position : position + size])
    return data[:position] + turned + data[position + size :]


def log_path(base: int) -> str:
    """Return the path of the log file of a segment of `LogBench`."""
    return f"{DIRECTORY}/{base:020d}.log"


def index_path(base: int) -> str:
    """Return the path of the index file of a segment of `LogBench`."""
    return f"{DIRECTORY}/{base:020d}.index"


def starts_of(batches: Sequence[bytes]) -> list[int]:
    """Return the start of each batch when some batches are joined."""
    return [sum(map(len, batches[:number])) for number in range(len(batches))]


def three_batches(*, synced: int, encrypted: bool = False) -> tuple[LogBench, list[bytes]]:
    """Return a log of three batches of two records each, some of which are synced."""
    bench = LogBench(cipher=cipher() if encrypted else None)
    batches = []
    for number in range(3):
        batches.append(bench.append(b"%da" % number, b"%db" % number))
        if number + 1 == synced:
            bench.sync()
    bench.files.kill()
    return bench, batches


def segmented(count: int, *, synced: int) -> LogBench:
    """Return a log of segments with two records each."""
    bench = LogBench(LogLimits(1000, 0))
    for number in range(count):
        bench.append(b"x" * 500, b"%d" % number * 500)
        if number + 1 == synced:
            bench.sync()
    bench.files.kill()
    return bench


def ten_batches(limits: LogLimits = UNLIMITED) -> LogBench:
    """Return the batches of three records; the second of each has 50 bytes."""
    bench = LogBench(limits)
    for number in range(10):
        bench.append(b"%d" % number, b"x" * 50, b"y", timestamp=number)
    return bench


def read_all(reader: LogReader | BatchReader, max_bytes: int, end: int) -> int:
    """Read to the end; return the number of records."""
    count = 0
    while True:
        result = reader.read(max_bytes, Offset(end))
        if not result.slices:
            return count
        count += result.count


def read_back(reader: ReverseReader, max_bytes: int) -> list[Offset]:
    """Read to the start, newest first."""
    found: list[Offset] = []
    while not reader.is_done:
        result = reader.read(max_bytes)
        assert result.count == len(result.slices)
        found += [offsets_of([piece])[0] for piece in result.slices]
    return found


class ReadCounter(MemoryFiles):
    """Counts reads of log files.

    Attributes:
        reads: Reads that were served from memory.
        read_bytes: Bytes of log files read in any way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.read_bytes = 0

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        data = super().read(handle, position, length)
        if self._handles[handle].path.endswith(".log"):
            self.read_bytes += len(data)
        return data

    def try_read(self, handle: FileHandle, position: int, length: int) -> bytes | None:
        self.reads += 1
        return super().try_read(handle, position, length)
