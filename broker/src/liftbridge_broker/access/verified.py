"""Bearer tokens that were verified: their identities by a keyed hash of the token.

The table holds no token: a copy of this memory is useless without the key, which is random and
lives as long as the process. It is bounded; beyond that, the token unused the longest is forgotten
and must be verified again.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from liftbridge_broker.access.identities import Identity
from liftbridge_broker.model.units import HOUR_NS

VERIFIED_MAX: Final = 10_000
VERIFIED_NS: Final = HOUR_NS
"""Time after which a token must be verified again."""

KEY_BYTES: Final = 32


@dataclass(slots=True)
class VerifiedTokens:
    """Identities of tokens.

    Attributes:
        key: `KEY_BYTES` random bytes.
    """

    key: bytes = field(repr=False)
    _known: dict[bytes, tuple[Identity, int]] = field(default_factory=dict, repr=False)

    def digest(self, token: bytes) -> bytes:
        """Return the name of a token in this table."""
        return blake2b(token, key=self.key, digest_size=16).digest()

    def find(self, digest: bytes, now: int) -> Identity | None:
        """Return the identity of a verified token; `now` is nanoseconds of a monotonic clock."""
        known = self._known.pop(digest, None)
        if known is None or known[1] <= now:
            return None
        self._known[digest] = known  # last: the first is the longest unused
        return known[0]

    def add(self, digest: bytes, identity: Identity, now: int) -> None:
        """Remember a token that was verified."""
        self._known.pop(digest, None)
        while len(self._known) >= VERIFIED_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = (identity, now + VERIFIED_NS)

    def clear(self) -> None:
        """Forget all tokens."""
        self._known.clear()
