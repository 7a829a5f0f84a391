"""Failed attempts to prove an identity: a bounded number for each address and for all together.

Each has a bucket of attempts that fills up again at a steady rate. The table is bounded; beyond
that, the address that failed the longest ago is forgotten, and the bucket of all addresses still
bounds what the others may cost.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.model.units import SECOND_NS

ADDRESS_MAX: Final = 30
"""Failed attempts that an address has at once."""

ADDRESS_REFILL_NS: Final = 2 * SECOND_NS
"""Time after which an address gets one back: 30 in a minute."""

ALL_MAX: Final = 1_000
ALL_REFILL_NS: Final = SECOND_NS // 200
"""Time after which all together get one back: 200 in a second, some 20 ms of signatures."""

ADDRESSES_MAX: Final = 10_000
"""Addresses that are remembered."""


class _Bucket(NamedTuple):
    """Attempts left at a time."""

    left: int
    at: int


@dataclass(slots=True)
class FailedAttempts:
    """Counts failed attempts; times are nanoseconds of a monotonic clock."""

    _by_source: dict[str, _Bucket] = field(default_factory=dict)
    _all: _Bucket = field(default_factory=lambda: _Bucket(ALL_MAX, 0))

    def allow(self, source: str, now: int) -> bool:
        """Return whether an address may make an attempt."""
        bucket = self._by_source.get(source)
        if bucket is not None and not _refilled(bucket, now, ADDRESS_MAX, ADDRESS_REFILL_NS).left:
            return False
        return _refilled(self._all, now, ALL_MAX, ALL_REFILL_NS).left > 0

    def note(self, source: str, now: int) -> bool:
        """Count a failed attempt; return whether it was the last one that the address had."""
        before = self._by_source.pop(source, _Bucket(ADDRESS_MAX, now))
        bucket = _refilled(before, now, ADDRESS_MAX, ADDRESS_REFILL_NS)
        self._all = _spent(_refilled(self._all, now, ALL_MAX, ALL_REFILL_NS))
        while len(self._by_source) >= ADDRESSES_MAX:
            del self._by_source[next(iter(self._by_source))]
        self._by_source[source] = _spent(bucket)
        return bucket.left == 1


def _spent(bucket: _Bucket) -> _Bucket:
    return bucket._replace(left=max(0, bucket.left - 1))


def _refilled(bucket: _Bucket, now: int, most: int, refill_ns: int) -> _Bucket:
    """Return a bucket with what it got back until now."""
    gained = max(0, now - bucket.at) // refill_ns
    if bucket.left + gained >= most:
        return _Bucket(most, now)
    return _Bucket(bucket.left + gained, bucket.at + gained * refill_ns)
