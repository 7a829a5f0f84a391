"""The journal: small state of all partitions of a data directory in one file (storage policy 10).

One append and one sync make the state of any number of partitions durable, so that a broker which
takes over hundreds of leaderships does not pay hundreds of syncs. Every record holds the whole
state of its partition, so only the newest record of a partition counts, and no record depends on
another. The file is rewritten, beside the old one and renamed, at every start and whenever it has
grown to several times its content.

Layout, big-endian. File header of 20 bytes: magic `LBJN`, version u16 = 1, reserved u16, generation
u64 (one more in every new file), CRC-32C u32 of the 16 bytes before it. Then records: marker u16
`JR`, length u32 of the body, CRC-32C u32 over generation u64, position of the record u64 and body.
Body: kind u8, partition id u64; of a state (kind 1, or 3 for a strict one) further log start,
recovery point and high watermark i64 each, number of epochs u32, and for each leader epoch u64 and
start offset i64; of a removal (kind 2) nothing more.

A state is strict when everything above its recovery point was written under policy `commit`,
where a good batch after a bad one means rot and not a crash (storage policy 4).

The CRC covers the position and the generation, so that a misplaced record is not trusted. A bad
record with no good one after it is a torn tail and dropped. A bad record with good ones after it is
rot: its content is unknown, so every partition without a later record starts again from its log
(`LoadedJournal.damaged_count`).
"""

from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.storage.log.state import LogState

_FILE_HEADER: Final = Struct(">4sHHQ")
_CRC: Final = Struct(">I")
_HEADER_SIZE: Final = _FILE_HEADER.size + _CRC.size
_MAGIC: Final = b"LBJN"
_VERSION: Final = 1
_RECORD: Final = Struct(">2sII")
_MARKER: Final = b"JR"
_PLACE: Final = Struct(">QQ")
_KEY: Final = Struct(">BQ")
_STATE: Final = Struct(">BQqqqI")
_EPOCH: Final = Struct(">Qq")
_KIND_STATE: Final = 1
_KIND_REMOVED: Final = 2
_KIND_STRICT: Final = 3
EPOCH_COUNT_MAX: Final = 65_536
"""Leader epochs kept for one partition; a log with more elections forgets the oldest epochs."""
_BODY_BYTES_MAX: Final = _STATE.size + EPOCH_COUNT_MAX * _EPOCH.size
REWRITE_BYTES_MIN: Final = 4 * MIB
_REWRITE_FACTOR: Final = 4
NEW_SUFFIX: Final = ".new"
DAMAGED_SUFFIX: Final = ".damaged"


class JournalStamp(NamedTuple):
    """Identifies the exact content of the journal; the clean marker contains it."""

    generation: int
    length: int


class LoadedJournal(NamedTuple):
    """Content of the journal at start.

    Attributes:
        states: State of every partition. After damage, only the certain part remains: the recovery
            point is the log start and there are no epochs, so that the whole log is scanned.
        strict: Partitions whose logs must not be truncated before an intact batch: those with a
            strict state, and those with an uncertain state.
        damaged_count: Stretches of rot: states before each may be old or missing.
        torn_bytes: Bytes of an unfinished write at the end.
        stamp: Stamp of the content, `None` without a readable file.
    """

    states: dict[PartitionId, LogState]
    strict: frozenset[PartitionId]
    damaged_count: int
    torn_bytes: int
    stamp: JournalStamp | None


class Journal:
    """The journal file and the changes that wait to be written.

    Owned by the store, which flushes: `begin_flush`, sync of the handle that it returns,
    `finish_flush`; one flush is in progress at a time. `put` and `forget` may be called during a
    flush and wait for the next.
    """

    def __init__(
        self, files: Files, path: str, generation: int, rewrite_bytes_min: int = REWRITE_BYTES_MIN
    ) -> None:
        """Start without a file; the first flush writes one. See `open_journal`.

        Args:
            files: The data directory.
            path: Path of the journal.
            generation: Generation of the existing file, 0 for none.
            rewrite_bytes_min: Size below which the file only grows.
        """
        self._files = files
        self._path = path
        self._generation = generation
        self._handle: FileHandle | None = None
        self._new_handle: FileHandle | None = None
        self._length = 0
        self._live: dict[PartitionId, bytes] = {}
        self._live_bytes = 0
        self._pending: dict[PartitionId, bytes] = {}
        self._removed: set[PartitionId] = set()
        self._removing: frozenset[PartitionId] = frozenset()
        self._rewrite_bytes_min = rewrite_bytes_min

    @property
    def has_pending(self) -> bool:
        """Return whether changes wait for a flush."""
        return bool(self._pending)

    @property
    def stamp(self) -> JournalStamp:
        """Content as of the last finished flush."""
        return JournalStamp(self._generation, self._length)

    def put(self, partition: PartitionId, state: LogState, *, is_strict: bool) -> None:
        """Store the state of a partition with the next flush.

        Args:
            partition: Its id.
            state: Current state of its log.
            is_strict: Whether all above its recovery point was written under policy `commit`.
        """
        body = encode_state(partition, state, is_strict=is_strict)
        old = self._live.get(partition, b"")
        if body != old:
            self._live[partition] = body
            self._live_bytes += len(body) - len(old)
            self._pending[partition] = body

    def forget(self, partition: PartitionId) -> None:
        """Store with the next flush that a partition was removed."""
        old = self._live.pop(partition, None)
        if old is not None:
            self._live_bytes -= len(old)
            self._pending[partition] = _KEY.pack(_KIND_REMOVED, partition)
            self._removed.add(partition)

    def may_know(self, partition: PartitionId) -> bool:
        """Return whether a crash may bring a forgotten partition back into the journal."""
        return partition in self._removed

    def begin_flush(self) -> FileHandle:
        """Write pending changes; the owner syncs the handle and calls `finish_flush`.

        Raises:
            FilesError: Nothing was written and everything is still pending.
        """
        assert self._new_handle is None
        self._removing = frozenset(self._removed)
        if self._handle is None or self._length > self._length_max:
            return self._begin_rewrite()
        group = self._records(list(self._pending.values()), self._length)
        self._files.append(self._handle, group)
        self._length += len(group)
        self._pending.clear()
        return self._handle

    def finish_flush(self) -> None:
        """Complete a synced flush.

        If there is a new file, it replaces the old file, which blocks for one sync.

        Raises:
            FilesError: The new file could not be put in place durably.
        """
        if self._new_handle is not None:
            self.close()
            self._files.rename(self._path + NEW_SUFFIX, self._path)
            self._files.sync_directory(self._path.rpartition("/")[0])
            self._handle = self._files.open(self._path)
        self._removed -= self._removing
        self._removing = frozenset()

    def flush(self) -> None:
        """Make everything pending durable at once, even while another flush is in progress.

        Blocks for one sync, or two if a new file is due.

        Raises:
            FilesError: As `begin_flush` and `finish_flush`, or the sync failed.
        """
        if self._new_handle is None:
            handle = self.begin_flush()
        else:
            handle = self._new_handle
            group = self._records(list(self._pending.values()), self._length)
            self._files.append(handle, group)
            self._length += len(group)
            self._pending.clear()
            self._removing = frozenset(self._removed)
        self._files.sync(handle)
        self.finish_flush()

    def close(self) -> None:
        """Close the file; pending changes are lost."""
        for handle in (self._handle, self._new_handle):
            if handle is not None:
                self._files.close(handle)
        self._handle = self._new_handle = None

    @property
    def _length_max(self) -> int:
        return max(self._rewrite_bytes_min, _REWRITE_FACTOR * self._live_bytes)

    def _begin_rewrite(self) -> FileHandle:
        generation = self._generation + 1
        header = _FILE_HEADER.pack(_MAGIC, _VERSION, 0, generation)
        header += _CRC.pack(crc32c(header))
        data = header + _records(list(self._live.values()), generation, _HEADER_SIZE)
        path = self._path + NEW_SUFFIX
        self._files.remove(path)
        handle = self._files.open(path, create=True)
        try:
            self._files.append(handle, data)
        except FilesError:
            self._files.close(handle)
            self._files.remove(path)
            raise
        self._generation = generation
        self._length = len(data)
        self._new_handle = handle
        self._pending.clear()
        return handle

    def _records(self, bodies: list[bytes], position: int) -> bytes:
        return _records(bodies, self._generation, position)


def open_journal(
    files: Files, path: str, rewrite_bytes_min: int = REWRITE_BYTES_MIN
) -> tuple[Journal, LoadedJournal]:
    """Sync and read the journal; the first flush writes a new file.

    A damaged file is kept as `<path>.damaged`.

    Raises:
        FilesError: The disk failed to read, which says nothing about the contents.
    """
    data = _contents(files, path)
    loaded = parse_journal(data)
    if loaded.damaged_count:
        _keep(files, path + DAMAGED_SUFFIX, data)
    generation = loaded.stamp.generation if loaded.stamp else 0
    journal = Journal(files, path, generation, rewrite_bytes_min)
    for partition, state in loaded.states.items():
        journal.put(partition, state, is_strict=partition in loaded.strict)
    return journal, loaded


def parse_journal(data: bytes) -> LoadedJournal:
    """Decode a whole journal file; damage is reported, never raised."""
    generation = _generation(data)
    if generation is None:
        return LoadedJournal({}, frozenset(), 1 if data else 0, 0, None)
    states: dict[PartitionId, LogState] = {}
    strict: set[PartitionId] = set()
    certain: set[PartitionId] = set()
    damaged_count = 0
    position = _HEADER_SIZE
    while position < len(data):
        body = _body_at(data, position, generation)
        if body is None:
            following = _next_record(data, position + 1, generation)
            if following is None:
                break
            damaged_count += 1
            certain.clear()
            position = following
            continue
        partition, state = _decode(body)
        states.pop(partition, None)
        strict.discard(partition)
        if state is not None:
            states[partition] = state
            certain.add(partition)
        if body[0] == _KIND_STRICT:
            strict.add(partition)
        position += _RECORD.size + len(body)
    if damaged_count:
        strict |= states.keys() - certain
        states = {key: state if key in certain else _weak(state) for key, state in states.items()}
    stamp = JournalStamp(generation, len(data))
    torn_bytes = len(data) - position
    return LoadedJournal(states, frozenset(strict), damaged_count, torn_bytes, stamp)


def encode_state(partition: PartitionId, state: LogState, *, is_strict: bool) -> bytes:
    """Encode the body of a state record (layout in the module's docstring)."""
    kind = _KIND_STRICT if is_strict else _KIND_STATE
    epochs = state.epochs[-EPOCH_COUNT_MAX:]
    head = _STATE.pack(kind, partition, *state[:3], len(epochs))
    return head + b"".join([_EPOCH.pack(epoch, start) for epoch, start in epochs])


def _records(bodies: list[bytes], generation: int, position: int) -> bytes:
    pieces = []
    for body in bodies:
        crc = crc32c(_PLACE.pack(generation, position) + body)
        pieces.append(_RECORD.pack(_MARKER, len(body), crc) + body)
        position += _RECORD.size + len(body)
    return b"".join(pieces)


def _generation(data: bytes) -> int | None:
    if len(data) < _HEADER_SIZE:
        return None
    magic, version, _, generation = _FILE_HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if crc != crc32c(data[: _FILE_HEADER.size]) or (magic, version) != (_MAGIC, _VERSION):
        return None
    return int(generation)


def _body_at(data: bytes, position: int, generation: int) -> bytes | None:
    """Return the body of the record at a position, `None` if it is not intact."""
    start = position + _RECORD.size
    if start > len(data):
        return None
    marker, length, crc = _RECORD.unpack_from(data, position)
    if marker != _MARKER or length > _BODY_BYTES_MAX or start + length > len(data):
        return None
    body = data[start : start + length]
    if crc != crc32c(_PLACE.pack(generation, position) + body) or not _is_well_formed(body):
        return None
    return body


def _is_well_formed(body: bytes) -> bool:
    """Return whether an intact body has the size that its kind and count require."""
    if len(body) < _KEY.size:
        return False
    if body[0] == _KIND_REMOVED:
        return len(body) == _KEY.size
    if body[0] not in (_KIND_STATE, _KIND_STRICT) or len(body) < _STATE.size:
        return False
    count = int(_STATE.unpack_from(body)[5])
    return len(body) == _STATE.size + count * _EPOCH.size


def _next_record(data: bytes, position: int, generation: int) -> int | None:
    """Return the position of the first intact record from a position on."""
    while (position := data.find(_MARKER, position)) >= 0:
        if _body_at(data, position, generation) is not None:
            return position
        position += 1
    return None


def _decode(body: bytes) -> tuple[PartitionId, LogState | None]:
    if body[0] == _KIND_REMOVED:
        return PartitionId(_KEY.unpack(body)[1]), None
    _, partition, log_start, recovery_point, high_watermark, _ = _STATE.unpack_from(body)
    epochs = tuple(
        (LeaderEpoch(epoch), Offset(start))
        for epoch, start in _EPOCH.iter_unpack(body[_STATE.size :])
    )
    state = LogState(Offset(log_start), Offset(recovery_point), Offset(high_watermark), epochs)
    return PartitionId(partition), state


def _weak(state: LogState) -> LogState:
    """Return the certain part of a state that may be old: truncation lowers the recovery point."""
    return state._replace(recovery_point=min(state.log_start, state.recovery_point), epochs=())


def _contents(files: Files, path: str) -> bytes:
    if not files.exists(path):
        return b""
    handle = files.open(path)
    try:
        # A process that was killed, or whose sync failed, leaves bytes that are visible and not
        # durable; an action based on them, such as removing segments, must not outlive them.
        files.rewrite(handle, 0)
        files.sync(handle)
        return files.read(handle, 0, files.size(handle))
    finally:
        files.close(handle)


def _keep(files: Files, path: str, data: bytes) -> None:
    """Keep a damaged file for inspection; a full disk does not prevent a start."""
    files.remove(path)
    handle = files.open(path, create=True)
    try:
        files.append(handle, data)
    except FilesError as error:
        if not error.is_full:
            raise
    finally:
        files.close(handle)
