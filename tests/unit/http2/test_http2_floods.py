"""Abuse that costs the sender less than the receiver: each kind has a bound, a code and a name."""

from collections.abc import Callable, Iterator

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.events import ConnectionEnded, Event, StreamCancelled
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.guard import Budget
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.http2_peer import GRPC_FIELDS, Duel

CALM = Http2Code.ENHANCE_YOUR_CALM
BEGUN = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C")]
FRAMES_MAX = 20_000


def drown(duel: Duel, pieces: Iterator[bytes]) -> tuple[int, ConnectionEnded]:
    """Feed pieces until the connection ends; how many were taken, and the end."""
    for taken, piece in enumerate(pieces):
        events: list[Event] = duel.receive(piece)
        duel.sent()
        if events and isinstance(events[-1], ConnectionEnded):
            return taken, events[-1]
    pytest.fail("the connection took everything")


def repeated(frame: bytes) -> Iterator[bytes]:
    """The same bytes many times."""
    return iter([frame] * FRAMES_MAX)


@pytest.mark.parametrize(
    ("frame", "taken", "flood", "text"),
    [
        (frames.ping_frame(b"12345678"), 10, "ping", "too_many_pings"),
        (frames.settings_frame({}), 999, "settings", "flood: settings"),
        (frames.SETTINGS_ACK, 999, "settings", "flood: settings"),
        (frames.frame(frames.PRIORITY, 0, 5, bytes(5)), 1000, "priority", "flood: priority"),
        (frames.frame(0xFA, 0, 0, b""), 1000, "unknown_frame", "flood: unknown_frame"),
        (frames.frame(frames.DATA, 0, 1, b""), 100, "empty_data", "flood: empty_data"),
        (frames.rst_stream_frame(1, 8), 1000, "reset", "flood: reset"),
        (frames.window_update_frame(0, 1), 1010, "window_update", "flood: window_update"),
        (frames.window_update_frame(1, 1), 1010, "window_update", "flood: window_update"),
    ],
)
def test_flood_of_one_frame_ends_the_connection(
    frame: bytes, taken: int, flood: str, text: str
) -> None:
    duel = Duel()
    duel.open(1)
    assert drown(duel, repeated(frame)) == (taken, ConnectionEnded(CALM, text, flood))


def window_changes() -> Iterator[bytes]:
    """SETTINGS frames, each with another initial window."""
    entry = frames.SETTING_INITIAL_WINDOW_SIZE
    return (frames.settings_frame({entry: number}) for number in range(FRAMES_MAX))


@pytest.mark.parametrize(("streams", "taken"), [(99, 999), (400, 199), (1000, 90)])
def test_changing_the_windows_of_many_streams_counts_by_their_number(
    streams: int, taken: int
) -> None:
    duel = Duel()
    for number in range(streams):
        duel.open(2 * number + 1)
    ended = ConnectionEnded(CALM, "flood: settings", "settings")
    assert drown(duel, window_changes()) == (taken, ended)


def test_changing_the_windows_of_very_many_streams_a_few_times_is_free() -> None:
    duel = Duel(Limits(streams_max=30_000))
    for number in range(30_000):
        duel.open(2 * number + 1)
    taken, _ = drown(duel, window_changes())
    assert taken == 4


def test_only_one_reset_of_a_finished_call_is_free() -> None:
    duel = Duel()
    duel.open(1)
    duel.core.finish(1, 0, "")
    resets = repeated(frames.rst_stream_frame(1, 0))
    assert drown(duel, resets) == (1001, ConnectionEnded(CALM, "flood: reset", "reset"))


@pytest.mark.parametrize("streams_max", [1, 100, 10_000])
def test_rapid_reset_ends_the_connection(streams_max: int) -> None:
    duel = Duel(Limits(streams_max=streams_max))
    pairs = (
        duel.peer.request(stream_id) + frames.rst_stream_frame(stream_id, Http2Code.CANCEL)
        for stream_id in range(1, FRAMES_MAX, 2)
    )
    assert drown(duel, pairs) == (1000, ConnectionEnded(CALM, "flood: reset", "reset"))


def test_making_the_server_reset_streams_counts_as_much() -> None:
    duel = Duel(Limits(streams_max=100))
    zero = bytes(4)
    pairs = (
        duel.peer.request(stream_id) + frames.frame(frames.WINDOW_UPDATE, 0, stream_id, zero)
        for stream_id in range(1, FRAMES_MAX, 2)
    )
    assert drown(duel, pairs) == (1000, ConnectionEnded(CALM, "flood: reset", "reset"))


def test_opening_streams_over_the_limit_again_and_again_ends_the_connection() -> None:
    duel = Duel(Limits(streams_max=1))
    requests = (duel.peer.request(stream_id) for stream_id in range(1, FRAMES_MAX, 2))
    assert drown(duel, requests) == (1001, ConnectionEnded(CALM, "flood: reset", "reset"))


def test_malformed_requests_count_as_resets() -> None:
    duel = Duel(Limits(streams_max=1))
    requests = (duel.peer.request(stream_id, "") for stream_id in range(1, FRAMES_MAX, 2))
    assert drown(duel, requests) == (1000, ConnectionEnded(CALM, "flood: reset", "reset"))


def test_data_on_closed_streams_ends_the_connection() -> None:
    duel = Duel()
    duel.open(1, ends=True)
    duel.core.finish(1, 0, "")
    late = duel.peer.message(1, b"late")
    assert drown(duel, repeated(late)) == (200, ConnectionEnded(CALM, "flood: stray", "stray"))


FIELDS = b"\x90" * 100
"""Fields of the static table, one byte each to the client."""


def refused_calls(duel: Duel) -> Iterator[bytes]:
    """Requests that are refused for their timeouts, each another."""
    for stream_id in range(1, FRAMES_MAX, 2):
        field = b"\x00\x0cgrpc-timeout\x06%06d" % stream_id
        block = duel.peer.block([*BEGUN, *GRPC_FIELDS]) + field + FIELDS
        yield frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, stream_id, block)
        duel.core.finish(stream_id, 13, "no")


def trailers(duel: Duel) -> Iterator[bytes]:
    """Calls that end with trailers."""
    flags = frames.FLAG_END_HEADERS | frames.FLAG_END_STREAM
    for stream_id in range(1, FRAMES_MAX, 2):
        request = duel.peer.request(stream_id)
        yield request + frames.frame(frames.HEADERS, flags, stream_id, FIELDS)
        duel.core.finish(stream_id, 0, "")


def stray_blocks(duel: Duel) -> Iterator[bytes]:
    """Trailers, again and again, of a call that has been answered."""
    duel.open(1)
    duel.core.finish(1, 0, "")
    return repeated(frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, 1, FIELDS))


def malformed_requests(duel: Duel) -> Iterator[bytes]:
    """Requests without a path."""
    block = duel.peer.block(BEGUN[:2]) + FIELDS
    for stream_id in range(1, FRAMES_MAX, 2):
        yield frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, stream_id, block)


@pytest.mark.parametrize(
    ("kind", "taken"),
    [(refused_calls, 94), (trailers, 100), (stray_blocks, 100), (malformed_requests, 98)],
)
def test_blocks_that_begin_no_call_count_by_their_fields(
    kind: Callable[[Duel], Iterator[bytes]], taken: int
) -> None:
    duel = Duel()
    ended = ConnectionEnded(CALM, "flood: lost_fields", "lost_fields")
    assert drown(duel, kind(duel)) == (taken, ended)


def test_calls_that_are_taken_may_have_any_number_of_fields() -> None:
    duel = Duel()
    for stream_id in range(1, 2001, 2):
        block = duel.peer.block([*BEGUN, *GRPC_FIELDS]) + FIELDS
        duel.receive(frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, stream_id, block))
        duel.core.finish(stream_id, 0, "")
        duel.sent()
    assert not duel.core.has_ended


def test_continuation_flood_ends_the_connection() -> None:
    duel = Duel()
    begun = frames.frame(frames.HEADERS, 0, 1, b"")
    pieces = iter([begun, *[frames.frame(frames.CONTINUATION, 0, 1, b"")] * 100])
    ended = ConnectionEnded(CALM, "flood: continuation", "continuation")
    assert drown(duel, pieces) == (9, ended)


def test_endless_header_block_ends_the_connection() -> None:
    duel = Duel(Limits(continuations_max=1000))
    begun = frames.frame(frames.HEADERS, 0, 1, b"")
    piece = frames.frame(frames.CONTINUATION, 0, 1, b"\x00\x01a\x7f\xff\xff\x03" + bytes(8000))
    ended = ConnectionEnded(CALM, "header list too large", "header_list")
    assert drown(duel, iter([begun, *[piece] * 1000])) == (5, ended)


def test_pings_that_follow_data_are_free() -> None:
    duel = Duel()
    duel.open(1)
    for _ in range(500):
        duel.core.send(1, b"data")
        duel.sent()
        assert duel.receive(frames.ping_frame(b"12345678")) == []


def test_keepalive_pings_every_30_seconds_are_free() -> None:
    duel = Duel(Limits(keepalive_ns=0))
    for _ in range(500):
        duel.wait(30 * SECOND_NS)
        assert duel.receive(frames.ping_frame(b"12345678")) == []


def test_window_updates_that_follow_data_are_free() -> None:
    duel = Duel(settings={frames.SETTING_INITIAL_WINDOW_SIZE: 1})
    duel.open(1)
    duel.core.send(1, bytes(5000))
    for _ in range(4000):
        update = frames.window_update_frame(1, 1) + frames.window_update_frame(0, 1)
        assert duel.receive(update) == []
        duel.sent()


def test_window_that_is_granted_with_each_call_is_free() -> None:
    duel = Duel(Limits(streams_max=5000))
    for stream_id in range(1, 6001, 2):
        request = duel.peer.request(stream_id) + frames.window_update_frame(stream_id, 5)
        assert len(duel.receive(request)) == 1


def test_window_that_is_granted_with_each_message_is_free() -> None:
    duel = Duel(settings={frames.SETTING_INITIAL_WINDOW_SIZE: 1 << 30})
    duel.open(1)
    duel.core.send(1, bytes(5) * 10_000)
    duel.sent()
    for _ in range(10_000):
        update = frames.window_update_frame(1, 5) + frames.window_update_frame(0, 5)
        assert duel.receive(update) == []


def test_pings_that_follow_refusals_are_free() -> None:
    duel = Duel()
    for stream_id in range(1, 1001, 2):
        duel.open(stream_id, ends=True)
        duel.core.finish(stream_id, 5, "no")
        assert duel.receive(frames.ping_frame(b"12345678")) == []


def test_cancelling_calls_at_an_ordinary_rate_is_free() -> None:
    duel = Duel(Limits(streams_max=10))
    for number in range(2000):
        duel.now += SECOND_NS // 100
        stream_id = 2 * number + 1
        assert len(duel.open(stream_id)) == 1
        duel.receive(frames.rst_stream_frame(stream_id, Http2Code.CANCEL))
        assert not duel.core.has_ended


def test_cancelling_thousands_of_old_calls_at_once_is_free() -> None:
    duel = Duel(Limits(streams_max=5000, keepalive_ns=0))
    numbers = range(1, 10_001, 2)
    for stream_id in numbers:
        duel.open(stream_id)
    duel.wait(SECOND_NS)
    for stream_id in numbers:
        (event,) = duel.receive(frames.rst_stream_frame(stream_id, Http2Code.CANCEL))
        assert event == StreamCancelled(stream_id, Http2Code.CANCEL)
    assert not duel.core.has_ended


def test_what_is_remembered_of_closed_streams_is_bounded() -> None:
    duel = Duel()
    for number in range(3000):
        stream_id = 2 * number + 1
        duel.open(stream_id, ends=True)
        duel.core.finish(stream_id, 0, "")
        duel.sent()
    assert len(duel.core._table._closed) == 1024


def test_budget_gives_its_burst_and_then_its_rate() -> None:
    budget = Budget(3, 10)
    assert [budget.spend(100) for _ in range(5)] == [True, True, True, False, False]
    assert [budget.spend(110), budget.spend(110)] == [True, False]
    assert [budget.spend(10_000) for _ in range(4)] == [True, True, True, False]
