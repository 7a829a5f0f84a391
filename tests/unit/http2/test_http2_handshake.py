"""The beginning of a connection: preface, settings, and peers that speak something else."""

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import ConnectionEnded
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.http2_peer import Duel, Http2Peer, of_kind


def test_server_announces_its_limits_first() -> None:
    limits = Limits(streams_max=7, stream_window_bytes=1 << 20, connection_window_bytes=1 << 21)
    core = Connection(limits, 0)
    core.receive(frames.PREFACE, 0)
    settings, update = Http2Peer().read(b"".join(core.take_output(0)))
    values = dict(frames.SETTING.iter_unpack(settings.payload))
    assert values == {
        frames.SETTING_MAX_CONCURRENT_STREAMS: 7,
        frames.SETTING_INITIAL_WINDOW_SIZE: 1 << 20,
        frames.SETTING_MAX_FRAME_SIZE: limits.frame_bytes_max,
        frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
    }
    assert update == (frames.WINDOW_UPDATE, 0, 0, ((1 << 21) - 65_535).to_bytes(4, "big"), {})


def test_connection_window_is_not_announced_where_it_is_the_default() -> None:
    core = Connection(Limits(connection_window_bytes=65_535), 0)
    core.receive(frames.PREFACE, 0)
    assert [frame.kind for frame in Http2Peer().read(b"".join(core.take_output(0)))] == [4]


def test_settings_of_the_client_are_acknowledged() -> None:
    acks = [frame for frame in Duel().greeting if frame.kind == frames.SETTINGS and frame.flags]
    assert [(ack.flags, ack.payload) for ack in acks] == [(frames.FLAG_ACK, b"")]


def test_preface_may_come_byte_by_byte() -> None:
    core = Connection(Limits(), 0)
    for octet in Http2Peer.hello():
        assert core.receive(bytes((octet,)), 0) == []
    sent = Http2Peer().read(b"".join(core.take_output(0)))
    assert of_kind(sent, frames.SETTINGS)[1].flags == frames.FLAG_ACK


@pytest.mark.parametrize(
    "start",
    [b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.1\r\n\r\n", b"PRI * XX", b"\x00", b"hello"],
)
def test_peer_that_speaks_something_else_gets_a_goaway(start: bytes) -> None:
    core = Connection(Limits(), 0)
    assert core.receive(start, 0) == [ConnectionEnded(1, "no HTTP/2 preface")]
    settings, _, goaway = Http2Peer().read(b"".join(core.take_output(0)))
    assert (settings.kind, settings.flags) == (frames.SETTINGS, 0)
    assert (goaway.kind, goaway.error_code) == (frames.GOAWAY, Http2Code.PROTOCOL_ERROR)


@pytest.mark.parametrize("verb", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_http1_request_is_answered_in_http1(verb: str, cut: int) -> None:
    core = Connection(Limits(), 0)
    request = f"{verb} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    events = [*core.receive(request[:cut], 0), *core.receive(request[cut:], 0)]
    assert events == [ConnectionEnded(1, "HTTP/1 request")]
    reply = b"".join(core.take_output(0))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b"gRPC" in body


def test_server_says_nothing_before_the_client() -> None:
    core = Connection(Limits(), 0)
    core.receive(frames.PREFACE[:-1], 0)
    assert core.take_output(0) == []


def test_first_frame_must_be_settings() -> None:
    core = Connection(Limits(), 0)
    ping = frames.ping_frame(b"12345678")
    events = core.receive(frames.PREFACE + ping, 0)
    assert events == [ConnectionEnded(1, "the first frame is not SETTINGS")]


def test_first_frame_must_not_be_an_acknowledgement() -> None:
    core = Connection(Limits(), 0)
    events = core.receive(frames.PREFACE + frames.SETTINGS_ACK, 0)
    assert events == [ConnectionEnded(1, "the first frame is not SETTINGS")]


def test_nothing_is_received_after_the_end() -> None:
    duel = Duel()
    duel.receive(frames.frame(frames.PUSH_PROMISE, 0, 1, b"12345"))
    assert duel.core.has_ended
    assert duel.open() == []
    assert duel.core.stream_count == 0
