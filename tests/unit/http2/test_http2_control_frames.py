"""SETTINGS, PING, RST_STREAM, PRIORITY, WINDOW_UPDATE, GOAWAY: what each does, and its errors."""

from collections.abc import ValuesView

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import ConnectionEnded, StreamCancelled
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.stream import Stream
from liftbridge_testkit.http2_peer import Duel, Frame, of_kind

PROTOCOL = Http2Code.PROTOCOL_ERROR
SIZE = Http2Code.FRAME_SIZE_ERROR
FLOW = Http2Code.FLOW_CONTROL_ERROR


def ends(duel: Duel, data: bytes) -> tuple[int, str]:
    """Feed bytes that must end the connection; code and text, which the GOAWAY carries too."""
    events = duel.receive(data)
    ended = events[-1]
    assert isinstance(ended, ConnectionEnded)
    goaway = duel.sent()[-1]
    assert (goaway.kind, goaway.error_code, goaway.debug_text) == (7, ended.code, ended.text)
    return ended.code, ended.text


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frames.frame(frames.SETTINGS, 0, 1, b""), PROTOCOL),
        (frames.frame(frames.SETTINGS, 0, 0, b"12345"), SIZE),
        (frames.frame(frames.SETTINGS, frames.FLAG_ACK, 0, b"123456"), SIZE),
        (frames.settings_frame({frames.SETTING_ENABLE_PUSH: 2}), PROTOCOL),
        (frames.settings_frame({frames.SETTING_INITIAL_WINDOW_SIZE: 1 << 31}), FLOW),
        (frames.settings_frame({frames.SETTING_MAX_FRAME_SIZE: 16_383}), PROTOCOL),
        (frames.settings_frame({frames.SETTING_MAX_FRAME_SIZE: 1 << 24}), PROTOCOL),
        (frames.frame(frames.PING, 0, 1, b"12345678"), PROTOCOL),
        (frames.frame(frames.PING, 0, 0, b"1234567"), SIZE),
        (frames.frame(frames.RST_STREAM, 0, 0, b"1234"), PROTOCOL),
        (frames.frame(frames.RST_STREAM, 0, 1, b"123"), SIZE),
        (frames.rst_stream_frame(1, 0), PROTOCOL),
        (frames.frame(frames.PRIORITY, 0, 0, b"12345"), PROTOCOL),
        (frames.frame(frames.PRIORITY, 0, 3, b"1234"), SIZE),
        (frames.frame(frames.PRIORITY, 0, 3, b"\x00\x00\x00\x03\x10"), PROTOCOL),
        (frames.frame(frames.WINDOW_UPDATE, 0, 0, b"123"), SIZE),
        (frames.frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL),
        (frames.window_update_frame(0, frames.WINDOW_MAX), FLOW),
        (frames.window_update_frame(1, 1), PROTOCOL),
        (frames.window_update_frame(2, 1), PROTOCOL),
        (frames.frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL),
        (frames.frame(frames.GOAWAY, 0, 0, bytes(7)), SIZE),
        (frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(5)), PROTOCOL),
        (frames.frame(frames.CONTINUATION, 4, 1, b""), PROTOCOL),
        (frames.frame(frames.DATA, 0, 0, b"x"), PROTOCOL),
        (frames.frame(frames.DATA, 0, 1, b"x"), PROTOCOL),
        (frames.frame(frames.DATA, frames.FLAG_PADDED, 1, b""), PROTOCOL),
        (frames.frame(frames.DATA, frames.FLAG_PADDED, 1, b"\x02x"), PROTOCOL),
        (frames.frame(frames.HEADERS, 4, 0, b""), PROTOCOL),
        (frames.frame(frames.HEADERS, 4, 2, b""), PROTOCOL),
        (frames.frame(frames.HEADERS, 4 | frames.FLAG_PADDED, 1, b"\x05x"), PROTOCOL),
        (frames.frame(frames.HEADERS, 4 | frames.FLAG_PADDED, 1, b""), SIZE),
        (frames.frame(frames.HEADERS, 4 | frames.FLAG_PRIORITY, 1, b"1234"), SIZE),
        (frames.frame(frames.HEADERS, 4 | frames.FLAG_PRIORITY, 1, b"\x00\x00\x00\x01x"), PROTOCOL),
        (frames.frame(frames.DATA, 0, 1, bytes(16_385)), SIZE),
        (frames.frame(99, 0, 0, bytes(16_385)), SIZE),
    ],
)
def test_broken_frame_ends_the_connection_with_its_code(data: bytes, code: Http2Code) -> None:
    assert ends(Duel(), data)[0] == code


def test_unknown_frames_and_settings_are_ignored() -> None:
    duel = Duel()
    events = duel.receive(
        frames.frame(0xFA, 0xFF, 0, b"anything"),
        frames.frame(0x0A, 0, 7, b""),
        frames.settings_frame({0x99: 5}),
        frames.frame(frames.PRIORITY, 0, 9, b"\x80\x00\x00\x03\x10"),
    )
    assert events == []
    assert [frame.kind for frame in duel.sent()] == [frames.SETTINGS]


def test_reserved_bit_of_a_stream_number_is_ignored() -> None:
    duel = Duel()
    duel.open(1)
    events = duel.receive(frames.frame(frames.RST_STREAM, 0, 1 | 1 << 31, bytes(4)))
    assert events == [StreamCancelled(1, 0)]


def test_ping_is_answered_with_its_payload() -> None:
    duel = Duel()
    duel.receive(frames.ping_frame(b"12345678"))
    assert duel.sent() == [Frame(frames.PING, frames.FLAG_ACK, 0, b"12345678", {})]


def test_answer_to_no_ping_is_ignored() -> None:
    duel = Duel()
    assert duel.receive(frames.ping_frame(b"12345678", flags=frames.FLAG_ACK)) == []
    assert duel.sent() == []


def test_reset_cancels_the_stream_and_drops_its_queue() -> None:
    duel = Duel(settings={frames.SETTING_INITIAL_WINDOW_SIZE: 10})
    duel.open(1)
    duel.core.send(1, b"x" * 100)
    duel.sent()
    events = duel.receive(frames.rst_stream_frame(1, Http2Code.CANCEL))
    assert events == [StreamCancelled(1, Http2Code.CANCEL)]
    assert (duel.core.stream_count, duel.core.queued_bytes) == (0, 0)


def test_frames_under_way_at_a_reset_of_ours_are_ignored() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.finish(1, 13, "no")
    assert of_kind(duel.sent(), frames.RST_STREAM)[0].error_code == Http2Code.NO_ERROR
    late = duel.peer.message(1, b"late"), frames.window_update_frame(1, 5)
    assert duel.receive(*late, frames.rst_stream_frame(1, 0)) == []
    assert duel.sent() == []


def test_data_behind_the_end_of_a_closed_stream_is_answered_with_stream_closed() -> None:
    duel = Duel()
    duel.open(1)
    duel.receive(frames.rst_stream_frame(1, Http2Code.CANCEL))
    assert duel.receive(duel.peer.message(1, b"late")) == []
    assert [frame.error_code for frame in duel.sent()] == [Http2Code.STREAM_CLOSED]


def test_data_behind_the_end_of_a_request_resets_the_stream() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    events = duel.receive(duel.peer.message(1, b"late"))
    assert events == [StreamCancelled(1, Http2Code.STREAM_CLOSED)]


def test_window_update_of_zero_or_over_the_maximum_resets_its_stream() -> None:
    duel = Duel()
    duel.open(1)
    duel.open(3)
    zero = frames.frame(frames.WINDOW_UPDATE, 0, 1, bytes(4))
    events = duel.receive(zero, frames.window_update_frame(3, frames.WINDOW_MAX))
    assert events == [StreamCancelled(1, PROTOCOL), StreamCancelled(3, FLOW)]


def test_initial_window_that_lifts_a_stream_over_the_maximum_ends_the_connection() -> None:
    duel = Duel()
    duel.open(1)
    duel.receive(frames.window_update_frame(1, frames.WINDOW_MAX - 65_535))
    larger = frames.settings_frame({frames.SETTING_INITIAL_WINDOW_SIZE: 65_536})
    assert ends(duel, larger)[0] == FLOW


class Walked(dict[int, Stream]):
    """Open streams that count how often somebody looks at all of them."""

    walks = 0

    def values(self) -> ValuesView[Stream]:  # type: ignore[override] # a view all the same
        """Count, and give them."""
        self.walks += 1
        return super().values()


def watch(duel: Duel) -> Walked:
    """Have the streams of a connection counted."""
    walked = duel.core._table.streams = Walked(duel.core._table.streams)
    return walked


def window_settings(*values: int) -> bytes:
    """One SETTINGS frame that gives the initial window several times."""
    entry = frames.SETTING_INITIAL_WINDOW_SIZE
    packed = [frames.SETTING.pack(entry, value) for value in values]
    return frames.frame(frames.SETTINGS, 0, 0, b"".join(packed))


def test_window_that_one_frame_gives_thousands_of_times_is_changed_once() -> None:
    duel = Duel()
    for stream_id in range(1, 101, 2):
        duel.open(stream_id)
    walked = watch(duel)
    assert duel.receive(window_settings(*range(2729), 70_000)) == []
    assert walked.walks == 1
    assert {one.window for one in walked.values()} == {70_000}
    assert [frame.kind for frame in duel.sent()] == [frames.SETTINGS]


def test_window_that_stays_as_it_is_changes_no_stream() -> None:
    duel = Duel()
    duel.open(1)
    walked = watch(duel)
    assert duel.receive(window_settings(1, 65_535), frames.settings_frame({})) == []
    assert walked.walks == 0


def test_bad_value_ends_the_connection_although_a_good_one_follows() -> None:
    duel = Duel()
    assert ends(duel, window_settings(1 << 31, 65_535))[0] == FLOW


def test_connection_ends_after_a_goaway_of_the_client_with_the_last_stream() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    assert duel.receive(frames.goaway_frame(0, 0, "bye")) == []
    duel.core.finish(1, 0, "")
    assert duel.core.take_events() == [ConnectionEnded(0, "all streams have ended")]


def test_connection_ends_at_once_after_a_goaway_of_the_client_without_streams() -> None:
    duel = Duel()
    events = duel.receive(frames.goaway_frame(0, Http2Code.INTERNAL_ERROR, "bye"))
    assert events == [ConnectionEnded(0, "all streams have ended")]


def test_stream_numbers_must_rise() -> None:
    duel = Duel()
    duel.open(5)
    assert ends(duel, duel.peer.request(3)) == (PROTOCOL, "stream 3 after stream 5")


def test_headers_on_a_closed_stream_end_the_connection() -> None:
    duel = Duel()
    duel.open(1)
    duel.receive(frames.rst_stream_frame(1, Http2Code.CANCEL))
    code, _ = ends(duel, duel.peer.request(1))
    assert code == Http2Code.STREAM_CLOSED


def test_events_before_a_fault_are_still_reported() -> None:
    duel = Duel()
    events = duel.receive(duel.peer.request(1), duel.peer.message(1, b"m"), duel.peer.data(0, b""))
    names = [type(event).__name__ for event in events]
    assert names == ["RequestReceived", "MessagesReceived", "ConnectionEnded"]
