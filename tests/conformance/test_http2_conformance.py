"""RFC 9113, rule by rule, on a live port: what a client may do, and how wrong frames are answered.

The sections are those of the RFC. Every case runs on a connection of its own against the server in
this process, so the suite needs no other program.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from hpack import Encoder

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_testkit.grpc_echo import EchoServer, echo_server
from liftbridge_testkit.http2_peer import Frame, Http2Peer, of_kind

Build = Callable[[Http2Peer], bytes]
ACK = frames.FLAG_ACK
END_HEADERS = frames.FLAG_END_HEADERS
END_STREAM = frames.FLAG_END_STREAM
PADDED = frames.FLAG_PADDED
LARGE = bytes(16_385)
ROOT_FIELDS = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test")]
SETTING = frames.settings_frame
frame = frames.frame


class Case(NamedTuple):
    """Bytes behind the greeting, and the error that must come back."""

    name: str
    code: Http2Code
    build: Build


def root(peer: Http2Peer, *more: tuple[str, str], ends: bool = True, stream_id: int = 1) -> bytes:
    """A request of the root page."""
    flags = END_HEADERS | (END_STREAM if ends else 0)
    return frame(frames.HEADERS, flags, stream_id, peer.block([*ROOT_FIELDS, *more]))


def post(peer: Http2Peer, stream_id: int = 1) -> bytes:
    """A request that has not ended."""
    return root(peer, ends=False, stream_id=stream_id)


def fields(*wanted: tuple[str, str]) -> Build:
    """A request with exactly these fields."""

    def build(_peer: Http2Peer) -> bytes:
        block = Encoder().encode(wanted, huffman=False)
        return frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, block)

    return build


def raw(data: bytes) -> Build:
    """The bytes themselves."""
    return lambda _peer: data


PROTOCOL = Http2Code.PROTOCOL_ERROR
FLOW = Http2Code.FLOW_CONTROL_ERROR
SIZE = Http2Code.FRAME_SIZE_ERROR
CLOSED = Http2Code.STREAM_CLOSED
COMPRESSION = Http2Code.COMPRESSION_ERROR

CONNECTION_ERRORS = [
    Case("4.2 too large a DATA frame", SIZE, lambda p: post(p) + p.data(1, LARGE)),
    Case("4.2 too large a HEADERS frame", SIZE, raw(frame(1, END_HEADERS, 1, LARGE))),
    Case("4.2 too large an unknown frame", SIZE, raw(frame(0x16, 0, 0, LARGE))),
    Case("4.3 block that cannot be decoded", COMPRESSION, raw(frame(1, 5, 1, b"\x40\x01"))),
    Case(
        "4.3 block interrupted", PROTOCOL, raw(frame(1, 1, 1, b"\x82") + frame(2, 0, 1, bytes(5)))
    ),
    Case("4.3 block on two streams", PROTOCOL, raw(frame(1, 1, 1, b"\x82") + frame(9, 4, 3, b""))),
    Case("5.1 DATA on an idle stream", PROTOCOL, raw(frame(0, 1, 1, b"x"))),
    Case("5.1 RST_STREAM on an idle stream", PROTOCOL, raw(frames.rst_stream_frame(1, 8))),
    Case("5.1 WINDOW_UPDATE on an idle stream", PROTOCOL, raw(frames.window_update_frame(1, 9))),
    Case("5.1 CONTINUATION on an idle stream", PROTOCOL, raw(frame(9, 4, 1, b""))),
    Case(
        "5.1 HEADERS on a closed stream",
        CLOSED,
        lambda p: post(p) + frames.rst_stream_frame(1, 8) + root(p),
    ),
    Case("5.1.1 even stream number", PROTOCOL, lambda p: root(p, stream_id=2)),
    Case("5.1.1 smaller number", PROTOCOL, lambda p: post(p, 5) + root(p, stream_id=3)),
    Case("5.3.1 stream that depends on itself", PROTOCOL, raw(frame(2, 0, 1, b"\0\0\0\1\0"))),
    Case("6.1 DATA on stream 0", PROTOCOL, raw(frame(0, 1, 0, b"x"))),
    Case("6.1 too much padding", PROTOCOL, lambda p: post(p) + frame(0, PADDED | 1, 1, b"\x05x")),
    Case("6.2 HEADERS on stream 0", PROTOCOL, raw(frame(1, 5, 0, b"\x82"))),
    Case("6.2 too much padding", PROTOCOL, raw(frame(1, 5 | PADDED, 1, b"\x09\x82"))),
    Case("6.3 PRIORITY on stream 0", PROTOCOL, raw(frame(2, 0, 0, bytes(5)))),
    Case("6.3 size of PRIORITY", SIZE, raw(frame(2, 0, 1, bytes(4)))),
    Case("6.4 RST_STREAM on stream 0", PROTOCOL, raw(frame(3, 0, 0, bytes(4)))),
    Case("6.4 size of RST_STREAM", SIZE, lambda p: post(p) + frame(3, 0, 1, bytes(3))),
    Case("6.5 SETTINGS ACK with a payload", SIZE, raw(frame(4, ACK, 0, bytes(6)))),
    Case("6.5 SETTINGS on a stream", PROTOCOL, raw(frame(4, 0, 1, bytes(6)))),
    Case("6.5 size of SETTINGS", SIZE, raw(frame(4, 0, 0, bytes(5)))),
    Case("6.5.2 ENABLE_PUSH", PROTOCOL, raw(SETTING({2: 2}))),
    Case("6.5.2 INITIAL_WINDOW_SIZE", FLOW, raw(SETTING({4: 1 << 31}))),
    Case("6.5.2 MAX_FRAME_SIZE too small", PROTOCOL, raw(SETTING({5: 16_383}))),
    Case("6.5.2 MAX_FRAME_SIZE too large", PROTOCOL, raw(SETTING({5: 1 << 24}))),
    Case("6.6 PUSH_PROMISE", PROTOCOL, raw(frame(5, 4, 1, bytes(4)))),
    Case("6.7 PING on a stream", PROTOCOL, raw(frame(6, 0, 1, bytes(8)))),
    Case("6.7 size of PING", SIZE, raw(frame(6, 0, 0, bytes(6)))),
    Case("6.8 GOAWAY on a stream", PROTOCOL, raw(frame(7, 0, 1, bytes(8)))),
    Case("6.9 WINDOW_UPDATE of 0", PROTOCOL, raw(frame(8, 0, 0, bytes(4)))),
    Case("6.9 size of WINDOW_UPDATE", SIZE, raw(frame(8, 0, 0, bytes(3)))),
    Case("6.9.1 window over the maximum", FLOW, raw(frames.window_update_frame(0, 2**31 - 1))),
    Case("6.10 CONTINUATION behind END_HEADERS", PROTOCOL, lambda p: root(p) + frame(9, 4, 1, b"")),
    Case(
        "6.10 CONTINUATION on stream 0",
        PROTOCOL,
        raw(frame(1, 1, 1, b"\x82") + frame(9, 4, 0, b"")),
    ),
    Case("HPACK 2.3.3 index beyond the table", COMPRESSION, raw(frame(1, 5, 1, b"\xff\x80\x01"))),
    Case("HPACK 4.2 size update behind a field", COMPRESSION, raw(frame(1, 5, 1, b"\x82\x20"))),
    Case(
        "HPACK 5.2 padding of Huffman codes", COMPRESSION, raw(frame(1, 5, 1, b"\x00\x81\x00\x00"))
    ),
    Case("HPACK 6.1 index 0", COMPRESSION, raw(frame(1, 5, 1, b"\x80"))),
    Case("HPACK 6.3 table over the limit", COMPRESSION, raw(frame(1, 5, 1, b"\x3f\xe2\x1f"))),
]

STREAM_ERRORS = [
    Case("5.1 DATA behind END_STREAM", CLOSED, lambda p: called(p) + p.data(1, b"x", ends=True)),
    Case("5.1 HEADERS behind END_STREAM", CLOSED, lambda p: called(p) + root(p)),
    Case("5.1 DATA on a closed stream", CLOSED, lambda p: post(p) + reset_one() + p.data(1, b"x")),
    Case("6.9 WINDOW_UPDATE of 0", PROTOCOL, lambda p: post(p) + frame(8, 0, 1, bytes(4))),
    Case(
        "6.9.1 window over the maximum",
        FLOW,
        lambda p: post(p) + frames.window_update_frame(1, 2**31 - 1),
    ),
    Case("8.1 trailers without END_STREAM", PROTOCOL, lambda p: post(p) + frame(1, 4, 1, b"")),
    Case("8.2.1 upper case", PROTOCOL, fields(*ROOT_FIELDS, ("X-Upper", "x"))),
    Case("8.2.1 line end in a value", PROTOCOL, fields(*ROOT_FIELDS, ("x", "a\nb"))),
    Case("8.2.2 connection field", PROTOCOL, fields(*ROOT_FIELDS, ("connection", "keep-alive"))),
    Case("8.2.2 te", PROTOCOL, fields(*ROOT_FIELDS, ("te", "trailers, deflate"))),
    Case("8.3 unknown pseudo field", PROTOCOL, fields(*ROOT_FIELDS, (":test", "x"))),
    Case("8.3 response pseudo field", PROTOCOL, fields(*ROOT_FIELDS, (":status", "200"))),
    Case("8.3 late pseudo field", PROTOCOL, fields(ROOT_FIELDS[0], ("x", "y"), *ROOT_FIELDS[1:])),
    Case("8.3 doubled pseudo field", PROTOCOL, fields(*ROOT_FIELDS, (":method", "GET"))),
    Case("8.3.1 no method", PROTOCOL, fields(*ROOT_FIELDS[1:])),
    Case("8.3.1 no scheme", PROTOCOL, fields(ROOT_FIELDS[0], ROOT_FIELDS[2])),
    Case("8.3.1 no path", PROTOCOL, fields(*ROOT_FIELDS[:2])),
    Case("8.3.1 empty path", PROTOCOL, fields(*ROOT_FIELDS[:2], (":path", ""))),
    Case(
        "8.1.1 content-length",
        PROTOCOL,
        lambda p: root(p, ("content-length", "1"), ends=False) + p.data(1, b"four", ends=True),
    ),
    Case(
        "8.1 pseudo field in trailers",
        PROTOCOL,
        lambda p: post(p) + frame(1, 5, 1, p.block([(":path", "/")])),
    ),
]

LIVING_ON = [
    ("5.5 unknown frame", frame(0x16, 0xFF, 0, b"x" * 100)),
    ("5.5 unknown frame on a stream", frame(0xEE, 0, 7, b"")),
    ("5.3 PRIORITY of an idle stream", frame(2, 0, 11, b"\0\0\0\7\xff")),
    ("6.5 SETTINGS with what is not known", SETTING({0xFF: 1})),
    ("6.5 SETTINGS acknowledged", frames.SETTINGS_ACK),
    ("6.5.3 every setting", SETTING({1: 0, 2: 0, 3: 5, 4: 70_000, 5: 20_000, 6: 9000})),
    ("6.7 PING acknowledged", frames.ping_frame(b"whatever", flags=ACK)),
    ("6.9 window of the connection", frames.window_update_frame(0, 1000)),
]


def called(peer: Http2Peer) -> bytes:
    """A call that has ended on the client's side and is not answered."""
    return peer.request(1, "/test.Echo/Hang", ends=True)


def reset_one() -> bytes:
    """RST_STREAM on stream 1."""
    return frames.rst_stream_frame(1, Http2Code.CANCEL)


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    async with echo_server() as running:
        yield running


async def exchange(echo: EchoServer, data: bytes, peer: Http2Peer, *, until: int) -> list[Frame]:
    """Send behind a greeting; what comes back until a type of frame, or until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    writer.write(peer.hello() + data)
    found: list[Frame] = []
    async with asyncio.timeout(10):
        while not of_kind(found, until):
            chunk = await reader.read(65_536)
            if not chunk:
                break
            found += peer.read(chunk)
    writer.transport.abort()
    return found


@pytest.mark.parametrize("case", CONNECTION_ERRORS, ids=lambda case: case.name)
async def test_broken_rule_ends_the_connection(echo: EchoServer, case: Case) -> None:
    peer = Http2Peer()
    found = await exchange(echo, case.build(peer), peer, until=-1)
    goaway = found[-1]
    assert (goaway.kind, goaway.error_code) == (frames.GOAWAY, case.code)
    assert goaway.debug_text


@pytest.mark.parametrize("case", STREAM_ERRORS, ids=lambda case: case.name)
async def test_broken_rule_resets_the_stream_only(echo: EchoServer, case: Case) -> None:
    peer = Http2Peer()
    data = case.build(peer) + frames.ping_frame(b"stillok?")
    found = await exchange(echo, data, peer, until=frames.PING)
    resets = of_kind(found, frames.RST_STREAM)
    assert [(reset.stream_id, reset.error_code) for reset in resets] == [(1, case.code)]
    assert found[-1].payload == b"stillok?"


@pytest.mark.parametrize(
    "data", [each for _, each in LIVING_ON], ids=[name for name, _ in LIVING_ON]
)
async def test_allowed_frame_leaves_the_connection_as_it_is(echo: EchoServer, data: bytes) -> None:
    peer = Http2Peer()
    found = await exchange(echo, data + root(peer), peer, until=frames.DATA)
    assert of_kind(found, frames.HEADERS)[0].fields[":status"] == "200"


async def test_request_may_use_every_form_of_header_frames(echo: EchoServer) -> None:
    peer = Http2Peer()
    block = peer.block(ROOT_FIELDS)
    flags = END_STREAM | PADDED | frames.FLAG_PRIORITY
    first = frame(frames.HEADERS, flags, 1, b"\x04\x80\x00\x00\x03\xff" + block[:3] + bytes(4))
    rest = frame(frames.CONTINUATION, 0, 1, block[3:6]) + frame(9, END_HEADERS, 1, block[6:])
    found = await exchange(echo, first + rest, peer, until=frames.DATA)
    assert of_kind(found, frames.HEADERS)[0].fields[":status"] == "200"


async def test_answer_respects_a_window_of_one_byte(echo: EchoServer) -> None:
    peer = Http2Peer()
    found = await exchange(echo, SETTING({4: 1}) + root(peer), peer, until=frames.DATA)
    assert [len(each.payload) for each in of_kind(found, frames.DATA)] == [1]


async def test_preface_must_be_right(echo: EchoServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    writer.write(b"INVALID CONNECTION PREFACE\r\n\r\n")
    async with asyncio.timeout(10):
        found = Http2Peer().read(await reader.read())
    writer.transport.abort()
    assert (found[-1].kind, found[-1].error_code) == (frames.GOAWAY, PROTOCOL)
