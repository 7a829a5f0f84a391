"""Walks the batches of a log file in blocks, with or without verifying checksums."""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_ENCRYPTED,
    BATCH_BYTES_MAX,
    COVERED_START,
    HEADER_SIZE,
    PROLOGUE,
    BatchHeader,
    read_header,
    verify,
)
from liftbridge_broker.logformat.encryption import lacks_cipher_text
from liftbridge_broker.logformat.frames import frame_end
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.storage.log.types import READ_BLOCK_BYTES

NO_EPOCH: Final = LeaderEpoch(0)
_ANYWHERE: Final = Offset(0)
_PROLOGUE_BYTES: Final = PROLOGUE.to_bytes(4, "big")
_SEARCH_BLOCK_BYTES: Final = MIB
_HEADER_BLOCK_BYTES: Final = 4096
_LARGE_BATCH_BYTES: Final = 32 * 1024
_SECTOR_BYTES: Final = 512


class CrashShape(Enum):
    """Probable cause of damage at the end of a log.

    `TORN` is the beginning of a write for which no sync had returned. `LOST` lacks a sector, as
    after a crash that wrote the length and not the data, or on a disk that lost confirmed data.
    `NONE` shows no trace of a crash.
    """

    TORN = auto()
    LOST = auto()
    NONE = auto()


class LogFile(NamedTuple):
    """A log file to walk.

    Attributes:
        files: Port for reading.
        handle: The open file.
        path: Its path, for errors.
        partition_id: Partition its batches must be of.
        size: Number of valid bytes.
    """

    files: Files
    handle: FileHandle
    path: str
    partition_id: PartitionId
    size: int

    def read(self, position: int, length: int) -> bytes:
        """Read bytes at a position, blocking; fewer only at the end of the valid bytes."""
        length = min(length, self.size - position)
        return self.files.read(self.handle, position, length)

    def damage(self, message: str, position: int) -> CorruptionError:
        """Create an error that names this file."""
        return CorruptionError(message, path=self.path, position=position)


def scan_batches(
    file: LogFile,
    *,
    start: int,
    base_offset: Offset,
    verified: bool,
    epoch: LeaderEpoch = NO_EPOCH,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the headers from a position to the end of a file, with their positions.

    Args:
        file: File to walk.
        start: Position of a batch.
        base_offset: Base offset of that batch.
        verified: Whether to verify checksums; otherwise only headers are read.
        epoch: Leader epoch of the previous batch.

    Raises:
        CorruptionError: The next bytes are no whole batch of the partition that adjoins the
            previous batch. `position` is its start, `path` the file.
    """
    position = start
    expected = base_offset
    block, block_start = b"", start
    while position < file.size:
        at = position - block_start
        if at + HEADER_SIZE > len(block):
            length = READ_BLOCK_BYTES if verified else _header_block_bytes(at, len(block))
            block, block_start, at = file.read(position, length), position, 0
        header = _read_header(file, block, at, position)
        if verified:
            if at + header.size > len(block):
                block = file.read(position, max(header.size, READ_BLOCK_BYTES))
                block_start, at = position, 0
            try:
                verify(block, at, header)
            except CorruptionError as error:
                raise file.damage("checksum of the batch is wrong", position) from error
        if header.base_offset != expected:
            message = f"batch begins at offset {header.base_offset}, not at {expected}"
            raise file.damage(message, position)
        if header.leader_epoch < epoch:
            raise file.damage(f"leader epoch falls to {header.leader_epoch}", position)
        yield position, header
        expected, epoch = header.end_offset, header.leader_epoch
        position += header.size


def read_batch(file: LogFile, position: int) -> tuple[BatchHeader, bytes]:
    """Read and verify the batch at a position.

    Raises:
        CorruptionError: There is no whole batch of the partition.
    """
    head = file.read(position, HEADER_SIZE)
    header = _read_header(file, head, 0, position)
    batch = file.read(position, header.size)
    try:
        verify(batch, 0, header)
    except CorruptionError as error:
        raise file.damage("checksum of the batch is wrong", position) from error
    return header, batch


def find_batch_behind(
    file: LogFile, position: int, offset: Offset, reaching: Offset = _ANYWHERE
) -> bool:
    """Return whether a valid batch follows damage, which distinguishes rot from a torn tail.

    Args:
        file: File with damage at `position`.
        position: Start of the damaged batch, -1 to search the whole file.
        offset: Expected base offset of the damaged batch; a valid batch after it has a later
            offset.
        reaching: Offset that the batch must reach beyond to count.
    """
    start = position + 1
    try:
        head = file.read(position, HEADER_SIZE) if position >= 0 else b""
        header = read_header(head, 0)
        if header.partition_id == file.partition_id and header.base_offset == offset:
            # The header survived: bytes within the batch may be a publisher's.
            start = position + header.size
    except CorruptionError:
        pass
    while start + HEADER_SIZE <= file.size:
        block = file.read(start, _SEARCH_BLOCK_BYTES)
        at = block.find(_PROLOGUE_BYTES)
        while at >= 0:
            if _is_batch(file, start + at, offset, reaching):
                return True
            at = block.find(_PROLOGUE_BYTES, at + 1)
        if len(block) < HEADER_SIZE:
            return False
        start += len(block) - len(_PROLOGUE_BYTES) + 1
    return False


def crash_shape(file: LogFile, position: int, offset: Offset) -> CrashShape:
    """Classify the damage of the last write by its remains.

    A crash shortens the last write, and rot shortens nothing. So a batch whose frames are all
    present is not torn, even if more bytes should follow according to its length.

    Args:
        file: File with damage at `position`.
        position: Start of the damaged batch.
        offset: Expected base offset of the damaged batch.
    """
    data = file.read(position, BATCH_BYTES_MAX)
    if len(data) < HEADER_SIZE:
        return CrashShape.TORN
    if _is_torn_batch(data, file.partition_id, offset) and _lacks_frames(data):
        return CrashShape.TORN
    at = position
    while at < position + len(data):
        behind = at - at % _SECTOR_BYTES + _SECTOR_BYTES
        if not any(data[at - position : behind - position]):
            return CrashShape.LOST
        at = behind
    return CrashShape.NONE


def _lacks_frames(data: bytes) -> bool:
    """Return whether there are fewer whole frames than the header before them states."""
    header = read_header(data, 0)
    if header.attributes & ATTRIBUTE_ENCRYPTED:
        return header.size > len(data) and lacks_cipher_text(data)
    end = HEADER_SIZE
    try:
        for _ in range(header.count):
            end = frame_end(data, end, len(data))
    except CorruptionError:
        return header.size > len(data)
    return False


def reaches_beyond(
    files: Files,
    path: str,
    partition_id: PartitionId,
    base_offset: Offset,
    *,
    behind: Offset | None,
    limit: Offset,
) -> bool:
    """Return whether a log file may hold records at or above an offset; only headers are read.

    A damaged file is assumed to end where the next one starts, unless one of its batches proves
    otherwise: compaction merges files, and after a crash the merged files may exist beside the file
    that covers them.

    Args:
        files: The data directory.
        path: The log file.
        partition_id: Partition its batches must be of.
        base_offset: Offset in its name.
        behind: Base offset of the next file, `None` if it is the last.
        limit: The offset.

    Raises:
        FilesError: The disk failed to read.
    """
    handle = files.open(path)
    try:
        file = LogFile(files, handle, path, partition_id, files.size(handle))
        end, damage = _walk_headers(file, base_offset)
        if damage is not None:
            is_merged = behind is not None and end > behind
            if is_merged or find_batch_behind(file, damage, end, reaching=limit):
                return True
    finally:
        files.close(handle)
    return end > limit


def has_known_range(
    files: Files, path: str, partition_id: PartitionId, base_offset: Offset
) -> bool:
    """Return whether a log file's headers show the range it covers, even if its end is torn off.

    Raises:
        FilesError: The disk failed to read.
    """
    handle = files.open(path)
    try:
        file = LogFile(files, handle, path, partition_id, files.size(handle))
        end, damage = _walk_headers(file, base_offset)
        if damage is None:
            return True
        return _is_torn_batch(file.read(damage, HEADER_SIZE), partition_id, end)
    finally:
        files.close(handle)


def _walk_headers(file: LogFile, base_offset: Offset) -> tuple[Offset, int | None]:
    """Return the end of the batches from the start of a file, and the position of any damage."""
    end = base_offset
    try:
        for _, header in scan_batches(file, start=0, base_offset=base_offset, verified=False):
            end = header.end_offset
    except CorruptionError as error:
        return end, error.position
    return end, None


def _is_torn_batch(head: bytes, partition_id: PartitionId, base_offset: Offset) -> bool:
    """Return whether damage is a batch that belongs there but lacks its end."""
    try:
        header = read_header(head, 0)
    except CorruptionError:
        return False
    return header.partition_id == partition_id and header.base_offset == base_offset


def _is_batch(file: LogFile, position: int, offset: Offset, reaching: Offset) -> bool:
    """Return whether a valid batch of a later offset starts at a position."""
    try:
        header, _ = read_batch(file, position)
    except CorruptionError:
        return False
    return header.base_offset > offset and header.end_offset > reaching


def _read_header(file: LogFile, block: bytes, at: int, position: int) -> BatchHeader:
    """Read the header at `block[at]`, which is at `position` of the file."""
    try:
        header = read_header(block, at)
    except CorruptionError as error:
        raise file.damage("no batch begins here", position) from error
    if header.partition_id != file.partition_id:
        raise file.damage(f"batch of partition {header.partition_id}", position)
    if position + header.size > file.size:
        raise file.damage("batch is cut off", position)
    return header


def _header_block_bytes(at: int, block_length: int) -> int:
    """Return the read size if only headers are needed: small for large batches."""
    return _HEADER_BLOCK_BYTES if at - block_length > _LARGE_BATCH_BYTES else READ_BLOCK_BYTES


assert COVERED_START < HEADER_SIZE <= BATCH_BYTES_MAX
