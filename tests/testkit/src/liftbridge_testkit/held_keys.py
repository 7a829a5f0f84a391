"""Master keys of a broker in a test: keys that come and go, and a service that may be slow."""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from itertools import count

from liftbridge_broker.adapters.keys.local import LocalKeys
from liftbridge_broker.errors import KeyUnavailableError, LiftbridgeError
from liftbridge_broker.logformat.cipher import KEY_SIZE
from liftbridge_broker.model.keys import MasterKey
from liftbridge_broker.ports.master_keys import KeyDone

_NUMBERS = count()


def master(seed: int) -> bytes:
    """Return a master key."""
    return sha256(b"master %d" % seed).digest()


class HeldKeys:
    """Implements `ports.master_keys.MasterKeys`.

    Attributes:
        is_slow: Whether requests wait for `answer`.
        is_wrong: Whether `unwrap` returns another data key.
        count: Requests so far.
    """

    def __init__(self, **keys: bytes) -> None:
        self._local = LocalKeys(keys)
        self.is_slow = self.is_wrong = False
        self.count = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def known(self) -> tuple[MasterKey, ...]:
        """Ids and check values of the keys."""
        return self._local.known

    def set(self, keys: Mapping[str, bytes]) -> None:
        """Replace all keys."""
        self._local = LocalKeys(keys)

    def wrap(self, key_id: str, data_key: bytes, purpose: str, done: KeyDone) -> None:
        """Wrap a data key."""
        self._do(lambda: self._local.wrap(key_id, data_key, purpose), done)

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str, done: KeyDone) -> None:
        """Unwrap a data key."""
        found = self._local
        other = bytes(KEY_SIZE) if self.is_wrong else b""
        self._do(lambda: other or found.unwrap(key_id, wrapped, purpose), done)

    def random(self, size: int) -> bytes:
        """Return bytes that no call returned before, on any broker of this process."""
        return sha256(b"random %d" % next(_NUMBERS)).digest()[:size]

    def answer(self, *, newest_first: bool = False) -> None:
        """Answer all requests that wait, as was right when they were made."""
        waiting, self._waiting = self._waiting, []
        for answer in reversed(waiting) if newest_first else waiting:
            answer()

    def _do(self, act: Callable[[], bytes], done: KeyDone) -> None:
        self.count += 1

        try:
            outcome: bytes | LiftbridgeError = act()
        except KeyUnavailableError as error:
            outcome = error
        if self.is_slow:
            self._waiting.append(partial(done, outcome))
        else:
            done(outcome)
