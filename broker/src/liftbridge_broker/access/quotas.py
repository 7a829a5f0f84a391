"""Quotas of principals and streams, and the rates that they allow (cf. Kafka's KIP-13, KIP-55).

Rates hold for each broker by itself, as in Kafka. A message that is above a rate is not refused: it
is a debt, and its client is slowed down until the debt is paid. Only a client that publishes on
through many calls at once, and so is in debt by more than `DEBT_NS_MAX`, is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from liftbridge_broker.errors import LimitError
from liftbridge_broker.model.units import SECOND_NS

EVERY_PRINCIPAL: Final = "*"
"""Name of the quota of each principal that has none of its own; anonymous callers count as one."""

DEBT_NS_MAX: Final = 10 * SECOND_NS
"""Time that a client may owe before its next message is refused."""

BUCKETS_MAX: Final = 20_000
"""Rates that are remembered; beyond it, the one unused for the longest is forgotten."""


class QuotaKind(StrEnum):
    """What a quota limits."""

    PRINCIPAL = "principal"
    STREAM = "stream"


class QuotaKey(NamedTuple):
    """Identifies a quota."""

    kind: QuotaKind
    name: str

    def __str__(self) -> str:
        """Return it in words, such as `principal billing`."""
        return f"{self.kind} {self.name}"


class Quota(NamedTuple):
    """Limits; 0 is none.

    Attributes:
        publish_bytes: Bytes of publishing requests in a second through one broker.
        publish_messages: Messages published in a second through one broker.
        read_bytes: Bytes sent to readers in a second by one broker.
        read_messages: Messages sent to readers in a second by one broker.
        subscriptions: Subscriptions and bulk reads open at one broker; of a principal only.
        streams: Streams that exist and were created by the principal; of a principal only.
        stored_bytes: Bytes of each partition, beyond which it takes no messages; of a stream only.
    """

    publish_bytes: int = 0
    publish_messages: int = 0
    read_bytes: int = 0
    read_messages: int = 0
    subscriptions: int = 0
    streams: int = 0
    stored_bytes: int = 0


NO_QUOTA: Final = Quota()
OF_PRINCIPALS: Final = ("subscriptions", "streams")
OF_STREAMS: Final = ("stored_bytes",)

Quotas = Mapping[QuotaKey, Quota]


def quota_of(quotas: Quotas, principal: str) -> Quota:
    """Return the quota of a principal: its own, or that of every principal."""
    own = quotas.get(QuotaKey(QuotaKind.PRINCIPAL, principal))
    if own is None:
        own = quotas.get(QuotaKey(QuotaKind.PRINCIPAL, EVERY_PRINCIPAL), NO_QUOTA)
    return own


class Direction(StrEnum):
    """Way of a message."""

    PUBLISH = "publish"
    READ = "read"


class _BucketKey(NamedTuple):
    owner: QuotaKey
    direction: Direction


@dataclass(slots=True)
class _Bucket:
    """A leaky bucket: the time at which everything taken so far is paid for.

    A rate may be exceeded for a second before a debt begins, because clients send in batches.

    Attributes:
        paid_at: That time.
        per_second: Rate by which it was computed; 0 before the first.
    """

    paid_at: int
    per_second: int = 0

    def renew(self, per_second: int, now: int) -> None:
        """Use a rate from now on: a debt is of units, so that a larger rate pays it sooner."""
        if per_second != self.per_second:
            owed_ns = max(0, self.paid_at - now)
            if owed_ns:
                self.paid_at = now
                if per_second:
                    self.paid_at += owed_ns * self.per_second // per_second
            self.per_second = per_second

    def take(self, units: int, per_second: int, now: int) -> int:
        """Take units; return the resulting debt in nanoseconds, 0 for none."""
        start = max(self.paid_at, now - SECOND_NS)
        self.paid_at = start + units * SECOND_NS // per_second
        return max(0, self.paid_at - now)


@dataclass(slots=True)
class _Buckets:
    """What one owner takes in one direction."""

    of_bytes: _Bucket
    of_messages: _Bucket

    def renew(self, per_second: tuple[int, int], now: int) -> None:
        """Use the rates of bytes and messages from now on."""
        self.of_bytes.renew(per_second[0], now)
        self.of_messages.renew(per_second[1], now)

    def debt(self, now: int) -> int:
        """Return the larger debt, nanoseconds."""
        return max(0, max(self.of_bytes.paid_at, self.of_messages.paid_at) - now)


class Charge(NamedTuple):
    """Outcome of a charge: how long its client must wait, and for whose quota; 0 for no wait."""

    delay_ns: int = 0
    kind: QuotaKind = QuotaKind.PRINCIPAL


NO_CHARGE: Final = Charge()


@dataclass(slots=True)
class Rates:
    """Rates of all principals and streams at one broker; times are monotonic nanoseconds."""

    _buckets: dict[_BucketKey, _Buckets] = field(default_factory=dict)

    def charge(
        self,
        quotas: Quotas,
        principal: str,
        stream: str,
        direction: Direction,
        *,
        messages: int,
        size: int,
        now: int,
    ) -> Charge:
        """Charge messages to their principal and stream; return the longer wait."""
        charge = NO_CHARGE
        for owner, quota in _owners(quotas, principal, stream):
            per_second = _rates_of(quota, direction)
            if not any(per_second):
                continue
            buckets = self._of(_BucketKey(owner, direction), now)
            buckets.renew(per_second, now)
            debt = 0
            if per_second[0]:
                debt = buckets.of_bytes.take(size, per_second[0], now)
            if per_second[1]:
                debt = max(debt, buckets.of_messages.take(messages, per_second[1], now))
            if debt > charge.delay_ns:
                charge = Charge(debt, owner.kind)
        return charge

    def check(
        self, quotas: Quotas, principal: str, stream: str, direction: Direction, now: int
    ) -> None:
        """Refuse what comes beyond the longest debt.

        Raises:
            LimitError: The principal or the stream is in debt by more than `DEBT_NS_MAX`.
        """
        for owner, quota in _owners(quotas, principal, stream):
            buckets = self._buckets.get(_BucketKey(owner, direction))
            per_second = _rates_of(quota, direction)
            if buckets is None or not any(per_second):
                continue
            buckets.renew(per_second, now)
            debt = buckets.debt(now)
            if debt > DEBT_NS_MAX:
                raise LimitError(
                    f"quota of {owner} exceeded: {_text(quota, direction)}, "
                    f"{debt // SECOND_NS} s ahead; {direction} more slowly or get a larger quota"
                )

    def owed(
        self, quotas: Quotas, principal: str, stream: str, direction: Direction, now: int
    ) -> int:
        """Return the larger debt of a principal and a stream under their present quotas."""
        owed = 0
        for owner, quota in _owners(quotas, principal, stream):
            buckets = self._buckets.get(_BucketKey(owner, direction))
            if buckets is not None:
                buckets.renew(_rates_of(quota, direction), now)
                owed = max(owed, buckets.debt(now))
        return owed

    def bytes_at_once(self, quotas: Quotas, principal: str, stream: str, bytes_max: int) -> int:
        """Return how many bytes to send to a reader at once: those of a second at most."""
        for _, quota in _owners(quotas, principal, stream):
            bytes_max = min(bytes_max, quota.read_bytes or bytes_max)
        return bytes_max

    def debt_of(self, quotas: Quotas, principal: str, direction: Direction, now: int) -> int:
        """Return the debt of a principal by its own rates, nanoseconds."""
        owner = QuotaKey(QuotaKind.PRINCIPAL, principal)
        buckets = self._buckets.get(_BucketKey(owner, direction))
        if buckets is None:
            return 0
        buckets.renew(_rates_of(quota_of(quotas, principal), direction), now)
        return buckets.debt(now)

    def _of(self, key: _BucketKey, now: int) -> _Buckets:
        """Return the buckets of an owner, which become the last used ones."""
        buckets = self._buckets.pop(key, None)
        if buckets is None:
            while len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            start = now - SECOND_NS
            buckets = _Buckets(_Bucket(start), _Bucket(start))
        self._buckets[key] = buckets
        return buckets


def _owners(quotas: Quotas, principal: str, stream: str) -> tuple[tuple[QuotaKey, Quota], ...]:
    """Return whose quotas a message counts for: its principal's and its stream's."""
    of_stream = QuotaKey(QuotaKind.STREAM, stream)
    return (
        (QuotaKey(QuotaKind.PRINCIPAL, principal), quota_of(quotas, principal)),
        (of_stream, quotas.get(of_stream, NO_QUOTA)),
    )


def _rates_of(quota: Quota, direction: Direction) -> tuple[int, int]:
    """Return bytes and messages a second; 0 for no limit."""
    if direction is Direction.PUBLISH:
        return quota.publish_bytes, quota.publish_messages
    return quota.read_bytes, quota.read_messages


def _text(quota: Quota, direction: Direction) -> str:
    units = ("bytes", "messages")
    rates = zip(_rates_of(quota, direction), units, strict=True)
    return " and ".join(f"{rate} {unit}/s" for rate, unit in rates if rate)
