"""Deadlines of very many calls: each ends at its time, and time costs by what is due."""

import random

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import DeadlineExpired, Event, MessageRefused
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.http2_peer import GRPC_FIELDS, PATH, Duel
from liftbridge_testkit.lines import Lines

MILLISECOND_NS = 1_000_000
MESSAGE_MS = 7
LINES_A_STREAM = 40
STREAMS_MAX = 2_000


def open_with_timeout(duel: Duel, stream_id: int, milliseconds: int) -> None:
    """Open a call with a deadline."""
    more = (*GRPC_FIELDS, ("grpc-timeout", f"{milliseconds}m"))
    duel.receive(duel.peer.request(stream_id, PATH, more=more))


def at_next_deadline(duel: Duel, lines: Lines) -> list[Event]:
    """What the next look at the clock brings about."""
    duel.now = max(duel.now, duel.core.next_deadline())
    with lines:
        return duel.core.on_time(duel.now)


def test_deadline_of_one_call_costs_nothing_for_the_others() -> None:
    duel, lines = Duel(Limits(streams_max=STREAMS_MAX, keepalive_ns=0)), Lines()
    for number in range(STREAMS_MAX):
        open_with_timeout(duel, 2 * number + 1, 1_000 + number)
    for number in range(30):
        assert at_next_deadline(duel, lines) == [DeadlineExpired(2 * number + 1)]
    assert lines.most <= 5 * LINES_A_STREAM


def test_deadlines_that_are_due_together_are_told_of_in_parts() -> None:
    duel, lines = Duel(Limits(streams_max=STREAMS_MAX, keepalive_ns=0)), Lines()
    for number in range(STREAMS_MAX):
        open_with_timeout(duel, 2 * number + 1, 1_000)
    told: list[Event] = []
    while len(told) < STREAMS_MAX:
        told += at_next_deadline(duel, lines)
    assert told == [DeadlineExpired(2 * number + 1) for number in range(STREAMS_MAX)]
    assert lines.most <= 256 * LINES_A_STREAM


@pytest.mark.parametrize("is_finished", [True, False])
def test_nothing_is_kept_of_calls_that_have_ended(is_finished: bool) -> None:
    duel = Duel(Limits(keepalive_ns=0))
    for number in range(1_500):
        stream_id = 2 * number + 1
        open_with_timeout(duel, stream_id, 3_600_000)
        if is_finished:
            duel.core.finish(stream_id, 0, "")
        else:
            duel.now += 10 * MILLISECOND_NS
            duel.receive(frames.rst_stream_frame(stream_id, 8))
        duel.sent()
    assert len(duel.core._table.deadlines.entries) <= 100


def test_nothing_is_kept_of_messages_that_are_complete() -> None:
    duel = Duel(Limits(keepalive_ns=0))
    duel.open(1)
    for _ in range(1_000):
        duel.now += MILLISECOND_NS
        duel.receive(duel.peer.data(1, b"\0\0\0\0\2a"), duel.peer.data(1, b"b"))
    assert len(duel.core._table.deadlines.entries) <= 100


class Life:
    """A connection with calls, and what is due of them when, looked up one by one."""

    def __init__(self, seed: int) -> None:
        limits = Limits(message_ns=MESSAGE_MS * MILLISECOND_NS, keepalive_ns=0, streams_max=30)
        self.rng = random.Random(seed)
        self.duel = Duel(limits)
        self.now_ms = 0
        self.next_id = 1
        self.calls: set[int] = set()
        self.begun: set[int] = set()
        self.awaited: set[int] = set()
        self.call_ms: dict[int, int] = {}
        self.message_ms: dict[int, int] = {}

    def one(self, of: set[int]) -> int:
        return self.rng.choice(sorted(of)) if of else 0

    def opens(self) -> None:
        if len(self.calls) == 30:
            return
        timeout = self.rng.choice((0, 1, 2, 5, 20, 50))
        if timeout:
            open_with_timeout(self.duel, self.next_id, timeout)
            self.call_ms[self.next_id] = self.now_ms + timeout
        else:
            self.duel.open(self.next_id)
        self.calls.add(self.next_id)
        self.next_id += 2

    def begins(self) -> None:
        if one := self.one(self.calls - self.begun):
            self.duel.receive(self.duel.peer.data(one, b"\0\0\0\0\2a"))
            self.begun.add(one)
            if one not in self.awaited:
                self.message_ms[one] = self.now_ms + MESSAGE_MS

    def completes(self) -> None:
        if one := self.one(self.begun):
            self.duel.receive(self.duel.peer.data(one, b"b"))
            self.begun.discard(one)
            if one not in self.awaited:
                del self.message_ms[one]

    def awaits(self) -> None:
        if one := self.one(self.calls - self.awaited):
            self.duel.core.expect_request(one)
            self.awaited.add(one)
            self.message_ms[one] = self.now_ms + MESSAGE_MS

    def ends(self) -> None:
        if one := self.one(self.calls):
            if self.rng.random() < 0.5:
                self.duel.receive(frames.rst_stream_frame(one, 8))
            self.forget(one)

    def forget(self, one: int) -> None:
        self.duel.core.finish(one, 0, "")
        self.duel.sent()
        for each in (self.calls, self.begun, self.awaited):
            each.discard(one)
        self.call_ms.pop(one, None)
        self.message_ms.pop(one, None)

    def waits(self) -> None:
        self.now_ms += 1
        # The core counts from when it was told the time.
        events = self.duel.wait(MILLISECOND_NS) or self.duel.core.on_time(self.duel.now)
        expired = {one for one, at in self.call_ms.items() if at <= self.now_ms}
        late = {one for one, at in self.message_ms.items() if at <= self.now_ms} - expired
        assert {one.stream_id for one in events if isinstance(one, DeadlineExpired)} == expired
        assert {one.stream_id for one in events if isinstance(one, MessageRefused)} == late
        assert len(events) == len(expired) + len(late)
        for each in sorted(expired | late):
            self.forget(each)


@pytest.mark.parametrize("seed", range(40))
def test_every_deadline_ends_its_call_at_its_time(seed: int) -> None:
    life = Life(seed)
    steps = (life.opens, life.opens, life.begins, life.completes, life.awaits, life.ends)
    for _ in range(400):
        life.rng.choice((*steps, life.waits))()
    assert life.next_id > 100
    assert life.now_ms > 20
