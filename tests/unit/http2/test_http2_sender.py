"""The sending half: windows, cutting, fairness, trailers, and what is told to producers."""

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import ConnectionEnded, RequestEnded, StreamWritable
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.sender import OUT_MARK_BYTES, TURN_BYTES, Sender
from liftbridge_broker.http2.stream import Stream
from liftbridge_testkit.http2_peer import Duel, Frame, of_kind

WINDOW = frames.SETTING_INITIAL_WINDOW_SIZE
FRAME = frames.SETTING_MAX_FRAME_SIZE
END = frames.FLAG_END_STREAM
SMALL_MARKS = Limits(high_mark_bytes=1000, low_mark_bytes=200, queued_bytes_max=5000)


def wide(limits: Limits | None = None, frame_bytes: int = 16_384) -> Duel:
    """A peer that takes 1 GiB on every stream and on the connection."""
    duel = Duel(limits, settings={WINDOW: 1 << 30, FRAME: frame_bytes})
    duel.receive(frames.window_update_frame(0, 1 << 30))
    return duel


def bodies(found: list[Frame], stream_id: int) -> list[bytes]:
    """Payloads of the DATA frames of one stream."""
    data = of_kind(found, frames.DATA)
    return [frame.payload for frame in data if frame.stream_id == stream_id]


class Compared(Stream):
    """A stream that counts how often one is compared with another."""

    __slots__ = ()
    times = 0
    __hash__ = Stream.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return self is other


def test_forgetting_a_stream_looks_at_no_other() -> None:
    sender = Sender(low_mark=1)
    streams = [Compared(number, is_grpc=True, window=100) for number in range(1, 2001, 2)]
    for stream in streams:
        sender.queue(stream, b"x")
    for stream in reversed(streams):
        assert sender.has_work
        sender.forget(stream)
    assert Compared.times == 0
    assert (sender.has_work, sender.queued_bytes) == (False, 0)


def test_forgotten_stream_leaves_the_others_in_their_order() -> None:
    duel = Duel()
    for stream_id in (1, 3, 5, 7):
        duel.open(stream_id)
        duel.core.send(stream_id, b"%d" % stream_id)
    duel.receive(frames.rst_stream_frame(3, Http2Code.CANCEL))
    assert [frame.payload for frame in of_kind(duel.sent(), frames.DATA)] == [b"1", b"5", b"7"]


def test_answer_is_headers_then_data_then_trailers() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    duel.core.send(1, b"answer")
    duel.core.finish(1, 0, "")
    headers, data, trailers = duel.sent()
    assert headers.flags == frames.FLAG_END_HEADERS
    assert headers.fields == {":status": "200", "content-type": "application/grpc"}
    assert (data.payload, data.flags) == (b"answer", 0)
    assert trailers.flags == frames.FLAG_END_HEADERS | END
    assert trailers.fields == {"grpc-status": "0"}
    assert duel.core.stream_count == 0


def test_refusal_before_any_message_is_one_frame() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    duel.core.finish(1, 5, "no such stream: \u00fc%\n")
    (only,) = duel.sent()
    assert only.flags == frames.FLAG_END_HEADERS | END
    assert only.fields == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "no such stream: %C3%BC%25%0A",
    }


def test_unimplemented_names_the_encodings_that_are_taken() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    duel.core.finish(1, 12, "no")
    assert duel.sent()[0].fields["grpc-accept-encoding"] == "identity"


def test_everything_sent_in_a_turn_is_one_frame() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.send(1, b"a")
    duel.core.send(1, [b"b", b"", b"c"])
    duel.core.send(1, b"d")
    assert bodies(duel.sent(), 1) == [b"abcd"]


def test_large_bytes_are_cut_at_the_largest_frame_the_peer_takes() -> None:
    duel = wide(frame_bytes=20_000)
    duel.open(1)
    body = bytes(range(256)) * 200
    duel.core.send(1, [body[:7], body[7:30_000], body[30_000:]])
    cut = bodies(duel.sent(), 1)
    assert [len(each) for each in cut] == [20_000, 20_000, 11_200]
    assert b"".join(cut) == body


def test_frame_may_end_with_a_queued_piece() -> None:
    duel = Duel(settings={WINDOW: 6})
    duel.open(1)
    duel.core.send(1, [b"abc", b"def", b"ghi"])
    assert bodies(duel.sent(), 1) == [b"abcdef"]


def test_stream_in_line_may_be_reset() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.send(1, b"never sent")
    duel.receive(frames.rst_stream_frame(1, Http2Code.CANCEL))
    assert of_kind(duel.sent(), frames.DATA) == []
    assert duel.core.queued_bytes == 0


def test_no_byte_is_sent_beyond_the_window_of_the_stream() -> None:
    duel = Duel(settings={WINDOW: 10})
    duel.open(1, ends=True)
    duel.core.send(1, b"0123456789abcdef")
    duel.core.finish(1, 0, "")
    assert bodies(duel.sent(), 1) == [b"0123456789"]
    duel.receive(frames.window_update_frame(1, 4))
    assert bodies(duel.sent(), 1) == [b"abcd"]
    duel.receive(frames.window_update_frame(1, 400))
    data, trailers = duel.sent()
    assert (data.payload, trailers.flags & END) == (b"ef", END)


def test_no_byte_is_sent_beyond_the_window_of_the_connection() -> None:
    duel = Duel(settings={WINDOW: 1 << 20})
    duel.open(1)
    duel.open(3)
    duel.core.send(1, bytes(60_000))
    duel.core.send(3, bytes(60_000))
    assert sum(len(frame.payload) for frame in of_kind(duel.sent(), frames.DATA)) == 65_535
    duel.receive(frames.window_update_frame(0, 60_000))
    assert sum(len(frame.payload) for frame in of_kind(duel.sent(), frames.DATA)) == 54_465


def test_trailers_without_data_do_not_wait_for_a_window() -> None:
    duel = Duel(settings={WINDOW: 1 << 20})
    duel.open(1)
    duel.open(3, ends=True)
    duel.core.send(1, bytes(70_000))
    duel.sent()
    duel.core.finish(3, 0, "")
    assert [frame.stream_id for frame in duel.sent()] == [3]


def test_smaller_initial_window_may_make_a_window_negative() -> None:
    duel = Duel(settings={WINDOW: 10})
    duel.open(1)
    duel.core.send(1, b"0123456789abcdef")
    duel.sent()
    duel.receive(frames.settings_frame({WINDOW: 4}))
    duel.receive(frames.window_update_frame(1, 6))
    assert bodies(duel.sent(), 1) == []
    duel.receive(frames.window_update_frame(1, 1))
    assert bodies(duel.sent(), 1) == [b"a"]


def test_stream_in_line_may_lose_its_window_by_a_setting() -> None:
    duel = Duel(settings={WINDOW: 10})
    duel.open(1)
    duel.core.send(1, b"0123456789")
    duel.receive(frames.settings_frame({WINDOW: 0}))
    assert bodies(duel.sent(), 1) == []
    duel.receive(frames.settings_frame({WINDOW: 3}))
    assert bodies(duel.sent(), 1) == [b"012"]


def test_streams_take_turns() -> None:
    duel = wide()
    for stream_id in (1, 3):
        duel.open(stream_id)
        duel.core.send(stream_id, bytes(4 * TURN_BYTES))
    first = duel.peer.read(b"".join(duel.core.take_output(duel.now)))
    by_stream = [sum(map(len, bodies(first, stream_id))) for stream_id in (1, 3)]
    assert by_stream == [2 * TURN_BYTES, 2 * TURN_BYTES]


def test_one_write_is_bounded_and_the_rest_follows() -> None:
    duel = wide()
    duel.open(1)
    duel.core.send(1, bytes(4 * OUT_MARK_BYTES))
    first = b"".join(duel.core.take_output(duel.now))
    assert OUT_MARK_BYTES <= len(first) < OUT_MARK_BYTES + TURN_BYTES + 1000
    assert duel.core.has_more_output()
    rest = b"".join(bodies(duel.peer.read(first) + duel.sent(), 1))
    assert len(rest) == 4 * OUT_MARK_BYTES
    assert not duel.core.has_more_output()


def test_producer_is_told_to_wait_and_to_go_on() -> None:
    duel = Duel(SMALL_MARKS, settings={WINDOW: 0})
    duel.open(1)
    assert duel.core.send(1, bytes(999))
    assert not duel.core.send(1, bytes(2))
    for window, events in ((700, []), (100, []), (1, [StreamWritable(1)]), (100, [])):
        duel.receive(frames.window_update_frame(1, window))
        duel.sent()
        assert duel.core.take_events() == events
    assert duel.core.send(1, bytes(1))


def test_request_goes_unread_once_the_call_is_finished() -> None:
    duel = Duel(settings={WINDOW: 0})
    duel.open(1)
    duel.core.send(1, b"queued")
    duel.core.finish(1, 0, "")
    assert duel.receive(duel.peer.message(1, b"more")) == []
    assert duel.receive(duel.peer.data(1, b"\x00\x00")) == []


def test_room_is_a_part_of_what_is_free() -> None:
    limits = Limits(queued_bytes_max=1_600_000, high_mark_bytes=100_000, low_mark_bytes=50_000)
    duel = Duel(limits, settings={WINDOW: 0})
    for stream_id in (1, 3, 5):
        duel.open(stream_id)
    assert duel.core.room(1) == 100_000
    assert not duel.core.send(3, bytes(800_000))
    assert duel.core.room(1) == 50_000
    assert duel.core.send(1, bytes(40_000))
    assert duel.core.room(1) == 5000
    assert duel.core.send(1, bytes(1000))
    assert duel.core.room(1) == 4096
    assert not duel.core.send(3, bytes(400_000))
    assert duel.core.room(5) == 16_384
    assert duel.core.room(7) == 0


def test_thousand_slow_readers_stay_within_the_bound() -> None:
    duel = Duel(Limits(queued_bytes_max=64 << 20), settings={WINDOW: 0})
    for stream_id in range(1, 2001, 2):
        duel.open(stream_id)
        while duel.core.send(stream_id, bytes(min(duel.core.room(stream_id), 256 << 10))):
            pass
    assert not duel.core.has_ended
    assert 48 << 20 <= duel.core.queued_bytes <= 64 << 20


def test_throttled_stream_goes_on_at_a_quarter_of_its_share() -> None:
    limits = Limits(queued_bytes_max=200_000, high_mark_bytes=100_000)
    duel = Duel(limits, settings={WINDOW: 0})
    duel.open(1)
    assert not duel.core.send(1, bytes(20_000))
    duel.receive(frames.window_update_frame(1, 15_903))
    duel.sent()
    assert duel.core.take_events() == []
    duel.receive(frames.window_update_frame(1, 1))
    duel.sent()
    assert duel.core.take_events() == [StreamWritable(1)]


def test_finished_stream_is_not_told_to_go_on() -> None:
    duel = Duel(SMALL_MARKS, settings={WINDOW: 0})
    duel.open(1, ends=True)
    duel.core.send(1, bytes(2000))
    duel.core.finish(1, 0, "")
    duel.receive(frames.window_update_frame(1, 5000))
    duel.sent()
    assert duel.core.take_events() == []
    assert duel.core.stream_count == 0


def test_responses_that_nobody_reads_end_the_connection() -> None:
    duel = Duel(SMALL_MARKS, settings={WINDOW: 0})
    for stream_id in (1, 3, 5):
        duel.open(stream_id)
    duel.core.send(1, bytes(2000))
    duel.core.send(3, bytes(2000))
    assert duel.core.take_events() == []
    duel.core.send(5, bytes(2000))
    text = "responses are not being read"
    assert duel.core.take_events() == [ConnectionEnded(11, text, "unread")]
    assert duel.sent()[-1].error_code == Http2Code.ENHANCE_YOUR_CALM


def test_blocked_socket_holds_everything_back() -> None:
    duel = wide()
    duel.open(1)
    duel.core.on_write_paused(duel.now)
    duel.core.send(1, b"later")
    duel.receive(frames.ping_frame(b"12345678"))
    assert duel.sent() == []
    assert not duel.core.has_more_output()
    duel.core.on_write_resumed()
    kinds = [frame.kind for frame in duel.sent()]
    assert kinds == [frames.HEADERS, frames.PING, frames.DATA]


def test_control_frames_for_a_peer_that_reads_nothing_are_bounded() -> None:
    duel = Duel()
    duel.core.on_write_paused(duel.now)
    events = []
    for stream_id in range(1, 60_001, 2):
        for event in duel.open(stream_id, "/no/" + "x" * 20, ends=True):
            if isinstance(event, RequestEnded):
                duel.core.finish(stream_id, 5, "x" * 100)
            elif isinstance(event, ConnectionEnded):
                events.append(event)
    assert events == [ConnectionEnded(11, "answers are not being read", "unread")]


def test_answer_before_the_request_has_ended_tells_the_client_to_stop() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.finish(1, 9, "no")
    trailers, reset = duel.sent()
    assert trailers.flags & END
    assert (reset.kind, reset.error_code) == (frames.RST_STREAM, Http2Code.NO_ERROR)


def test_plain_answer_ends_with_an_empty_frame() -> None:
    duel = Duel()
    duel.receive(duel.peer.request(1, "/", verb="GET", more=(), ends=True))
    duel.core.respond_plain(1, 200, b"hello")
    headers, data, end = duel.sent()
    assert headers.fields == {
        ":status": "200",
        "content-type": "text/plain; charset=utf-8",
        "content-length": "5",
    }
    assert (data.payload, end.payload, end.flags) == (b"hello", b"", END)


def test_plain_answer_may_be_empty() -> None:
    duel = Duel()
    duel.receive(duel.peer.request(1, "/", verb="HEAD", more=(), ends=True))
    duel.core.respond_plain(1, 200, b"")
    headers, end = duel.sent()
    assert (headers.fields["content-length"], end.flags) == ("0", END)


@pytest.mark.parametrize("act", ["send", "finish", "respond_plain", "set_reading", "expect"])
def test_acting_on_a_stream_that_is_gone_does_nothing(act: str) -> None:
    duel = Duel()
    duel.open(1)
    duel.receive(frames.rst_stream_frame(1, Http2Code.CANCEL))
    match act:
        case "send":
            assert duel.core.send(1, b"x") is False
        case "finish":
            duel.core.finish(1, 0, "")
        case "respond_plain":
            duel.core.respond_plain(1, 200, b"")
        case "set_reading":
            duel.core.set_reading(1, is_reading=True)
        case _:
            duel.core.expect_request(1)
    assert duel.sent() == []


def test_acting_twice_after_the_end_does_nothing() -> None:
    duel = Duel(settings={WINDOW: 0})
    duel.open(1, ends=True)
    duel.core.send(1, b"queued")
    duel.core.finish(1, 0, "")
    duel.core.finish(1, 13, "again")
    assert duel.core.send(1, b"more") is False
    duel.receive(frames.window_update_frame(1, 100))
    data, trailers = [frame for frame in duel.sent() if frame.kind != frames.WINDOW_UPDATE][-2:]
    assert (data.payload, trailers.fields) == (b"queued", {"grpc-status": "0"})
