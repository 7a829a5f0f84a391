"""Encrypts and decrypts the batches of one partition: AES-256-GCM, one operation per batch.

No nonce repeats under one key (NIST SP 800-38D, 8.2.1). Each writer, which is one process that
leads or compacts the partition, draws a random salt, derives a key of its own from the data key and
the salt, and numbers its batches in memory. So neither a lost tail, a truncation nor two leaders of
one partition can lead to a repetition: nothing is continued from what is stored (ADR 0023).
"""

import hmac
from collections.abc import Callable
from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from liftbridge_broker.errors import CorruptionError, KeyUnavailableError, LiftbridgeError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_ENCRYPTED,
    COVERED_START,
    HEADER_SIZE,
    BatchHeader,
    read_header,
    seal,
)
from liftbridge_broker.logformat.encryption import (
    CIPHER_HEAD,
    NONCE_SIZE,
    SALT_SIZE,
    TABLE_START,
    TAG_SIZE,
    encode_table,
    frame_times,
    read_cipher_head,
)
from liftbridge_broker.logformat.frames import iter_frames
from liftbridge_broker.model.ids import LeaderEpoch, PartitionId

KEY_SIZE: Final = 32
BATCHES_PER_SALT_MAX: Final = 1 << 24
"""Batches under one derived key: at most 2**42 bytes, far below the bounds of AES-GCM."""
KEYS_HELD_MAX: Final = 64
"""Derived keys of other writers held for reading; deriving one again takes 5 us."""

_PARTITION_PURPOSE: Final = b"liftbridge partition key"
_BATCH_PURPOSE: Final = b"liftbridge batch key"
_BOUND: Final = slice(16, 32)
"""Partition id and leader epoch in the header of a batch."""
_WHOLE: Final = Struct(">4xI4xH2x16xqqI36x16s12sqq8xIII")
"""Fields that `frames_at` needs: of the header length, attributes, first and last offset, count;
then salt, nonce, first and last offset, count, bytes of the table and of the cipher text."""


def partition_key(data_key: bytes, partition_id: PartitionId) -> bytes:
    """Derive the key of a partition from the data key of its stream."""
    return _expand(data_key, _PARTITION_PURPOSE + partition_id.to_bytes(8, "big"))


def _expand(key: bytes, info: bytes) -> bytes:
    """Derive a key from a uniform one: HKDF-Expand (RFC 5869) with one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


class BatchCipher:
    """Cipher of one partition; locked while its key is not available.

    Args:
        partition_id: The partition; bound into its keys and batches.
        new_salt: Returns `SALT_SIZE` random bytes that were never returned before.
    """

    __slots__ = (
        "_count",
        "_error",
        "_key",
        "_keys",
        "_own",
        "_partition_id",
        "_salt",
        "new_salt",
    )

    def __init__(self, partition_id: PartitionId, new_salt: Callable[[], bytes]) -> None:
        """Start locked."""
        self._partition_id = partition_id
        self.new_salt = new_salt
        self._key = b""
        self._error: LiftbridgeError = KeyUnavailableError(
            "partition offline: the data key of its stream is not unwrapped yet"
        )
        self._keys: dict[bytes, AESGCM] = {}
        self._own: AESGCM | None = None
        self._salt = b""
        self._count = 0

    def unlock(self, key: bytes) -> None:
        """Use the key of the partition, the result of `partition_key`; it never changes."""
        assert len(key) == KEY_SIZE
        self._key = key

    def lock(self, error: LiftbridgeError) -> None:
        """Forget all keys; everything that needs them raises `error`."""
        self._error = error
        self._key = b""
        self._keys.clear()
        self._own = None

    @property
    def is_locked(self) -> bool:
        """Return whether the key is not available."""
        return not self._key

    @property
    def reason(self) -> str:
        """Why it is locked, if it is."""
        return str(self._error)

    @property
    def key(self) -> bytes:
        """The key of the partition, for the process that compacts; errors as for `check`."""
        self.check()
        return self._key

    def check(self) -> None:
        """Raise the error of the lock, if it is locked.

        Raises:
            KeyUnavailableError: The text names the master key that is needed.
        """
        if not self._key:
            raise self._error.with_traceback(None)

    def encrypt(
        self,
        frames: bytes,
        *,
        leader_epoch: LeaderEpoch,
        base_offset: int,
        last_offset: int,
        count: int,
        first_timestamp: int,
        table: bytes = b"",
    ) -> bytes:
        """Encrypt the frames of a batch; measured by tests/bench/bench_log.py.

        Args:
            frames: Whole frames in order.
            leader_epoch: Epoch in the header of the batch.
            base_offset: First offset of its range.
            last_offset: Last offset of its range, inclusive.
            count: Number of frames, at least one.
            first_timestamp: Timestamp of the first record.
            table: Result of `encode_table`, empty if the records have consecutive offsets and
                this timestamp.

        Returns:
            What follows the header, for `seal` with `ATTRIBUTE_ENCRYPTED`.

        Raises:
            KeyUnavailableError: It is locked.
        """
        key = self._own
        if key is None or self._count >= BATCHES_PER_SALT_MAX:
            self.check()
            self._salt, self._count = self.new_salt(), 0
            assert len(self._salt) == SALT_SIZE
            key = self._own = self._derive(self._salt)
        self._count += 1
        nonce = self._count.to_bytes(NONCE_SIZE, "big")
        head = CIPHER_HEAD.pack(
            self._salt,
            nonce,
            base_offset,
            last_offset,
            first_timestamp,
            count,
            len(table),
            len(frames) + TAG_SIZE,
        )
        clear = head + table
        bound = self._partition_id.to_bytes(8, "big") + leader_epoch.to_bytes(8, "big")
        return clear + key.encrypt(nonce, frames, bound + clear)

    def decrypt(self, batch: bytes, header: BatchHeader) -> bytes:
        """Return the frames in the range of a verified batch with records.

        Args:
            batch: The whole batch.
            header: Its header.

        Raises:
            CorruptionError: It is not encrypted, or was not encrypted as this batch of this
                partition, leader epoch and range.
            KeyUnavailableError: It is locked.
        """
        head = read_cipher_head(batch, header)
        key = self._keys.get(head.salt) or self._key_of(head.salt)
        start = head.cipher_start
        try:
            frames = key.decrypt(
                head.nonce, batch[start : header.size], batch[_BOUND] + batch[HEADER_SIZE:start]
            )
        except InvalidTag:
            raise _foreign(header.base_offset) from None
        if header.base_offset == head.base_offset and header.last_offset == head.last_offset:
            return frames
        inside = [
            (position, end)
            for position, end, offset in iter_frames(frames, 0, len(frames))
            if header.base_offset <= offset <= header.last_offset
        ]
        if len(inside) != header.count:
            raise CorruptionError("encrypted batch has another number of records than its header")
        return frames[inside[0][0] : inside[-1][1]]

    def frames_at(self, data: bytes, at: int) -> tuple[int, int, bytes]:
        """Decrypt the batch at a position of verified ones; one that was not cut takes one look.

        Measured by tests/bench/bench_log.py.

        Returns:
            The position after the batch, the number of its records, and their frames.

        Raises:
            CorruptionError: As for `decrypt`.
            KeyUnavailableError: It is locked.
        """
        if len(data) - at >= TABLE_START:
            length, attributes, base, last, count, salt, nonce, *sealed, table, size = (
                _WHOLE.unpack_from(data, at)
            )
            end, start = at + COVERED_START + length, at + TABLE_START + table
            is_whole = sealed == [base, last, count] and start + size == end and size > TAG_SIZE
            if is_whole and attributes & ATTRIBUTE_ENCRYPTED:
                key = self._keys.get(salt) or self._key_of(salt)
                bound = data[at + 16 : at + 32] + data[at + HEADER_SIZE : start]
                try:
                    return end, count, key.decrypt(nonce, data[start:end], bound)
                except InvalidTag:
                    raise _foreign(base) from None
        header = read_header(data, at)
        end = at + header.size
        frames = b"" if header.is_filler else self.decrypt(data[at:end], header)
        return end, header.count, frames

    def _key_of(self, salt: bytes) -> AESGCM:
        """Derive and keep the key of another writer."""
        self.check()
        if len(self._keys) >= KEYS_HELD_MAX:
            self._keys.clear()
        key = self._keys[salt] = self._derive(salt)
        return key

    def open_batch(self, batch: bytes) -> bytes:
        """Return a verified batch as an unencrypted one; a filler stays as it is.

        Raises:
            CorruptionError: As for `decrypt`.
            KeyUnavailableError: It is locked.
        """
        header = read_header(batch, 0)
        if header.is_filler:
            return batch
        return opened(header, self.decrypt(batch, header))

    def close_batch(self, batch: bytes) -> bytes:
        """Return an unencrypted batch as an encrypted one; a filler stays as it is.

        Raises:
            KeyUnavailableError: It is locked.
        """
        header = read_header(batch, 0)
        if header.is_filler:
            return batch
        times = frame_times(batch, HEADER_SIZE, header.size)
        body = self.encrypt(
            batch[HEADER_SIZE:],
            leader_epoch=header.leader_epoch,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            count=header.count,
            first_timestamp=header.first_timestamp,
            table=encode_table(times, header.base_offset, header.last_offset),
        )
        return _resealed(header, body, header.attributes | ATTRIBUTE_ENCRYPTED)

    def _derive(self, salt: bytes) -> AESGCM:
        """Derive the key of the writer with a salt."""
        return AESGCM(_expand(self._key, _BATCH_PURPOSE + salt))


def _foreign(offset: int) -> CorruptionError:
    return CorruptionError(
        f"batch at offset {offset} does not decrypt: it was changed, or encrypted for another "
        "place or with another key"
    )


def opened(header: BatchHeader, frames: bytes) -> bytes:
    """Return an unencrypted batch with the decrypted frames of an encrypted one, or a filler."""
    return _resealed(header, frames, header.attributes & ~ATTRIBUTE_ENCRYPTED)


def _resealed(header: BatchHeader, body: bytes, attributes: int) -> bytes:
    """Put a header with other attributes before another body of the same records."""
    return seal(
        frames=body,
        partition_id=header.partition_id,
        leader_epoch=header.leader_epoch,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        count=header.count,
        first_timestamp=header.first_timestamp,
        largest_timestamp=header.largest_timestamp,
        attributes=attributes,
        publisher_id=header.publisher_id,
        publisher_epoch=header.publisher_epoch,
        first_sequence=header.first_sequence,
    )
