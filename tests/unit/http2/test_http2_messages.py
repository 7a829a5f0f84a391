"""DATA frames into gRPC messages, and the credit the client gets back for them."""

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    Event,
    MessageRefused,
    MessagesReceived,
    RequestEnded,
    StreamCancelled,
)
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.http2_peer import GRPC_FIELDS, PATH, Duel, of_kind, prefixed

SMALL = Limits(
    message_bytes_max=1000,
    stream_window_bytes=4000,
    connection_window_bytes=70_000,
    partial_bytes_max=1500,
)


def messages(events: list[Event]) -> list[bytes]:
    """All messages in a list of events that holds nothing else."""
    found: list[bytes] = []
    for event in events:
        assert isinstance(event, MessagesReceived)
        found += event.messages
    return found


def updates(duel: Duel) -> list[tuple[int, int]]:
    """Stream and increment of each WINDOW_UPDATE sent since last asked."""
    found = of_kind(duel.sent(), frames.WINDOW_UPDATE)
    return [(frame.stream_id, int.from_bytes(frame.payload, "big")) for frame in found]


def test_messages_of_one_chunk_come_as_one_event_for_each_stream() -> None:
    duel = Duel()
    duel.open(1)
    duel.open(3)
    message = duel.peer.message
    events = duel.receive(
        message(1, b"a"), message(3, b"x"), message(1, b"bb"), message(3, b""), message(1, b"ccc")
    )
    assert events == [
        MessagesReceived(1, [b"a", b"bb", b"ccc"]),
        MessagesReceived(3, [b"x", b""]),
    ]
    assert all(type(each) is bytes for event in events for each in event.messages)  # type: ignore[union-attr] # checked above


def test_frame_may_hold_several_messages_and_a_message_several_frames() -> None:
    duel = Duel()
    duel.open(1)
    body = prefixed(b"one") + prefixed(b"") + prefixed(b"three") + prefixed(b"f" * 500)
    for cut in (1, 4, 7, 9, 20, 21, 100, 400):
        head = duel.receive(duel.peer.data(1, body[:cut]))
        tail = duel.receive(duel.peer.data(1, body[cut:]))
        assert messages(head) + messages(tail) == [b"one", b"", b"three", b"f" * 500]


def test_message_of_many_frames_makes_no_event_before_it_is_whole() -> None:
    duel = Duel()
    duel.open(1)
    body = prefixed(b"z" * 3_000_000)
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    for piece in pieces[:-1]:
        assert duel.receive(duel.peer.data(1, piece)) == []
    assert messages(duel.receive(duel.peer.data(1, pieces[-1]))) == [b"z" * 3_000_000]


def test_padding_is_taken_off_and_counted() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    payload = b"\xff" + prefixed(b"padded") + bytes(255)
    padded = frames.frame(frames.DATA, frames.FLAG_PADDED, 1, payload)
    assert messages(duel.receive(padded)) == [b"padded"]
    duel.receive(*[padded] * 7)
    assert updates(duel) == [(1, 8 * len(payload))]


def test_end_of_request_follows_its_last_message() -> None:
    duel = Duel()
    events = duel.receive(duel.peer.request(1), duel.peer.message(1, b"only", ends=True))
    assert events[1:] == [MessagesReceived(1, [b"only"]), RequestEnded(1)]


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
def test_request_that_ends_inside_a_message_is_refused(cut: int) -> None:
    duel = Duel()
    duel.open(1)
    events = duel.receive(duel.peer.data(1, prefixed(b"whole")[:cut], ends=True))
    assert events == [MessageRefused(1, 13, "request ended inside a message")]


@pytest.mark.parametrize("cut", [1001, 5, 4, 3])
def test_message_over_the_limit_is_refused_by_its_prefix(cut: int) -> None:
    duel = Duel(SMALL)
    duel.open(1)
    body = prefixed(b"x" * 1001)
    first = duel.receive(duel.peer.data(1, body[:cut]))
    second = duel.receive(duel.peer.data(1, body[cut:]))
    refused = MessageRefused(1, 8, "received message larger than max (1001 vs. 1000)")
    assert first + second == [refused]
    assert duel.receive(duel.peer.message(1, b"more")) == []


def test_message_of_exactly_the_limit_is_taken() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    assert messages(duel.receive(duel.peer.message(1, b"x" * 1000))) == [b"x" * 1000]


@pytest.mark.parametrize(
    ("encoding", "status", "text"),
    [
        ("gzip", 12, "grpc-encoding gzip is not supported"),
        (None, 13, "compressed flag set with identity or empty encoding"),
    ],
)
def test_compressed_message_is_refused(encoding: str | None, status: int, text: str) -> None:
    duel = Duel()
    more = () if encoding is None else (("grpc-encoding", encoding),)
    duel.receive(duel.peer.request(1, PATH, more=(*GRPC_FIELDS, *more)))
    events = duel.receive(duel.peer.data(1, b"\x01" + prefixed(b"zip")[1:]))
    assert events == [MessageRefused(1, status, text)]


def test_messages_before_a_refused_one_are_still_given() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    events = duel.receive(duel.peer.data(1, prefixed(b"good") + prefixed(b"x" * 1001)[:9]))
    assert events[0] == MessagesReceived(1, [b"good"])
    assert isinstance(events[1], MessageRefused)


def test_incomplete_messages_of_all_streams_are_bounded_together() -> None:
    duel = Duel(SMALL)
    half = prefixed(b"x" * 1000)[:800]
    duel.open(1)
    duel.open(3)
    assert duel.receive(duel.peer.data(1, half)) == []
    text = "too many bytes in incomplete messages on this connection"
    assert duel.receive(duel.peer.data(3, half)) == [MessageRefused(3, 8, text)]
    duel.core.finish(3, 8, text)
    duel.open(5)
    assert messages(duel.receive(duel.peer.data(1, prefixed(b"x" * 1000)[800:]))) == [b"x" * 1000]
    assert duel.receive(duel.peer.data(5, half)) == []


def test_bound_of_incomplete_messages_may_be_reached_within_a_prefix() -> None:
    duel = Duel(Limits(message_bytes_max=1000, partial_bytes_max=3))
    duel.open(1)
    assert duel.receive(duel.peer.data(1, b"\x00\x00")) == []
    assert isinstance(duel.receive(duel.peer.data(1, b"\x00\x00\x01z"))[0], MessageRefused)
    assert duel.core._table.partial_bytes == 0


class TestKeptMessages:
    """Complete messages whose request has not ended count as incomplete ones do."""

    def keep(self, duel: Duel, stream_id: int) -> list[Event]:
        """Open a call, give it a message and keep that."""
        duel.open(stream_id)
        (message,) = messages(duel.receive(duel.peer.message(stream_id, b"x" * 800)))
        duel.core.keep(stream_id, len(message))
        return duel.core.take_events()

    def test_they_are_bounded_together_with_incomplete_ones(self) -> None:
        duel = Duel(SMALL)
        assert self.keep(duel, 1) == []
        text = "too many bytes in incomplete messages on this connection"
        refused = MessageRefused(3, 8, text)
        assert self.keep(duel, 3) == [refused]
        duel.open(5)
        half = prefixed(b"x" * 1000)[:800]
        assert duel.receive(duel.peer.data(5, half)) == [MessageRefused(5, 8, text)]
        assert duel.core._table.partial_bytes == 800

    def test_they_no_longer_count_when_the_request_ends_is_answered_or_cancelled(self) -> None:
        duel = Duel(SMALL)
        for stream_id in range(1, 60, 6):
            assert self.keep(duel, stream_id) == []
            duel.receive(duel.peer.data(stream_id, b"", ends=True))
            assert self.keep(duel, stream_id + 2) == []
            duel.core.send(stream_id + 2, b"answer")
            duel.core.finish(stream_id + 2, 0, "")
            assert self.keep(duel, stream_id + 4) == []
            duel.receive(frames.rst_stream_frame(stream_id + 4, Http2Code.CANCEL))
            assert duel.core._table.partial_bytes == 0

    def test_what_is_kept_of_an_ended_or_refused_request_does_not_count(self) -> None:
        duel = Duel(SMALL)
        duel.open(1, ends=True)
        duel.core.keep(1, 100)
        duel.open(3)
        duel.receive(duel.peer.message(3, b"x" * 1001))
        duel.core.keep(3, 100)
        duel.core.keep(5, 100)
        assert duel.core._table.partial_bytes == 0


def test_message_may_be_followed_by_a_reset_in_one_chunk() -> None:
    duel = Duel()
    events = duel.receive(
        duel.peer.request(1), duel.peer.message(1, b"m"), frames.rst_stream_frame(1, 8)
    )
    assert events[1:] == [MessagesReceived(1, [b"m"]), StreamCancelled(1, 8)]


def test_bytes_of_a_cancelled_stream_no_longer_count() -> None:
    duel = Duel(SMALL)
    half = prefixed(b"x" * 1000)[:800]
    for stream_id in range(1, 41, 2):
        duel.open(stream_id)
        assert duel.receive(duel.peer.data(stream_id, half)) == []
        duel.receive(frames.rst_stream_frame(stream_id, Http2Code.CANCEL))
    assert duel.core._table.partial_bytes == 0


def test_credit_goes_back_in_steps_of_half_a_window() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    duel.receive(duel.peer.message(1, b"x" * 995))
    assert updates(duel) == []
    duel.receive(duel.peer.message(1, b"x" * 995))
    assert updates(duel) == [(1, 2000)]


def test_credit_of_the_connection_is_that_of_all_streams() -> None:
    duel = Duel(SMALL)
    granted = 0
    for stream_id in range(1, 101, 2):
        duel.open(stream_id)
        duel.receive(duel.peer.message(stream_id, b"x" * 995))
        granted += sum(increment for stream, increment in updates(duel) if stream == 0)
    assert granted == 35_000


def test_client_that_ignores_its_stream_window_is_reset() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    duel.core.set_reading(1, is_reading=False)
    events = duel.receive(*[duel.peer.message(1, b"x" * 995)] * 5)
    assert events[-1] == StreamCancelled(1, Http2Code.FLOW_CONTROL_ERROR)


def test_client_that_ignores_the_window_of_the_connection_is_cut_off() -> None:
    limits = Limits(stream_window_bytes=1 << 20, connection_window_bytes=66_000)
    duel = Duel(limits)
    duel.open(1)
    events = duel.receive(*[duel.peer.message(1, b"x" * 10_000)] * 7)
    text = "more DATA than the connection's window"
    assert events[-1] == ConnectionEnded(Http2Code.FLOW_CONTROL_ERROR, text)


def test_held_credit_is_given_when_reading_goes_on() -> None:
    duel = Duel(SMALL)
    duel.open(1)
    duel.core.set_reading(1, is_reading=False)
    duel.receive(*[duel.peer.message(1, b"x" * 995)] * 4)
    assert updates(duel) == []
    duel.core.set_reading(1, is_reading=True)
    assert updates(duel) == [(1, 4000)]


def test_data_of_a_plain_request_is_counted_and_dropped() -> None:
    duel = Duel(SMALL)
    duel.receive(duel.peer.request(1, "/", more=()))
    assert duel.receive(*[duel.peer.data(1, bytes(1000))] * 3) == []
    assert updates(duel) == [(1, 2000)]


def test_frame_may_be_cut_anywhere() -> None:
    whole = Duel().peer.message(1, b"whole") + frames.ping_frame(b"12345678")
    for cut in range(len(whole)):
        duel = Duel()
        duel.open(1)
        assert messages(duel.receive(whole[:cut]) + duel.receive(whole[cut:])) == [b"whole"]
        assert of_kind(duel.sent(), frames.PING)[0].payload == b"12345678"
