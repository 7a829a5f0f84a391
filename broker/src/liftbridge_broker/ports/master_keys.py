"""Master keys: they wrap the data keys of encrypted streams; never given to the node itself."""

from collections.abc import Callable
from typing import Final, Protocol

from liftbridge_broker.errors import KeyUnavailableError, LiftbridgeError
from liftbridge_broker.model.keys import MasterKey

KeyDone = Callable[[bytes | LiftbridgeError], None]
"""Gets the result or a `KeyUnavailableError`: at once, or in a later turn."""


class MasterKeys(Protocol):
    """Master keys of one broker, in its memory or in a service that it asks."""

    @property
    def known(self) -> tuple[MasterKey, ...]:
        """All master keys; the first wraps data keys until the cluster has chosen one."""
        ...

    def wrap(self, key_id: str, data_key: bytes, purpose: str, done: KeyDone) -> None:
        """Wrap a data key.

        Args:
            key_id: Id of the master key.
            data_key: The data key.
            purpose: Text that `unwrap` must repeat: the name of the stream.
            done: Gets at most `WRAPPED_BYTES_MAX` bytes.
        """
        ...

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str, done: KeyDone) -> None:
        """Return the data key that `wrap` wrapped; arguments as there."""
        ...

    def random(self, size: int) -> bytes:
        """Return bytes from a cryptographic source."""
        ...


def missing(key_id: str) -> KeyUnavailableError:
    """Return the error for a master key that the broker does not have."""
    return KeyUnavailableError(f"master key '{key_id}' is not configured on this broker")


class NoMasterKeys:
    """Master keys of a broker that has none."""

    known: tuple[MasterKey, ...] = ()

    def wrap(self, key_id: str, data_key: bytes, purpose: str, done: KeyDone) -> None:
        """Refuse."""
        del data_key, purpose
        done(missing(key_id))

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str, done: KeyDone) -> None:
        """Refuse."""
        del wrapped, purpose
        done(missing(key_id))

    def random(self, size: int) -> bytes:
        """Never called: nothing is encrypted without a key."""
        raise AssertionError(size)


NO_MASTER_KEYS: Final = NoMasterKeys()
