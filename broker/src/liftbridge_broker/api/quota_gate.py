"""Applies the quotas of the cluster to the calls at one broker.

A client above a rate is slowed down: its publishing calls are read no further, the ack of a single
message comes later, and a reader gets nothing more, until the debt is paid.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from liftbridge_broker.access.quotas import (
    NO_CHARGE,
    Charge,
    Direction,
    Quota,
    QuotaKind,
    Quotas,
    Rates,
    quota_of,
)
from liftbridge_broker.errors import LimitError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS

LOOK_NS: Final = 5 * SECOND_NS
"""Time after which a waiting client notices that its quota has changed."""

Counts = Counter[tuple[str, ...]]


class QuotaGate:
    """Charges messages and subscriptions to principals and streams.

    Attributes:
        delays_ns: Time that clients had to wait, by kind of quota and direction.
        refusal_counts: Requests that were refused, by kind of quota and direction.
    """

    def __init__(self, quotas: Callable[[], Quotas], now: Callable[[], Instant]) -> None:
        """Start without debts."""
        self._quotas = quotas
        self._now = now
        self._rates = Rates()
        self._subscriptions: Counter[str] = Counter()
        self.delays_ns: Counts = Counter()
        self.refusal_counts: Counts = Counter()

    def publish(self, principal: str, stream: str, *, messages: int, sizes: Iterable[int]) -> int:
        """Charge messages before they are stored; return how long to wait, nanoseconds.

        Args:
            principal: Who publishes.
            stream: To which stream; empty if that is not known.
            messages: Number of messages.
            sizes: Bytes of their requests; not looked at without quotas.

        Raises:
            LimitError: The principal or the stream is too deep in debt; nothing may be stored.
        """
        quotas = self._quotas()
        if not quotas:
            return 0
        now = self._now()
        try:
            self._rates.check(quotas, principal, stream, Direction.PUBLISH, now)  # guard Quota.debt
        except LimitError:
            self.refusal_counts[Direction.PUBLISH,] += messages
            raise
        size = sum(sizes)
        return self._charge(quotas, principal, stream, Direction.PUBLISH, messages, size, now)

    def read(self, principal: str, stream: str, *, messages: int, sizes: Iterable[int]) -> int:
        """Charge messages that were sent to a reader; return how long to wait, nanoseconds.

        Args:
            principal: Who reads.
            stream: From which stream.
            messages: Number of messages.
            sizes: Bytes that were sent; not looked at without quotas.
        """
        quotas = self._quotas()
        if not quotas:
            return 0
        now, size = self._now(), sum(sizes)
        return self._charge(quotas, principal, stream, Direction.READ, messages, size, now)

    def bytes_at_once(self, principal: str, stream: str, bytes_max: int) -> int:
        """Return how many bytes a reader may get at once, at most `bytes_max`."""
        quotas = self._quotas()
        if not quotas:
            return bytes_max
        return self._rates.bytes_at_once(quotas, principal, stream, bytes_max)

    def _charge(
        self,
        quotas: Quotas,
        principal: str,
        stream: str,
        direction: Direction,
        messages: int,
        size: int,
        now: Instant,
    ) -> int:
        charge: Charge = self._rates.charge(
            quotas, principal, stream, direction, messages=messages, size=size, now=now
        )
        if charge is not NO_CHARGE:
            self.delays_ns[charge.kind, direction] += charge.delay_ns
        return charge.delay_ns

    def owed(self, principal: str, stream: str, direction: Direction) -> int:
        """Return how long a client must still wait under its present quotas, nanoseconds."""
        return self._rates.owed(self._quotas(), principal, stream, direction, self._now())

    def take_subscription(self, principal: str, weight: int = 1) -> None:
        """Count a subscription; `release_subscription` must follow.

        Raises:
            LimitError: The principal has as many open as its quota allows.
        """
        quotas = self._quotas()
        most = quota_of(quotas, principal).subscriptions if quotas else 0
        count = self._subscriptions[principal]
        if most and count + weight > most:  # guard Quota.subscriptions
            self.refusal_counts[Direction.READ,] += 1
            raise LimitError(
                f"quota of {QuotaKind.PRINCIPAL} {principal or '(anonymous)'} exceeded: {count} "
                f"subscriptions are open at this broker, at most {most} are allowed; close one or "
                "get a larger quota"
            )
        self._subscriptions[principal] += weight

    def release_subscription(self, principal: str, weight: int = 1) -> None:
        """Count a subscription that was closed."""
        self._subscriptions[principal] -= weight
        if not self._subscriptions[principal]:
            del self._subscriptions[principal]

    def quota_of(self, principal: str) -> Quota:
        """Return the quota of a principal."""
        return quota_of(self._quotas(), principal)

    def subscriptions_of(self, principal: str) -> int:
        """Return how many subscriptions a principal has open here."""
        return self._subscriptions.get(principal, 0)

    def debt_of(self, principal: str, direction: Direction) -> int:
        """Return the debt of a principal by its own rates, nanoseconds."""
        return self._rates.debt_of(self._quotas(), principal, direction, self._now())
