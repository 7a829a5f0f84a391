"""Data keys of the encrypted streams with partitions here, unwrapped while their master key is.

The metadata hold the wrapped keys; this is soft state. A stream whose key cannot be unwrapped is
*locked*: its partitions refuse reads and writes, and replicate as before. The key is requested
again when the master keys change, when another wrapping is stored, and from time to time, because a
key service may be unavailable for a while.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import KeyUnavailableError, LiftbridgeError
from liftbridge_broker.logformat.cipher import KEY_SIZE, BatchCipher, partition_key
from liftbridge_broker.logformat.encryption import SALT_SIZE
from liftbridge_broker.model.ids import Instant, PartitionId, StreamId, stream_of
from liftbridge_broker.model.keys import DataKey, check_value
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.ports.master_keys import MasterKeys

RETRY_NS: Final = 15 * SECOND_NS
"""Time between two requests for the keys of locked streams."""


@dataclass(slots=True, eq=False)
class _Stream:
    """An encrypted stream with partitions here.

    Attributes:
        name: Its name.
        key: Its wrapped data key.
        ciphers: Ciphers of its partitions.
        data_key: The data key, empty while the stream is locked.
        reason: Why it is locked; empty before the first answer.
        request: Number of the last request; answers to earlier ones do not count.
        is_asking: Whether that request has no answer yet.
    """

    name: str
    key: DataKey
    ciphers: dict[PartitionId, BatchCipher] = field(default_factory=dict)
    data_key: bytes = field(default=b"", repr=False)
    reason: str = ""
    request: int = 0
    is_asking: bool = False


class DataKeys:
    """Data keys of one broker's encrypted streams.

    Args:
        masters: The master keys.
        transition: Reports streams that are locked and unlocked.
        arm: Looks up the next deadline.

    Attributes:
        on_locked: Called for each partition of a stream that is locked, with the error.
    """

    def __init__(
        self,
        masters: MasterKeys,
        transition: Callable[[str, Mapping[str, object]], None],
        arm: Callable[[], None],
    ) -> None:
        """Start without streams."""
        self.masters = masters
        self._transition = transition
        self._arm = arm
        self._streams: dict[StreamId, _Stream] = {}
        self._retry_at: Instant | None = None
        self._now = Instant(0)
        self.on_locked: Callable[[PartitionId, LiftbridgeError], None] = _ignore

    @property
    def locked_count(self) -> int:
        """Streams with partitions here that are locked."""
        return sum(not stream.data_key for stream in self._streams.values())

    def locked_partitions(self) -> Iterator[PartitionId]:
        """Yield the partitions here of locked streams."""
        for stream in self._streams.values():
            if not stream.data_key:
                yield from stream.ciphers

    def cipher(
        self, stream: StreamState, partition_id: PartitionId, now: Instant
    ) -> BatchCipher | None:
        """Return the cipher of a partition that is opened, until `release`.

        `None` for a stream that is not encrypted. The cipher may still be locked.
        """
        if stream.data_key is None:
            return None
        self._now = now
        held = self._streams.get(stream.stream_id)
        if held is None:
            held = self._streams[stream.stream_id] = _Stream(stream.name, stream.data_key)
            self._request(held)
        cipher = BatchCipher(partition_id, partial(self.masters.random, SALT_SIZE))
        held.ciphers[partition_id] = cipher
        if held.data_key:
            cipher.unlock(partition_key(held.data_key, partition_id))
        elif held.reason:
            cipher.lock(KeyUnavailableError(held.reason))
        return cipher

    def release(self, partition_id: PartitionId) -> None:
        """Forget a partition that was closed, and the data key after the last of its stream."""
        held = self._streams.get(stream_of(partition_id))
        if held is None:
            return
        held.ciphers.pop(partition_id, None)
        if not held.ciphers:
            held.request = -1
            del self._streams[stream_of(partition_id)]

    def on_key_set(self, stream: StreamState, now: Instant) -> None:
        """Take another wrapping of a data key."""
        held = self._streams.get(stream.stream_id)
        if held is not None and stream.data_key is not None and held.key != stream.data_key:
            self._now = now
            held.key = stream.data_key
            self._request(held)

    def renew(self, now: Instant) -> None:
        """Unwrap all keys again, because the master keys changed: some may be gone or be back."""
        self._now = now
        for held in list(self._streams.values()):
            self._request(held)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return self._retry_at

    def on_timer(self, now: Instant) -> None:
        """Request the keys of locked streams again if that is due."""
        self._now = now
        if self._retry_at is None or now < self._retry_at:
            return
        self._retry_at = None
        for held in list(self._streams.values()):
            if not held.data_key and not held.is_asking:
                self._request(held)

    def _request(self, held: _Stream) -> None:
        held.request += 1
        held.is_asking = True
        done = partial(self._answered, held, held.request)
        self.masters.unwrap(held.key.master_key, held.key.wrapped, held.name, done)

    def _answered(self, held: _Stream, request: int, outcome: bytes | LiftbridgeError) -> None:
        if request != held.request:
            return
        held.is_asking = False
        if isinstance(outcome, bytes):
            if len(outcome) == KEY_SIZE and check_value(outcome) == held.key.check:
                self._unlock(held, outcome)
                return
            reason = f"master key '{held.key.master_key}' unwraps another data key"
        else:
            reason = outcome.text
        self._lock(held, reason)

    def _unlock(self, held: _Stream, data_key: bytes) -> None:
        if held.reason:
            fields = {"stream": held.name, "master_key": held.key.master_key}
            self._transition("stream_unlocked", fields)
        held.data_key, held.reason = data_key, ""
        for partition_id, cipher in held.ciphers.items():
            cipher.unlock(partition_key(data_key, partition_id))

    def _lock(self, held: _Stream, reason: str) -> None:
        text = f"partition offline: stream {held.name} is locked: {reason}"
        if self._retry_at is None:
            self._retry_at = Instant(self._now + RETRY_NS)
            self._arm()
        held.data_key = b""
        if text == held.reason:
            return
        held.reason = text
        error = KeyUnavailableError(text)
        fields = {"stream": held.name, "master_key": held.key.master_key, "reason": reason}
        self._transition("stream_locked", fields)
        for partition_id, cipher in list(held.ciphers.items()):
            cipher.lock(error)
            self.on_locked(partition_id, error)


def _ignore(_partition: PartitionId, _error: LiftbridgeError) -> None:
    """Ignore the lock: no listener is set."""
