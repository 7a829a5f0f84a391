"""100,000 broken inputs to the HTTP/2 core: no exception, bounded memory, a clear end."""

import random

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    MessageRefused,
    MessagesReceived,
    RequestEnded,
    RequestReceived,
)
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.http2_broken import broken_inputs
from liftbridge_testkit.http2_peer import prefixed

LIMITS = Limits(
    streams_max=4,
    message_bytes_max=300,
    partial_bytes_max=700,
    queued_bytes_max=4000,
    high_mark_bytes=500,
    low_mark_bytes=100,
    header_list_bytes_max=500,
    stream_window_bytes=1000,
    connection_window_bytes=70_000,
)
INPUTS_PER_SEED = 12_500
HELD_BYTES_MAX = 20_000


def answer(core: Connection, data: bytes, now: int, rng: random.Random) -> bool:
    """Feed one chunk and behave as a service would; whether the connection has ended."""
    for event in core.receive(data, now):
        match event:
            case RequestReceived() if not event.head.is_grpc:
                core.respond_plain(event.stream_id, 200, b"text")
            case RequestReceived() if event.head.refusal is not None:
                core.finish(event.stream_id, *event.head.refusal)
            case MessagesReceived():
                assert all(len(message) <= 300 for message in event.messages)
                core.send(event.stream_id, b"".join(map(prefixed, event.messages)))
            case RequestEnded() if rng.random() < 0.7:
                core.finish(event.stream_id, 0, "")
            case MessageRefused():
                core.finish(event.stream_id, event.status, event.text)
            case ConnectionEnded():
                return True
            case _:
                pass
    return False


def check_bounds(core: Connection) -> None:
    """What one connection holds stays within its limits."""
    assert core.stream_count <= LIMITS.streams_max
    assert core.queued_bytes <= LIMITS.queued_bytes_max + 500
    table = core._table
    assert table.partial_bytes == sum(len(each.partial) for each in table.streams.values())
    assert table.partial_bytes <= LIMITS.partial_bytes_max + 300
    assert core.queued_bytes == sum(each.queued for each in table.streams.values())
    assert sum(map(len, core.reader.held)) <= HELD_BYTES_MAX


@pytest.mark.parametrize("seed", range(8))
def test_no_input_breaks_the_core(seed: int, fuzz: Fuzz) -> None:
    broken = broken_inputs(fuzz.seed if fuzz.is_long else seed)
    ended = alive = 0
    for rng in fuzz.rounds(seed, INPUTS_PER_SEED):
        data = next(broken)
        core = Connection(LIMITS, 0)
        cut = rng.randrange(len(data))
        sent = []
        has_ended = False
        for chunk in (data[:cut], data[cut:]):
            has_ended = has_ended or answer(core, chunk, 1, rng)
            check_bounds(core)
            sent += core.take_output(1)
        if not has_ended and rng.random() < 0.1:
            core.on_time(3600 * SECOND_NS)
            has_ended = core.has_ended
            sent += core.take_output(1)
        ended += has_ended
        alive += not has_ended
        check_end(b"".join(sent), has_ended=has_ended)
    assert ended > fuzz.count // 4
    assert alive > fuzz.count // 20


def check_end(sent: bytes, *, has_ended: bool) -> None:
    """Output is whole frames, and an end is said with a code and a text."""
    at = 0
    kind = -1
    payload = b""
    while at < len(sent):
        word, _flags, _stream_id = frames.FRAME_HEADER.unpack_from(sent, at)
        kind = word & 0xFF
        payload = sent[at + 9 : at + 9 + (word >> 8)]
        at += 9 + (word >> 8)
    assert at == len(sent)
    if has_ended and kind == frames.GOAWAY:
        assert int.from_bytes(payload[4:8], "big") <= frames.Http2Code.HTTP_1_1_REQUIRED
        assert len(payload) > 8
