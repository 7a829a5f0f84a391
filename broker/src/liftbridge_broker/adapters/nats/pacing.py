"""Bounds how many of the received messages are delivered in one turn of the loop.

A read of a socket is up to 256 KiB, and a turn of uvloop up to 32 of them: enough messages for
seconds of work. So each message has a weight, about the microseconds that storing it takes, and
messages beyond the weight of a turn wait for later turns, in order, while nothing more is read. A
call at the start of each turn would wake the loop just for that, so the budget grows with time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.wire.envelope import MAGIC, has_envelope

TURN_WEIGHT_MAX: Final = 12_000
"""Weight of the messages of a turn; the last message may weigh as much as 1,000 headers."""

PLAIN_WEIGHT: Final = 1
"""Weight of a message like the previous message, on the same subject and without headers."""

PEER_WEIGHT: Final = 50
"""Weight of a frame of another broker, or a forged frame: its signature is checked."""

ENVELOPE_WEIGHT: Final = 25
"""Weight of a message in an envelope, which is decoded and may request an ack."""

RUN_WEIGHT: Final = 120
"""Weight of a message unlike the previous message: it ends the run that is appended together."""

REFILL_NS: Final = 4_000
"""Time in which the budget grows by one, which is the work of about a microsecond."""

HEADER_WEIGHT: Final = 1
"""Weight of a header of a message."""

WEIGHT_BYTES: Final = 256
"""Number of bytes with weight one: they are copied, checksummed and written."""

_HEADER_TAG: Final = b"\x4a"
"""Field `headers` of `proto.Message`; other bytes may equal it, which increases a weight."""

_LINE_END: Final = b"\r\n"

Deliver = Callable[[SubscriptionId, list[Arrival], list[bytes]], None]
_Delivery = tuple[SubscriptionId, list[Arrival], list[bytes]]


class Pacer:
    """Delivers messages in order of arrival, a bounded number in each turn of the loop.

    Args:
        deliver: Receives messages of a subscription.
        call_soon: Schedules a function for the next turn.
        pause: Pauses reading from the socket.
        resume: Resumes reading.
        on_fault: Receives exceptions of `deliver` from later turns.
        plain_weight: Weight of a message like the previous message.
        now_ns: Monotonic clock.
    """

    def __init__(
        self,
        deliver: Deliver,
        call_soon: Callable[[Callable[[], None]], object],
        pause: Callable[[], None],
        resume: Callable[[], None],
        on_fault: Callable[[Exception], None],
        *,
        plain_weight: int = PLAIN_WEIGHT,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._deliver = deliver
        self._call_soon = call_soon
        self._pause = pause
        self._resume = resume
        self._on_fault = on_fault
        self._plain_weight = plain_weight
        self._now_ns = now_ns
        self._left = TURN_WEIGHT_MAX
        self._left_at = now_ns()
        self._on_idle: Callable[[], None] | None = None
        self._waiting: deque[_Delivery] = deque()

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` once no message waits for a later turn; for one caller."""
        if self._waiting:
            self._on_idle = done
        else:
            done()

    def take(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Deliver messages: as many as the turn allows now, the rest later."""
        one = (subscription, arrivals, payloads)
        if self._waiting:
            self._waiting.append(one)
            self._pause()  # a connection established since then reads
            return
        now = self._now_ns()
        grown = self._left + (now - self._left_at) // REFILL_NS
        self._left, self._left_at = min(grown, TURN_WEIGHT_MAX), now
        rest = self._hand_on(one) if self._left > 0 else one
        if rest is not None:
            self._waiting.append(rest)
            self._pause()
            self._call_soon(self._next)

    def _next(self) -> None:
        """Deliver waiting messages, in a separate turn."""
        self._left = TURN_WEIGHT_MAX
        try:
            self._go()
        except Exception as error:  # noqa: BLE001 - no caller; the owner fails
            self._waiting.clear()
            self._on_fault(error)
        self._left_at = self._now_ns()
        if self._waiting:
            self._call_soon(self._next)
            return
        self._resume()
        if self._on_idle is not None:
            self._on_idle()
            self._on_idle = None

    def _go(self) -> None:
        """Deliver as many messages as the turn still allows."""
        waiting = self._waiting
        while waiting and self._left > 0:
            rest = self._hand_on(waiting[0])
            if rest is None:
                waiting.popleft()
            else:
                waiting[0] = rest

    def _hand_on(self, one: _Delivery) -> _Delivery | None:
        """Deliver as much of a delivery as the turn still allows; return the rest."""
        subscription, arrivals, payloads = one
        count, weight = fitting(arrivals, payloads, self._left, self._plain_weight)
        self._left -= weight
        if count == len(payloads):
            self._deliver(subscription, arrivals, payloads)
            return None
        self._deliver(subscription, arrivals[:count], payloads[:count])
        return subscription, arrivals[count:], payloads[count:]


def fitting(
    arrivals: list[Arrival], payloads: list[bytes], left: int, plain_weight: int
) -> tuple[int, int]:
    """Return the number of messages that fit the remaining weight, at least one, and their weight.

    Nearly all are plain and alike: these are counted in C (benchmark `bench_nats.py::parse`).
    """
    first = arrivals[0]
    is_plain = not first.headers and arrivals.count(first) == len(arrivals)
    if is_plain and not has_envelope(payloads):
        each = plain_weight + sum(map(len, payloads)) / WEIGHT_BYTES / len(payloads)
        count = min(len(payloads), max(1, int((left - RUN_WEIGHT) / each)))
        return count, RUN_WEIGHT + int(count * each)
    total = 0
    for count, weight in enumerate(_weights(arrivals, payloads, plain_weight), start=1):
        total += weight
        if total >= left:
            return count, total
    return len(payloads), total


def _weights(arrivals: list[Arrival], payloads: list[bytes], plain_weight: int) -> Iterator[int]:
    before: Arrival | None = None
    for arrival, payload in zip(arrivals, payloads, strict=True):
        weight = plain_weight
        if arrival.headers or (arrival is not before and arrival != before):
            weight = RUN_WEIGHT + HEADER_WEIGHT * arrival.headers.count(_LINE_END)
        if payload.startswith(MAGIC):
            weight += ENVELOPE_WEIGHT + HEADER_WEIGHT * payload.count(_HEADER_TAG)
        yield weight + len(payload) // WEIGHT_BYTES
        before = arrival
