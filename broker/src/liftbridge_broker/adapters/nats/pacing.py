"""Bounds how much of the received messages is delivered in one turn of the loop.

A turn of uvloop reads a socket up to 32 times: enough messages for a second of work. So messages
are delivered in slices, each of which costs its weight (about the microseconds that storing it
takes) or the microseconds that it took, whichever is more. Messages beyond the budget of a turn
wait for later turns, in order, while nothing more is read. A call at the start of each turn would
wake the loop just for that, so between slices the budget grows with time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.model.units import MICROSECOND_NS
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.wire.envelope import MAGIC, has_envelope

TURN_WEIGHT_MAX: Final = 6_000
"""Budget of a turn; the last slice may end later, and its last message may have 1,000 headers.

A turn may spend three: for messages of clients, for acks, and for frames of brokers.
"""

SLICE_WEIGHT_MAX: Final = 3_000
"""Weight of a slice, after which the time is charged; small enough for the end of a turn."""

SLICE_MESSAGES_MAX: Final = 1_024
"""Messages of a slice, fewer after a slice that took longer than it weighs.

A partition below its min ISR, for example, appends each message by itself.
"""

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

WEIGHT_BYTES: Final = 1_024
"""Number of bytes with weight one: they are copied, checksummed and written."""

_HEADER_TAG: Final = b"\x4a"
"""Field `headers` of `proto.Message`; other bytes may equal it, which increases a weight."""

_LINE_END: Final = b"\r\n"


Deliver = Callable[[SubscriptionId, list[Arrival], list[bytes]], None]
_Delivery = tuple[SubscriptionId, list[Arrival], list[bytes]]


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class TurnBudget:
    """What deliveries may cost in a turn of the loop, for one link or several.

    Args:
        call_soon: Schedules a function for the next turn.
        now_ns: Monotonic clock.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object] = _call_soon,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._left = TURN_WEIGHT_MAX
        self._left_at = now_ns()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_called = False

    def left(self) -> int:
        """Return the rest of the budget, with its growth since the last call."""
        now = self._now_ns()
        self._left = min(self._left + (now - self._left_at) // REFILL_NS, TURN_WEIGHT_MAX)
        self._left_at = now
        return self._left

    def charge(self, weight: int) -> int:
        """Charge the delivery since the last call of `left`; return its microseconds."""
        now = self._now_ns()
        took_us = (now - self._left_at) // MICROSECOND_NS
        self._left -= max(weight, took_us)
        self._left_at = now
        return took_us

    def wait(self, go: Callable[[], None]) -> None:
        """Call `go` in a later turn, after all that wait already."""
        self._waiting.append(go)
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._next)

    def _next(self) -> None:
        """Call all that wait, in a separate turn, as long as its budget lasts."""
        self._left, self._left_at = TURN_WEIGHT_MAX, self._now_ns()
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self._left <= 0:
                break
        self._is_called = bool(self._waiting)
        if self._waiting:
            self._call_soon(self._next)


class Pacer:
    """Delivers messages in order of arrival, a bounded number in each turn of the loop.

    Args:
        budget: Budget of a turn.
        deliver: Receives messages of a subscription.
        pause: Pauses reading from the socket.
        resume: Resumes reading.
        on_fault: Receives exceptions of `deliver` from later turns.
        plain_weight: Weight of a message like the previous message.
    """

    def __init__(
        self,
        budget: TurnBudget,
        deliver: Deliver,
        pause: Callable[[], None],
        resume: Callable[[], None],
        on_fault: Callable[[Exception], None],
        *,
        plain_weight: int = PLAIN_WEIGHT,
    ) -> None:
        self._budget = budget
        self._deliver = deliver
        self._pause = pause
        self._resume = resume
        self._on_fault = on_fault
        self._plain_weight = plain_weight
        self._on_idle: Callable[[], None] | None = None
        self._waiting: deque[_Delivery] = deque()
        self._count_max = SLICE_MESSAGES_MAX

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
        rest = self._hand_on(one)
        if rest is not None:
            self._waiting.append(rest)
            self._pause()
            self._budget.wait(self._next)

    def _next(self) -> None:
        """Deliver waiting messages, as many as the turn allows."""
        waiting = self._waiting
        try:
            while waiting:
                rest = self._hand_on(waiting[0])
                if rest is not None:
                    waiting[0] = rest
                    break
                waiting.popleft()
        except Exception as error:  # noqa: BLE001 - no caller; the owner fails
            waiting.clear()
            self._on_fault(error)
        if waiting:
            self._budget.wait(self._next)
            return
        self._resume()
        if self._on_idle is not None:
            self._on_idle()
            self._on_idle = None

    def _hand_on(self, one: _Delivery) -> _Delivery | None:
        """Deliver slices as long as the budget lasts; return the rest."""
        subscription, arrivals, payloads = one
        budget = self._budget
        while budget.left() > 0:
            fit, weight = fitting(arrivals, payloads, SLICE_WEIGHT_MAX, self._plain_weight)
            count = min(fit, self._count_max)
            is_last = count == len(payloads)
            if is_last:
                self._deliver(subscription, arrivals, payloads)
            else:
                self._deliver(subscription, arrivals[:count], payloads[:count])
            took_us = budget.charge(weight * count // fit)
            if took_us > SLICE_WEIGHT_MAX:  # the next messages probably take as long as these
                self._count_max = max(SLICE_WEIGHT_MAX * count // took_us, 1)
            elif took_us <= SLICE_WEIGHT_MAX // 2:
                self._count_max = min(2 * self._count_max, SLICE_MESSAGES_MAX)
            if is_last:
                return None
            arrivals, payloads = arrivals[count:], payloads[count:]
        return subscription, arrivals, payloads


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
