"""Master keys of a simulated broker: in memory, and the same at each start of its process."""

from collections.abc import Mapping
from hashlib import sha256
from random import Random
from typing import Final

from liftbridge_broker.model.keys import MasterKey, check_value
from liftbridge_broker.ports.master_keys import KeyDone, missing

MASTER_KEYS: Final[Mapping[str, bytes]] = {
    name: sha256(name.encode()).digest() for name in ("k1", "k2")
}
"""All master keys of a cluster."""


class SimMasterKeys:
    """Implements `ports.master_keys.MasterKeys`, without chance from outside.

    Attributes:
        keys: The keys that this broker has now.
    """

    def __init__(self, random: Random) -> None:
        self.keys: Mapping[str, bytes] = MASTER_KEYS
        self._random = random

    @property
    def known(self) -> tuple[MasterKey, ...]:
        """Ids and check values of the keys."""
        return tuple(MasterKey(key_id, check_value(key)) for key_id, key in self.keys.items())

    def wrap(self, key_id: str, data_key: bytes, purpose: str, done: KeyDone) -> None:
        """Wrap a data key; also unwraps it."""
        key = self.keys.get(key_id)
        if key is None:
            done(missing(key_id))
            return
        pad = sha256(key + purpose.encode()).digest()
        done(bytes(one ^ other for one, other in zip(data_key, pad, strict=True)))

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str, done: KeyDone) -> None:
        """Unwrap a data key."""
        self.wrap(key_id, wrapped, purpose, done)

    def random(self, size: int) -> bytes:
        """Return bytes that are the same in each run of a seed."""
        return self._random.randbytes(size)
