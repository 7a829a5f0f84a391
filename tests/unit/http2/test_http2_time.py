"""Time: deadlines of calls, slow and silent peers, idle connections, graceful drain."""

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.deadlines import NEVER, Deadlines
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    DeadlineExpired,
    MessageRefused,
    RequestReceived,
    StreamCancelled,
)
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.http2_peer import GRPC_FIELDS, PATH, Duel, Http2Peer, of_kind, prefixed

CALM = Http2Code.ENHANCE_YOUR_CALM
QUIET = Limits(keepalive_ns=0)


def open_with_timeout(duel: Duel, stream_id: int, timeout: str) -> None:
    """Open a call with a deadline."""
    more = (*GRPC_FIELDS, ("grpc-timeout", timeout))
    duel.receive(duel.peer.request(stream_id, PATH, more=more))


def test_deadline_of_a_call_expires_on_time() -> None:
    duel = Duel(QUIET)
    open_with_timeout(duel, 1, "2S")
    open_with_timeout(duel, 3, "1500m")
    open_with_timeout(duel, 5, "1H")
    assert duel.wait(1_499_999_999) == []
    assert duel.wait(1) == [DeadlineExpired(3)]
    duel.core.finish(3, 4, "deadline exceeded")
    assert duel.wait(500_000_000) == [DeadlineExpired(1)]
    assert duel.wait(3_000 * SECOND_NS) == []


def test_deadline_of_a_call_with_unread_bytes_resets_it() -> None:
    duel = Duel(QUIET, settings={frames.SETTING_INITIAL_WINDOW_SIZE: 0})
    open_with_timeout(duel, 1, "1S")
    duel.core.send(1, b"unread")
    assert duel.wait(SECOND_NS) == [StreamCancelled(1, Http2Code.CANCEL)]


def test_finished_call_has_no_deadline() -> None:
    duel = Duel(QUIET)
    open_with_timeout(duel, 1, "1S")
    duel.core.finish(1, 0, "")
    assert duel.wait(10 * SECOND_NS) == []


def test_peer_that_never_says_hello_is_sent_away() -> None:
    core = Connection(Limits(handshake_ns=3 * SECOND_NS), 0)
    core.receive(frames.PREFACE[:10], SECOND_NS)
    assert core.on_time(3 * SECOND_NS - 1) == []
    ended = ConnectionEnded(Http2Code.SETTINGS_TIMEOUT, "no SETTINGS within 3 s", "slow")
    assert core.on_time(3 * SECOND_NS) == [ended]


def test_handshake_has_no_deadline_once_it_is_done() -> None:
    assert Duel(QUIET).wait(1000 * SECOND_NS) == []


def test_frame_that_drips_in_ends_the_connection() -> None:
    duel = Duel(Limits(frame_ns=5 * SECOND_NS))
    duel.open(1)
    frame = duel.peer.message(1, bytes(100))
    for octet in frame[:19]:
        assert duel.receive(bytes((octet,))) == []
        assert duel.wait(SECOND_NS // 4) == []
    assert duel.wait(SECOND_NS // 4) == [ConnectionEnded(CALM, "frame incomplete for 5 s", "slow")]


def test_header_block_that_never_ends_ends_the_connection() -> None:
    duel = Duel(Limits(frame_ns=5 * SECOND_NS))
    duel.receive(frames.frame(frames.HEADERS, 0, 1, b"\x83"))
    duel.wait(4 * SECOND_NS)
    duel.receive(frames.frame(frames.CONTINUATION, 0, 1, b"\x86"))
    ended = ConnectionEnded(CALM, "headers incomplete for 5 s", "slow")
    assert duel.wait(SECOND_NS) == [ended]


def test_complete_frames_have_no_deadline() -> None:
    duel = Duel(Limits(frame_ns=5 * SECOND_NS, keepalive_ns=0))
    duel.open(1)
    frame = duel.peer.message(1, bytes(100))
    block = duel.peer.request(3)
    for _ in range(10):
        duel.receive(frame[:50])
        duel.wait(4 * SECOND_NS)
        duel.receive(frame[50:])
    split = block[frames.HEADER_BYTES :]
    duel.receive(frames.frame(frames.HEADERS, 0, 3, split[:9]))
    duel.receive(frames.frame(frames.CONTINUATION, frames.FLAG_END_HEADERS, 3, split[9:]))
    assert duel.wait(100 * SECOND_NS) == []


def test_message_that_is_never_completed_is_refused() -> None:
    duel = Duel(Limits(message_ns=9 * SECOND_NS, keepalive_ns=0))
    duel.open(1)
    body = prefixed(bytes(100))
    duel.receive(duel.peer.data(1, body[:50]))
    duel.wait(8 * SECOND_NS)
    duel.receive(duel.peer.data(1, body[50:90]))
    refused = MessageRefused(1, 4, "request incomplete after 9 s")
    assert duel.wait(SECOND_NS) == [refused]
    assert duel.wait(100 * SECOND_NS) == []


def test_complete_message_has_no_deadline() -> None:
    duel = Duel(Limits(message_ns=9 * SECOND_NS, keepalive_ns=0))
    duel.open(1)
    body = prefixed(bytes(100))
    duel.receive(duel.peer.data(1, body[:50]), duel.peer.data(1, body[50:]))
    assert duel.wait(100 * SECOND_NS) == []


def test_expected_request_that_does_not_come_is_refused() -> None:
    duel = Duel(Limits(message_ns=9 * SECOND_NS, keepalive_ns=0))
    duel.open(1)
    duel.core.expect_request(1)
    duel.open(3, ends=True)
    duel.core.expect_request(3)
    refused = MessageRefused(1, 4, "request incomplete after 9 s")
    assert duel.wait(100 * SECOND_NS) == [refused]


@pytest.mark.parametrize("cut", [1, 50, 104])
def test_expected_request_is_late_until_it_ends(cut: int) -> None:
    """Neither the beginning of its message nor the end of that gives it more time."""
    duel = Duel(Limits(message_ns=9 * SECOND_NS, keepalive_ns=0))
    for stream_id in (1, 3):
        duel.open(stream_id)
        duel.core.expect_request(stream_id)
    duel.wait(5 * SECOND_NS)
    body = prefixed(bytes(100))
    for stream_id in (1, 3):
        duel.receive(duel.peer.data(stream_id, body[:cut]))
        assert len(duel.receive(duel.peer.data(stream_id, body[cut:]))) == 1
    duel.receive(duel.peer.data(3, b"", ends=True))
    refused = MessageRefused(1, 4, "request incomplete after 9 s")
    assert duel.wait(4 * SECOND_NS) == [refused]
    assert duel.wait(100 * SECOND_NS) == []


def test_refused_request_is_not_refused_again_for_being_late() -> None:
    duel = Duel(Limits(message_ns=9 * SECOND_NS, message_bytes_max=10, keepalive_ns=0))
    duel.open(1)
    assert len(duel.receive(duel.peer.message(1, bytes(11)))) == 1
    duel.core.expect_request(1)
    assert duel.wait(100 * SECOND_NS) == []


def test_socket_that_takes_nothing_is_torn_down() -> None:
    duel = Duel(Limits(write_stall_ns=7 * SECOND_NS, keepalive_ns=0))
    duel.core.on_write_paused(duel.now)
    duel.wait(6 * SECOND_NS)
    duel.core.on_write_resumed()
    assert duel.wait(100 * SECOND_NS) == []
    duel.core.on_write_paused(duel.now)
    ended = ConnectionEnded(CALM, "socket took nothing for 7 s", "unread", is_abrupt=True)
    assert duel.wait(7 * SECOND_NS) == [ended]


def test_silent_peer_is_probed_and_then_given_up() -> None:
    duel = Duel(Limits(keepalive_ns=10 * SECOND_NS, keepalive_timeout_ns=3 * SECOND_NS))
    assert duel.wait(9 * SECOND_NS) == []
    assert duel.sent() == []
    assert duel.wait(SECOND_NS) == []
    (ping,) = duel.sent()
    assert (ping.kind, ping.flags) == (frames.PING, 0)
    ended = ConnectionEnded(0, "keepalive PING was not answered", is_abrupt=True)
    assert duel.wait(3 * SECOND_NS) == [ended]


def test_answered_probe_keeps_the_connection() -> None:
    duel = Duel(Limits(keepalive_ns=10 * SECOND_NS, keepalive_timeout_ns=3 * SECOND_NS))
    for _ in range(20):
        assert duel.wait(10 * SECOND_NS) == []
        for ping in of_kind(duel.sent(), frames.PING):
            duel.receive(frames.ping_frame(ping.payload, flags=frames.FLAG_ACK))
    assert not duel.core.has_ended


def test_connection_without_calls_is_asked_to_leave() -> None:
    duel = Duel(Limits(idle_ns=60 * SECOND_NS, keepalive_ns=0))
    duel.open(1)
    assert duel.wait(200 * SECOND_NS) == []
    assert of_kind(duel.sent(), frames.GOAWAY) == []
    duel.core.finish(1, 0, "")
    duel.receive()
    # A client that only says that it lives is idle all the same.
    duel.wait(30 * SECOND_NS)
    duel.receive(frames.ping_frame(b"12345678"))
    assert duel.wait(29 * SECOND_NS) == []
    events = duel.wait(3 * SECOND_NS)
    assert of_kind(duel.sent(), frames.GOAWAY)[0].debug_text == "max_idle"
    assert events == [ConnectionEnded(0, "all streams have ended")]


def test_idle_clock_starts_anew_after_each_call() -> None:
    duel = Duel(Limits(idle_ns=60 * SECOND_NS, keepalive_ns=0))
    duel.wait(20 * SECOND_NS)
    duel.open(1, ends=True)
    duel.wait(10 * SECOND_NS)
    duel.core.finish(1, 0, "")
    duel.sent()
    duel.wait(59 * SECOND_NS)
    assert of_kind(duel.sent(), frames.GOAWAY) == []
    duel.wait(SECOND_NS)
    assert len(of_kind(duel.sent(), frames.GOAWAY)) == 1


class TestDrain:
    """GOAWAY in two steps, then the end with the last call."""

    def test_calls_under_way_are_still_taken_and_finished(self) -> None:
        duel = Duel()
        duel.open(1)
        duel.core.lifecycle.begin_drain(duel.now)
        goaway, ping = duel.sent()
        assert (goaway.kind, goaway.payload[:4]) == (frames.GOAWAY, b"\x7f\xff\xff\xff")
        assert isinstance(duel.open(3)[0], RequestReceived)
        duel.receive(frames.ping_frame(ping.payload, flags=frames.FLAG_ACK))
        (final,) = duel.sent()
        assert (final.payload[:4], final.error_code) == (b"\x00\x00\x00\x03", 0)
        assert duel.open(5) == []
        assert [frame.error_code for frame in duel.sent()] == [Http2Code.REFUSED_STREAM]
        duel.core.finish(1, 0, "")
        assert duel.core.take_events() == []
        duel.core.finish(3, 0, "")
        assert duel.core.take_events() == [ConnectionEnded(0, "all streams have ended")]

    def test_client_that_does_not_answer_is_not_waited_for(self) -> None:
        duel = Duel()
        duel.core.lifecycle.begin_drain(duel.now)
        assert duel.wait(SECOND_NS) == [ConnectionEnded(0, "all streams have ended")]
        assert len(of_kind(duel.sent(), frames.GOAWAY)) == 2

    def test_asking_twice_changes_nothing(self) -> None:
        duel = Duel()
        duel.core.lifecycle.begin_drain(duel.now)
        duel.core.lifecycle.begin_drain(duel.now)
        assert len(of_kind(duel.sent(), frames.GOAWAY)) == 1

    def test_end_is_immediate(self) -> None:
        duel = Duel()
        duel.open(1)
        duel.core.lifecycle.end("closing")
        assert duel.core.take_events() == [ConnectionEnded(0, "closing")]
        assert duel.sent()[-1].debug_text == "closing"
        assert duel.core.on_time(duel.now + 1000 * SECOND_NS) == []
        duel.core.lifecycle.end("again")
        assert duel.core.take_events() == []

    def test_answer_to_a_ping_that_was_not_sent_drains_nothing(self) -> None:
        duel = Duel()
        pong = frames.ping_frame(b"goodbye!", flags=frames.FLAG_ACK)
        duel.receive(pong, pong, pong)
        assert duel.sent() == []
        assert isinstance(duel.open(1)[0], RequestReceived)


def test_no_time_bound_is_needed() -> None:
    limits = Limits(handshake_ns=0, frame_ns=0, message_ns=0, write_stall_ns=0, keepalive_ns=0)
    core = Connection(limits, 0)
    assert core.next_deadline() == NEVER
    core.receive(Http2Peer.hello(), 0)
    core.receive(Http2Peer().request(1) + Http2Peer.data(1, b"\x00\x00"), 0)
    core.receive(frames.frame(frames.HEADERS, 0, 3, b"") + b"\x00", 0)
    core.expect_request(1)
    core.on_write_paused(0)
    assert core.next_deadline() == NEVER


@pytest.mark.parametrize("now", [9, 10, 11])
def test_deadlines_are_given_in_order_of_setting_when_due(now: int) -> None:
    deadlines = Deadlines()
    deadlines.set("b", 10)
    deadlines.set("a", 10)
    deadlines.set("c", 5)
    deadlines.set("c", 50)
    deadlines.bring_forward("c", 60)
    deadlines.set("gone", 1)
    deadlines.clear("gone")
    assert deadlines.wake == 1
    assert deadlines.take_due(now) == (["b", "a"] if now >= 10 else [])
    assert deadlines.wake == (50 if now >= 10 else 10)
