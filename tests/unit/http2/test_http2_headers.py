"""Request headers: what becomes a call, what is malformed, HPACK state, and bounds."""

from collections.abc import Iterator
from itertools import chain

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    Event,
    RequestEnded,
    RequestHead,
    RequestReceived,
    StreamCancelled,
)
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.grpc import literal
from liftbridge_broker.http2.headers import HEADER_FIELDS_MAX, HeaderDecoder
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.http2_peer import GRPC_FIELDS, Duel, Http2Peer, of_kind

PSEUDO = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C")]
END_HEADERS = frames.FLAG_END_HEADERS
TOKEN = b"Bearer sEcReT"
FIELD = b"\x90"
"""A field of the static table: one byte to the client."""


def headers(duel: Duel, fields: list[tuple[str, str]], stream_id: int = 1) -> list[Event]:
    """Feed one HEADERS frame with exactly these fields."""
    block = duel.peer.block(fields)
    return duel.receive(frames.frame(frames.HEADERS, END_HEADERS, stream_id, block))


def head_of(*more: tuple[str, str], limits: Limits | None = None) -> RequestHead:
    """Head of a gRPC request with these fields behind the usual ones."""
    (event,) = headers(Duel(limits), [*PSEUDO, *GRPC_FIELDS, *more])
    assert isinstance(event, RequestReceived)
    return event.head


def test_grpc_request_is_split_into_its_parts() -> None:
    head = head_of(
        ("user-agent", "grpc-go/1.85"),
        ("grpc-timeout", "5S"),
        ("grpc-encoding", "gzip"),
        ("grpc-accept-encoding", "identity"),
        ("x-one", " 1 "),
        ("x-two-bin", "AP8"),
        ("x-one", "2"),
    )
    assert head == RequestHead(
        verb="POST",
        path="/a.B/C",
        is_grpc=True,
        timeout_ns=5_000_000_000,
        encoding="gzip",
        content_length=None,
        refusal=None,
        text_bytes=len("POST/a.B/Cgzip"),
    )


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/grpc+json", False),
        ("text/plain", False),
        ("", False),
    ],
)
def test_content_type_tells_whether_a_request_is_a_call(content_type: str, is_grpc: bool) -> None:
    (event, *_) = headers(Duel(), [*PSEUDO, ("content-type", content_type)])
    assert isinstance(event, RequestReceived)
    assert event.head.is_grpc is is_grpc


@pytest.mark.parametrize("timeout", ["5x", "123456789S"])
def test_bad_timeout_is_refused_with_internal(timeout: str) -> None:
    assert head_of(("grpc-timeout", timeout)).refusal == (13, "malformed grpc-timeout")


def test_header_list_over_the_limit_is_refused_and_its_double_ends_the_connection() -> None:
    limits = Limits(header_list_bytes_max=1000)
    refusal = head_of(("x", "y" * 900), limits=limits).refusal
    assert refusal == (8, "received metadata larger than max (1164 vs. 1000)")
    (ended,) = headers(Duel(limits), [*PSEUDO, ("x", "y" * 2000)])
    assert ended == ConnectionEnded(11, "header list too large", "header_list")


def test_small_block_that_expands_to_a_large_list_ends_the_connection() -> None:
    limits = Limits(header_list_bytes_max=1000)
    duel = Duel(limits)
    headers(duel, [*PSEUDO, ("x", "y" * 500)])
    repeated = duel.peer.block([("x", "y" * 500)]) * 10
    assert len(repeated) == 10
    (ended,) = duel.receive(frames.frame(frames.HEADERS, END_HEADERS, 3, repeated))
    assert ended == ConnectionEnded(11, "header list too large", "header_list")


def test_block_of_too_many_fields_is_refused_and_its_double_ends_the_connection() -> None:
    duel = Duel()
    begun = duel.peer.block([*PSEUDO, *GRPC_FIELDS])
    room = HEADER_FIELDS_MAX - len(PSEUDO) - len(GRPC_FIELDS)
    refusals = []
    for stream_id, count in ((1, room), (3, room + 1), (5, room + HEADER_FIELDS_MAX)):
        block = begun + FIELD * count
        (event,) = duel.receive(frames.frame(frames.HEADERS, END_HEADERS, stream_id, block))
        assert isinstance(event, RequestReceived)
        refusals.append(event.head.refusal)
    text = "received more header fields than max"
    assert refusals == [None, (8, f"{text} (129 vs. 128)"), (8, f"{text} (256 vs. 128)")]
    block = begun + FIELD * (room + HEADER_FIELDS_MAX + 1)
    (ended,) = duel.receive(frames.frame(frames.HEADERS, END_HEADERS, 7, block))
    text = "header list of 257 fields, allowed are 128"
    assert ended == ConnectionEnded(11, text, "header_list")


@pytest.mark.parametrize(("count", "event"), [(128, RequestEnded(1)), (129, StreamCancelled(1, 1))])
def test_trailers_of_too_many_fields_reset_the_stream(count: int, event: Event) -> None:
    duel = Duel()
    duel.open(1)
    flags = END_HEADERS | frames.FLAG_END_STREAM
    assert duel.receive(frames.frame(frames.HEADERS, flags, 1, FIELD * count)) == [event]


@pytest.mark.parametrize(
    "fields",
    [
        [*PSEUDO, ("Upper", "x")],
        [*PSEUDO, ("sp ace", "x")],
        [*PSEUDO, ("", "x")],
        [*PSEUDO, ("a:b", "x")],
        [*PSEUDO, ("x", "a\r\nb")],
        [*PSEUDO, ("x", "a\x00b")],
        [*PSEUDO, ("connection", "close")],
        [*PSEUDO, ("keep-alive", "1")],
        [*PSEUDO, ("proxy-connection", "1")],
        [*PSEUDO, ("transfer-encoding", "chunked")],
        [*PSEUDO, ("upgrade", "h2c")],
        [*PSEUDO, ("te", "gzip")],
        [*PSEUDO, (":path", "/again")],
        [*PSEUDO, (":status", "200")],
        [*PSEUDO, (":unknown", "x")],
        [*PSEUDO, ("x", "1"), (":authority", "late")],
        [*PSEUDO, ("content-length", "-1")],
        [*PSEUDO, ("content-length", "1" * 19)],
        PSEUDO[:2],
        PSEUDO[1:],
        [PSEUDO[0], PSEUDO[2]],
        [*PSEUDO[:2], (":path", "")],
        [],
    ],
)
def test_malformed_header_list_resets_the_stream(fields: list[tuple[str, str]]) -> None:
    duel = Duel()
    assert headers(duel, fields) == []
    (reset,) = duel.sent()
    assert (reset.kind, reset.stream_id, reset.error_code) == (frames.RST_STREAM, 1, 1)
    assert isinstance(duel.open(3)[0], RequestReceived)


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xff\xff\xff\xff\xff\xff\x7f", b"\x40", b"\x40\x03abc", b"\xbe", b"\x3f\xe2\x1f"],
)
def test_block_that_cannot_be_decoded_ends_the_connection(block: bytes) -> None:
    (ended,) = Duel().receive(frames.frame(frames.HEADERS, END_HEADERS, 1, block))
    assert isinstance(ended, ConnectionEnded)
    assert ended.code == Http2Code.COMPRESSION_ERROR


def damaged_blocks() -> Iterator[bytes]:
    """A block with a token in it: each of its bytes replaced by each other one, cut, and more."""
    begun, token = b"\x83\x86\x84\x40\x01a\x01b", literal(b"authorization", TOKEN)
    for position in range(len(begun)):
        for octet in range(256):
            yield begun[:position] + bytes((octet,)) + begun[position + 1 :] + token
    yield from (begun + token[:end] for end in range(len(token)))
    for first in range(256):  # an integer that does not end, of each kind of field
        yield bytes((first,)) + b"\xff" * 11 + token
        yield b"\x00\x01a" + bytes((first,)) + b"\xff" * 11 + token
    yield b"\x7f" + b"\xff" * 16_000


def test_no_byte_of_a_damaged_block_is_told_to_the_client_or_to_the_log() -> None:
    faults = 0
    for block in damaged_blocks():
        duel = Duel()
        events = duel.receive(frames.frame(frames.HEADERS, END_HEADERS, 1, block))
        ended = [one for one in events if isinstance(one, ConnectionEnded)]
        told = chain((one.text for one in ended), (str(one.payload) for one in duel.sent()))
        assert all(len(text) < 200 and "sEcReT" not in text for text in told), block
        faults += len(ended)
    assert faults > 1_000


def test_headers_may_be_padded_and_carry_a_priority() -> None:
    duel = Duel()
    block = duel.peer.block([*PSEUDO, *GRPC_FIELDS])
    payload = b"\x03" + b"\x80\x00\x00\x05\x10" + block + bytes(3)
    flags = END_HEADERS | frames.FLAG_PADDED | frames.FLAG_PRIORITY
    (event,) = duel.receive(frames.frame(frames.HEADERS, flags, 1, payload))
    assert isinstance(event, RequestReceived)


def test_block_may_be_cut_into_continuations() -> None:
    duel = Duel()
    block = duel.peer.block([*PSEUDO, *GRPC_FIELDS])
    events = duel.receive(
        frames.frame(frames.HEADERS, frames.FLAG_END_STREAM, 1, block[:5]),
        frames.frame(frames.CONTINUATION, 0, 1, b""),
        frames.frame(frames.CONTINUATION, END_HEADERS, 1, block[5:]),
    )
    assert [type(event) for event in events] == [RequestReceived, RequestEnded]


@pytest.mark.parametrize(
    "between",
    [
        frames.ping_frame(b"12345678"),
        frames.frame(frames.DATA, 0, 1, b""),
        frames.frame(frames.CONTINUATION, END_HEADERS, 3, b""),
        frames.frame(0xFA, 0, 0, b""),
        frames.frame(frames.DATA, 0, 5, b"\x00\x00\x00\x00\x01x"),
    ],
)
def test_nothing_may_come_between_the_pieces_of_a_block(between: bytes) -> None:
    duel = Duel()
    duel.open(5)
    begun = frames.frame(frames.HEADERS, 0, 7, b"")
    (ended,) = duel.receive(begun, between)
    assert ended == ConnectionEnded(1, "header block of stream 7 interrupted")


def test_trailers_end_the_request() -> None:
    duel = Duel()
    duel.open(1)
    trailers = duel.peer.block([("x-check", "1")])
    flags = END_HEADERS | frames.FLAG_END_STREAM
    assert duel.receive(frames.frame(frames.HEADERS, flags, 1, trailers)) == [RequestEnded(1)]


def test_trailers_under_way_when_the_call_was_finished_are_ignored() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.finish(1, 9, "no")
    duel.sent()
    trailers = duel.peer.block([("x-check", "1")])
    flags = END_HEADERS | frames.FLAG_END_STREAM
    assert duel.receive(frames.frame(frames.HEADERS, flags, 1, trailers)) == []
    assert duel.sent() == []


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ([("x", "1")], END_HEADERS),
        ([(":path", "/")], END_HEADERS | frames.FLAG_END_STREAM),
        ([("X", "1")], END_HEADERS | frames.FLAG_END_STREAM),
    ],
)
def test_bad_trailers_reset_the_stream(fields: list[tuple[str, str]], flags: int) -> None:
    duel = Duel()
    duel.open(1)
    block = duel.peer.block(fields)
    events = duel.receive(frames.frame(frames.HEADERS, flags, 1, block))
    assert events == [StreamCancelled(1, Http2Code.PROTOCOL_ERROR)]


def test_headers_behind_the_end_of_a_request_reset_the_stream() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    assert headers(duel, PSEUDO) == [StreamCancelled(1, Http2Code.STREAM_CLOSED)]


def test_streams_over_the_limit_are_refused_and_the_table_stays_in_step() -> None:
    duel = Duel(Limits(streams_max=2))
    new = [*PSEUDO[:2], (":path", "/a.B/New"), *GRPC_FIELDS]
    duel.open(1)
    duel.open(3)
    assert headers(duel, new, 5) == []
    (refused,) = duel.sent()
    assert (refused.stream_id, refused.error_code) == (5, Http2Code.REFUSED_STREAM)
    duel.receive(frames.rst_stream_frame(1, 0))
    (event,) = headers(duel, new, 7)
    assert isinstance(event, RequestReceived)
    assert event.head.path == "/a.B/New"


def test_content_length_must_match_the_data() -> None:
    duel = Duel()
    fields = [*PSEUDO, ("content-length", "4")]
    headers(duel, fields, 1)
    headers(duel, fields, 3)
    headers(duel, fields, 5)
    short = duel.receive(duel.peer.data(1, b"abc", ends=True))
    long = duel.receive(duel.peer.data(3, b"abcde"))
    right = duel.receive(duel.peer.data(5, b"abcd", ends=True))
    assert short == [StreamCancelled(1, Http2Code.PROTOCOL_ERROR)]
    assert long == [StreamCancelled(3, Http2Code.PROTOCOL_ERROR)]
    assert right == [RequestEnded(5)]


class TestDecodedHeadsAreKept:
    """A cached head is only used while the dynamic table is as it was."""

    FIELDS = (*PSEUDO, *GRPC_FIELDS)

    def test_repeated_block_gives_the_same_object(self) -> None:
        decoder, peer = HeaderDecoder(Limits()), Http2Peer()
        decoder.head(peer.block([*self.FIELDS]))
        repeated = peer.block([*self.FIELDS])
        assert decoder.head(repeated) is decoder.head(repeated)

    def test_block_is_decoded_anew_after_the_table_has_changed(self) -> None:
        decoder, peer = HeaderDecoder(Limits()), Http2Peer()
        for path in ("/1", "/2"):
            decoder.head(peer.block([*PSEUDO[:2], (":path", path)]))
        indexed = peer.block([*PSEUDO[:2], (":path", "/2")])
        first = decoder.head(indexed)
        decoder.head(peer.block([*PSEUDO[:2], (":path", "/3")]))
        # The same bytes now mean another entry of the table.
        second = decoder.head(indexed)
        assert first is not None
        assert second is None or first.path != second.path

    def test_entry_that_takes_the_place_of_another_is_noticed(self) -> None:
        decoder = HeaderDecoder(Limits())
        prefix = b"\x83\x86"  # POST, http
        inserted = b"\x40\x05:path\x7f\xc9\x01"  # of 328 bytes
        for letter in (b"a", b"b"):
            decoder.head(prefix + inserted + letter * 328)
        newest = prefix + b"\xbe"
        decoder.head(newest)
        decoder.head(b"\x20\x3f\xf1\x04" + prefix + inserted + b"c" * 328)  # room for one
        decoder.head(newest)
        decoder.head(prefix + inserted + b"d" * 328)
        head = decoder.head(newest)
        assert head is not None
        assert head.path == "d" * 328

    def test_evicted_entries_are_not_remembered(self) -> None:
        decoder, peer = HeaderDecoder(Limits()), Http2Peer()
        decoder.head(peer.block([*self.FIELDS]))
        indexed = peer.block([*self.FIELDS])
        decoder.head(indexed)
        decoder.skip(b"\x20\x3f\xe1\x1f")  # table size to 0 and back to 4096
        with pytest.raises(frames.ConnectionFaultError):
            decoder.head(indexed)

    def test_kept_heads_are_bounded(self) -> None:
        decoder = HeaderDecoder(Limits())
        prefix = b"\x83\x86\x84"  # POST, http, /
        for number in range(1000):
            decoder.head(prefix + b"\x00\x01x\x04%04d" % number)
        assert len(decoder._heads) <= 32

    def test_heads_with_long_texts_are_not_kept(self) -> None:
        decoder = HeaderDecoder(Limits())
        inserted = b"\x40\x05:path\x7f\xd1\x0e" + b"a" * 2000
        decoder.head(b"\x83\x86" + inserted)
        decoder.head(b"\x83\x86\xbe")
        assert decoder._heads == {}


def test_answer_uses_no_table_and_says_so_when_the_client_shrinks_it() -> None:
    duel = Duel(settings={frames.SETTING_HEADER_TABLE_SIZE: 0})
    duel.open(1)
    duel.open(3)
    duel.core.finish(1, 0, "")
    duel.core.finish(3, 0, "")
    first, second = of_kind(duel.sent(), frames.HEADERS)
    assert first.payload == b"\x20" + second.payload
