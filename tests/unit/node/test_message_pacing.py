"""What one turn takes of messages on NATS, whatever somebody publishes as fast as a socket is read.

As in `tests/unit/api/test_costs.py`, work between two turns is counted in lines of Python.
"""

import asyncio
from collections import deque
from itertools import product
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.adapters.nats.connection import READ_BYTES, READ_MESSAGES, Connection
from liftbridge_broker.adapters.nats.pacing import (
    PEER_WEIGHT,
    PLAIN_WEIGHT,
    RUN_WEIGHT,
    SLICE_MESSAGES_MAX,
    SLICE_WEIGHT_MAX,
    TURN_WEIGHT_MAX,
    WEIGHT_BYTES,
    Pacer,
    TurnBudget,
    fitting,
)
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.lines import LINES_MAX, Lines
from liftbridge_testkit.nats_floods import ARRIVALS, PAYLOADS, header_lines


class Socket:
    """What of a socket a pacer switches."""

    def __init__(self):
        self.is_read = True

    def pause(self):
        self.is_read = False

    def resume(self):
        self.is_read = True


class Loop:
    """Turns as an event loop gives them, on a clock that moves when a delivery says so.

    Args:
        delivers: Receivers of links that share a budget.
    """

    def __init__(self, *delivers, plain_weight=PLAIN_WEIGHT):
        self.due = deque()
        self.now_ns = 0
        self.faults = []
        budget = TurnBudget(self.due.append, lambda: self.now_ns)
        self.sockets = [Socket() for _ in delivers]
        self.pacers = [
            Pacer(
                budget,
                deliver,
                socket.pause,
                socket.resume,
                self.faults.append,
                plain_weight=plain_weight,
            )
            for deliver, socket in zip(delivers, self.sockets, strict=True)
        ]
        self.pacer = self.pacers[0]

    @property
    def is_reading(self):
        return all(socket.is_read for socket in self.sockets)

    def turn(self):
        for _ in range(len(self.due)):
            self.due.popleft()()


@pytest.mark.parametrize(("arrival", "payload"), list(product(ARRIVALS, PAYLOADS)))
def test_no_turn_takes_long_whatever_is_published(arrival, payload):
    world = ClusterWorld(1)
    world.create("s", factor=1)
    node = world[1].node
    (subscription,) = world[1].messaging.receivers("s", is_quiet=False)
    lines, stored = Lines(), world.replica(1).log

    def deliver(subscription, arrivals, payloads):
        node.on_messages(subscription, arrivals, payloads, world.now, world.wall_ns)

    loop = Loop(deliver)
    kinds, value = ARRIVALS[arrival], PAYLOADS[payload]
    count = READ_BYTES // 2 // (len(kinds[0].headers) + len(value) + 20)
    arrivals = [kinds[number % len(kinds)] for number in range(count)]
    with lines:
        loop.pacer.take(subscription, arrivals, [value] * count)
    while loop.due:
        with lines:
            loop.turn()
        world.settle()
    assert (loop.faults, loop.is_reading) == ([], True)
    assert stored.log_end_offset == count
    assert lines.most < LINES_MAX


SHAPES = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(
            st.tuples(st.sampled_from(sorted(ARRIVALS)), st.sampled_from(sorted(PAYLOADS))),
            min_size=1,
            max_size=60,
        ),
    ),
    max_size=12,
)


@given(SHAPES, st.lists(st.booleans(), max_size=12))
def test_everything_is_handed_on_once_and_in_order(deliveries, are_late):
    taken = []
    loop = Loop(lambda *one: taken.append(one))
    asked = []
    late = deque(are_late)
    for number, shapes in deliveries:
        arrivals = [ARRIVALS[arrival][-1] for arrival, _ in shapes]
        payloads = [PAYLOADS[payload] for _, payload in shapes]
        asked += [(number, *one) for one in zip(arrivals, payloads, strict=True)]
        loop.pacer.take(SubscriptionId(number), arrivals, payloads)
        if late and late.popleft():
            loop.turn()
    while loop.due:
        loop.turn()
    told = [
        (number, *one)
        for number, arrivals, payloads in taken
        for one in zip(arrivals, payloads, strict=True)
    ]
    assert told == asked
    assert loop.is_reading


def test_reading_stops_while_messages_wait_and_a_turn_takes_what_it_may():
    count = 10 * TURN_WEIGHT_MAX // RUN_WEIGHT
    taken = []
    loop = Loop(lambda _subscription, _arrivals, payloads: taken.append(len(payloads)))
    loop.pacer.take(SubscriptionId(1), [Arrival("s", "", header_lines(1))] * count, [b""] * count)
    assert not loop.is_reading
    idle = []
    loop.pacer.when_idle(lambda: idle.append(sum(taken)))
    while loop.due:
        assert loop.is_reading == (sum(taken) == count)
        loop.turn()
    assert idle == [count]
    assert max(taken) <= TURN_WEIGHT_MAX // RUN_WEIGHT + 1
    assert len(taken) > 9


@pytest.mark.parametrize("message_us", [1, 5, 50, 500])
@pytest.mark.parametrize("read", [1, 100, 9_000])
def test_time_of_a_turn_is_bounded_when_messages_take_longer_than_they_weigh(message_us, read):
    """Removing the charge for time makes one turn take all that a socket has, as seen."""
    turns = [0]

    def deliver(_subscription, _arrivals, payloads):
        took_us = len(payloads) * message_us
        turns[-1] += took_us
        loop.now_ns += took_us * 1_000

    loop = Loop(deliver, deliver)
    plain = [Arrival("s", "", b"")] * read
    for _ in range(32):  # reads of a socket in a turn of uvloop
        for pacer, socket in zip(loop.pacers, loop.sockets, strict=True):
            if socket.is_read:
                pacer.take(SubscriptionId(1), plain, [b""] * read)
    while loop.due:
        turns.append(0)
        loop.turn()
    first_us = min(read, SLICE_MESSAGES_MAX) * message_us
    assert max(turns) < TURN_WEIGHT_MAX + first_us
    # Each link learns from its first slice how long messages take now.
    longer = [turn for turn in turns if turn > TURN_WEIGHT_MAX + SLICE_WEIGHT_MAX + message_us]
    assert len(longer) <= len(loop.pacers)
    assert loop.is_reading


def test_reads_are_not_cut_because_single_messages_take_long_for_their_number():
    """The fixed cost of a delivery says nothing of the messages of a larger one."""
    taken = []

    def deliver(_subscription, _arrivals, payloads):
        taken.append(len(payloads))
        loop.now_ns += (150 + len(payloads)) * 1_000

    loop = Loop(deliver)
    plain = Arrival("s", "", b"")
    for count in (1, 1_000, 3, 1_000):
        loop.now_ns += 1_000_000_000
        loop.pacer.take(SubscriptionId(1), [plain] * count, [b""] * count)
    assert taken == [1, 1_000, 3, 1_000]


def test_links_that_share_a_budget_take_turns():
    taken = []
    loop = Loop(*(lambda *_, name=name: taken.append(name) for name in "ab"))
    unlike = [Arrival("s", "", header_lines(1))] * TURN_WEIGHT_MAX
    for pacer in loop.pacers:
        pacer.take(SubscriptionId(1), unlike, [b""] * len(unlike))
    first = []
    while loop.due:
        taken.clear()
        loop.turn()
        first += taken[:1]
    half = len(first) // 2
    assert abs(first[:half].count("a") - first[:half].count("b")) <= 1


def test_failure_in_a_later_turn_is_told():
    def deliver(_subscription, _arrivals, payloads):
        if len(payloads) < 100:
            raise ValueError("broken")

    loop = Loop(deliver)
    plain = [Arrival("s", "", b"")]
    loop.pacer.take(SubscriptionId(1), plain * 30_000, [b""] * 30_000)
    loop.pacer.take(SubscriptionId(1), plain, [b""])
    while loop.due:
        loop.turn()
    assert [str(one) for one in loop.faults] == ["broken"]


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000])
def test_bytes_of_a_turn_are_bounded(arrival, size):
    kinds = ARRIVALS[arrival]
    count = 2 * TURN_WEIGHT_MAX * WEIGHT_BYTES // size
    arrivals = [kinds[number % len(kinds)] for number in range(count)]
    fit, weight = fitting(arrivals, [bytes(size)] * count, TURN_WEIGHT_MAX, PLAIN_WEIGHT)
    assert (fit - 1) * size <= TURN_WEIGHT_MAX * WEIGHT_BYTES
    assert weight >= fit * size // WEIGHT_BYTES


def test_one_message_at_least_fits():
    wide = Arrival("s", "", header_lines(1_000))
    assert fitting([wide, wide], [b"", b""], 1, 1)[0] == 1
    assert fitting([Arrival("s", "", b"")] * 2, [b"", b""], 1, 1)[0] == 1


def test_frames_that_somebody_forges_leave_others_their_turns():
    world = ClusterWorld(1)
    node, lines = world[1].node, Lines()
    heard = []

    def deliver(_subscription, _arrivals, payloads):
        heard.append(len(payloads))
        for payload in payloads:
            node.on_peer(Channel.METADATA, payload, world.now, world.wall_ns)

    loop = Loop(deliver, plain_weight=PEER_WEIGHT)
    count = 10 * TURN_WEIGHT_MAX // PEER_WEIGHT
    with lines:
        loop.pacer.take(SubscriptionId(1), [Arrival("meta", "", b"")] * count, [b"x" * 60] * count)
    while loop.due:
        with lines:
            loop.turn()
    assert sum(heard) == count
    assert max(heard) <= TURN_WEIGHT_MAX // PEER_WEIGHT
    assert lines.most < LINES_MAX


@pytest.mark.parametrize(("size", "most"), [(0, READ_MESSAGES), (20, READ_MESSAGES), (1_000, 259)])
async def test_messages_of_a_read_are_bounded(size, most):
    """Parsing the messages of a read is part of the turn, however few of them are delivered."""
    handler = mock.Mock()
    connection = Connection(
        handler, asyncio.get_running_loop(), pending_bytes_max=1, ping_interval_s=60.0
    )
    connection.begin()
    message = f"MSG s 1 {size}\r\n".encode() + bytes(size) + b"\r\n"
    waiting = message * (3 * READ_BYTES // len(message))
    heard = []
    while waiting:
        buffer = connection.get_buffer(-1)
        read = waiting[: len(buffer)]
        waiting = waiting[len(read) :]
        buffer[: len(read)] = read
        handler.reset_mock()
        connection.buffer_updated(len(read))
        heard.append(sum(len(call.args[2]) for call in handler.on_messages.mock_calls))
    connection.close()
    connection.connection_lost(None)
    assert max(heard[1:]) <= most + 1
    assert sum(heard) == 3 * READ_BYTES // len(message)
