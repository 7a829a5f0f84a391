"""However a socket cuts a conversation, the core sees the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import Event, MessagesReceived
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.http2_peer import Http2Peer, prefixed

LIMITS = Limits(message_bytes_max=200, stream_window_bytes=2000, streams_max=3)
IDS = st.sampled_from([1, 3, 5, 7])

# What a client may do, right and wrong; a list of these is turned into one run of bytes.
ACTS = st.one_of(
    st.tuples(st.just("open"), IDS, st.booleans()),
    st.tuples(st.just("message"), IDS, st.integers(0, 210)),
    st.tuples(st.just("pieces"), IDS, st.integers(1, 60)),
    st.tuples(st.just("end"), IDS, st.just(0)),
    st.tuples(st.just("reset"), IDS, st.just(0)),
    st.tuples(st.just("ping"), st.just(0), st.just(0)),
    st.tuples(st.just("settings"), st.just(0), st.integers(0, 70_000)),
    st.tuples(st.just("window"), IDS, st.integers(0, 100)),
    st.tuples(st.just("noise"), IDS, st.integers(0, 12)),
)


def conversation(acts: list[tuple[str, int, int]]) -> bytes:
    """The bytes of some acts, behind a preface."""
    peer = Http2Peer()
    sent = [peer.hello()]
    for act, stream_id, value in acts:
        match act:
            case "open":
                sent.append(peer.request(stream_id, ends=bool(value)))
            case "message":
                sent.append(peer.message(stream_id, b"m" * value))
            case "pieces":
                body = prefixed(b"p" * 70)
                sent += [peer.data(stream_id, body[:value]), peer.data(stream_id, body[value:])]
            case "end":
                sent.append(peer.data(stream_id, b"", ends=True))
            case "reset":
                sent.append(frames.rst_stream_frame(stream_id, 8))
            case "ping":
                sent.append(frames.ping_frame(b"12345678"))
            case "settings":
                sent.append(frames.settings_frame({4: value}))
            case "window":
                sent.append(frames.frame(8, 0, stream_id, value.to_bytes(4, "big")))
            case _:
                sent.append(frames.frame(value, value, stream_id, bytes(value)))
    return b"".join(sent)


def seen(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    """Events with all messages of a stream up to its next event in one, and what was sent."""
    core = Connection(LIMITS, 0)
    events: list[Event] = []
    sent = []
    for chunk in chunks:
        events += core.receive(chunk, 0)
        sent += core.take_output(0)
    return joined(events), b"".join(sent)


def joined(events: list[Event]) -> list[Event]:
    """Messages of a stream in one event, where the first of them was."""
    found: list[Event] = []
    places: dict[int, int] = {}
    for event in events:
        if not isinstance(event, MessagesReceived):
            found.append(event)
        elif event.stream_id in places:
            place = places[event.stream_id]
            known = found[place]
            assert isinstance(known, MessagesReceived)
            found[place] = MessagesReceived(event.stream_id, known.messages + event.messages)
        else:
            places[event.stream_id] = len(found)
            found.append(event)
    return found


@given(acts=st.lists(ACTS, max_size=25), cuts=st.lists(st.integers(0, 4000), max_size=20))
def test_any_cuts_give_the_same_events(acts: list[tuple[str, int, int]], cuts: list[int]) -> None:
    data = conversation(acts)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(at)]
    assert seen(pieces)[0] == seen([data])[0]


@given(acts=st.lists(ACTS, max_size=12))
def test_byte_by_byte_gives_the_same_events(acts: list[tuple[str, int, int]]) -> None:
    data = conversation(acts)
    assert seen([data[at : at + 1] for at in range(len(data))])[0] == seen([data])[0]


@given(acts=st.lists(ACTS, max_size=25), cuts=st.lists(st.integers(0, 4000), max_size=20))
def test_answers_are_whole_frames_and_windows_are_kept(
    acts: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    data = conversation(acts)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    _, sent = seen([data[begin:end] for begin, end in pairwise(at)])
    peer = Http2Peer()
    answered = peer.read(sent)
    assert peer._pending == b""
    granted = [frame for frame in answered if frame.kind == frames.WINDOW_UPDATE]
    received = len(data)
    assert sum(int.from_bytes(g.payload, "big") for g in granted if g.stream_id) <= received


@given(
    window=st.integers(1, 300),
    writes=st.lists(st.binary(max_size=400), min_size=1, max_size=10),
    updates=st.lists(st.integers(1, 300), max_size=30),
)
def test_sent_bytes_are_what_was_queued_within_the_window(
    window: int, writes: list[bytes], updates: list[int]
) -> None:
    peer = Http2Peer()
    core = Connection(LIMITS, 0)
    core.receive(peer.hello({4: window}) + peer.request(1, ends=True), 0)
    expected = b"".join(prefixed(write) for write in writes)
    got = b""
    for write in writes:
        core.send(1, [prefixed(b"")[:0], prefixed(write)])
        got += body_of(peer, core)
    core.finish(1, 0, "")
    for update in updates:
        window += update
        core.receive(frames.window_update_frame(1, update) if core.stream_count else b"", 0)
        got += body_of(peer, core)
        assert len(got) <= window
    assert got == expected[: max(len(got), min(window, len(expected)))]


def body_of(peer: Http2Peer, core: Connection) -> bytes:
    """Payload of the DATA frames sent since last asked."""
    found = peer.read(b"".join(core.take_output(0)))
    return b"".join(frame.payload for frame in found if frame.kind == frames.DATA)
