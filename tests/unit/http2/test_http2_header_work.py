"""What header blocks make the broker do and keep is bounded by what it allows.

HPACK lets a client put a long field into the table once and name it by one byte. Each request here
is some 20 bytes that stand for as much as is taken, in every field that there is.
"""

import sys
from collections.abc import Iterator
from typing import Final

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import Event, RequestReceived
from liftbridge_broker.http2.grpc import literal
from liftbridge_broker.http2.reader import FRAMES_MAX
from liftbridge_testkit.http2_peer import Duel
from liftbridge_testkit.lines import LINES_MAX, Lines

BASE: Final = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
ROOM: Final = 3_400
"""Of the 4,096 bytes of the table, besides the fields of every request."""

NAMES: Final = (
    *(name for name, _ in BASE if name != b"te"),
    b":authority",
    b"content-length",
    b"grpc-timeout",
    b"grpc-encoding",
    b"grpc-accept-encoding",
    b"user-agent",
    b"cookie",
    b"x",
    b"x-bin",
    b"n" * 1_000,
    b"n" * 1_000 + b"-bin",
)
VALUES: Final = (b",", b"AAAA,", b" ", b"\xff")
TIMES: Final = 3
REQUESTS: Final = FRAMES_MAX


def indexed(name: bytes, value: bytes) -> bytes:
    """A field that goes into the table."""
    return b"\x40" + literal(name, value)[1:]


def held_bytes(*roots: object) -> int:
    """Size of the texts, numbers and containers that can be reached."""
    seen: set[int] = set()
    size, pending = 0, list(roots)
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            pending += one
    return size


def requests(name: bytes, value: bytes) -> Iterator[bytes]:
    """What teaches the table a field, and then names it so often in each request."""
    base = [field for field in BASE if field[0] != name]
    block = b"".join(indexed(*field) for field in base) + indexed(name, value)
    if name[:1] == b":":
        block = indexed(name, value) + b"".join(indexed(*field) for field in base)
    yield frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, 1, block)
    count = len(base) + 1
    indexes = [0x80 | 62 + count - 1 - place for place in range(count)]
    last = indexes.pop(0 if name[:1] == b":" else -1)
    named = bytes([*indexes, *[last] * TIMES] if name[:1] != b":" else [last, *indexes])
    for number in range(REQUESTS):
        # Each is another block, so that none is known.
        more = literal(b"y", b"%03d" % number)
        stream_id = 3 + 2 * number
        yield frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, stream_id, named + more)


def received(core: Connection, data: bytes, lines: Lines) -> list[Event]:
    """Events of all turns that it takes to read some bytes."""
    events: list[Event] = []
    has_more = True
    while has_more:
        with lines:
            events += core.receive(data, 1_000_000_000)
        data, has_more = b"", core.reader.has_unread and not core.has_ended
    return events


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:22].decode() + str(len(name)))
def test_field_that_is_named_again_and_again_costs_little_to_read_and_to_keep(name: bytes) -> None:
    for value in VALUES:
        duel, lines = Duel(), Lines()
        size = max(ROOM - len(name), 1)
        data = b"".join(requests(name, value * (size // len(value))))
        events = received(duel.core, data, lines)
        assert lines.most <= LINES_MAX, value
        heads = [one.head for one in events if isinstance(one, RequestReceived)]
        text_bytes = sum(one.text_bytes for one in heads)
        # The events themselves, an answer for each refusal, and no text but these.
        assert held_bytes(events) <= text_bytes + 1_000 * len(events) + 1_000, value
        assert held_bytes(duel.core.reader._headers._decoder._heads) <= 64 << 10, value


def test_fields_of_the_table_cost_little_to_read() -> None:
    duel, lines = Duel(), Lines()
    block = b"\x83\x86\x84" + b"\x90" * 120
    data = b"".join(
        frames.frame(
            frames.HEADERS, frames.FLAG_END_HEADERS, one, block + literal(b"y", b"%d" % one)
        )
        for one in range(1, 2 * REQUESTS, 2)
    )
    assert len(received(duel.core, data, lines)) == REQUESTS
    assert lines.most <= LINES_MAX
