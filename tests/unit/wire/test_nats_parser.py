"""The NATS parser: equal results however the bytes are cut, bounded, and never fooled."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.wire import nats as wire
from liftbridge_broker.wire.nats import (
    HEAD_CACHE_COUNT_MAX,
    INFO_BYTES_MAX,
    LINE_BYTES_MAX,
    NatsParser,
    NatsProtocolError,
    appended_header_block,
    header_block,
    publish_head,
    subscribe_line,
    unsubscribe_line,
)


class Recorder:
    """Flattens what a parser tells into one list, in order within each subscription."""

    def __init__(self):
        self.messages = {}
        self.control = []
        self.chunks = []

    def on_messages(self, subscription, arrivals, payloads):
        assert len(arrivals) == len(payloads) > 0
        self.chunks.append((subscription, arrivals, payloads))
        self.messages.setdefault(subscription, []).extend(zip(arrivals, payloads, strict=True))

    def _seen(self):
        return {subscription: len(found) for subscription, found in self.messages.items()}

    def on_ping(self):
        self.control.append(("ping", self._seen()))

    def on_pong(self):
        self.control.append(("pong", self._seen()))

    def on_ok(self):
        self.control.append(("ok", self._seen()))

    def on_error(self, text):
        self.control.append((text, self._seen()))

    def on_info(self, body):
        self.control.append((body, self._seen()))


def read(data, *, size=None, cuts=()):
    recorder = Recorder()
    parser = NatsParser(recorder)
    if size:
        cuts = range(size, len(data), size)
    previous = 0
    for cut in (*cuts, len(data)):
        parser.feed(data[previous:cut])
        previous = cut
    return recorder


def msg(subject, sid, payload, reply=""):
    middle = f"{subject} {sid} {reply} " if reply else f"{subject} {sid} "
    return f"MSG {middle}{len(payload)}\r\n".encode() + payload + b"\r\n"


def hmsg(subject, sid, headers, payload, reply=""):
    middle = f"{subject} {sid} {reply} " if reply else f"{subject} {sid} "
    sizes = f"{len(headers)} {len(headers) + len(payload)}"
    return f"HMSG {middle}{sizes}\r\n".encode() + headers + payload + b"\r\n"


HEADERS = appended_header_block(PartitionId(1 << 24))
STREAM = b"".join(
    (
        b'INFO {"a":1}\r\n',
        msg("foo", 1, b"one"),
        msg("foo", 1, b"two"),
        msg("foo", 1, b"2nd"),
        msg("foo", 1, b"3rd"),
        msg("foo", 1, b""),
        msg("foo", 1, b"MSG foo 1 3\r\nfake\r\n"),
        msg("bar.baz", 22, b"\r\n", reply="_INBOX.x"),
        b"PING\r\n",
        hmsg("foo", 1, HEADERS, b"own"),
        hmsg("foo", 1, HEADERS, b"own too"),
        hmsg("foo", 1, HEADERS, b""),
        hmsg("foo", 1, b"NATS/1.0\r\n\r\n", b"other", reply="r"),
        msg("foo", 1, b"three"),
        b"+OK\r\n-ERR 'Slow Consumer'\r\n",
        msg("gr\u00fc\u00df", 3, b"x" * 300),
        b"PONG\r\n",
    )
)
EXPECTED = {
    1: [
        (Arrival("foo", "", b""), b"one"),
        (Arrival("foo", "", b""), b"two"),
        (Arrival("foo", "", b""), b"2nd"),
        (Arrival("foo", "", b""), b"3rd"),
        (Arrival("foo", "", b""), b""),
        (Arrival("foo", "", b""), b"MSG foo 1 3\r\nfake\r\n"),
        (Arrival("foo", "", HEADERS), b"own"),
        (Arrival("foo", "", HEADERS), b"own too"),
        (Arrival("foo", "", HEADERS), b""),
        (Arrival("foo", "r", b"NATS/1.0\r\n\r\n"), b"other"),
        (Arrival("foo", "", b""), b"three"),
    ],
    22: [(Arrival("bar.baz", "_INBOX.x", b""), b"\r\n")],
    3: [(Arrival("gr\u00fc\u00df", "", b""), b"x" * 300)],
}
EXPECTED_CONTROL = [
    (b'{"a":1}', {}),
    ("ping", {1: 6, 22: 1}),
    ("ok", {1: 11, 22: 1}),
    ("Slow Consumer", {1: 11, 22: 1}),
    ("pong", {1: 11, 22: 1, 3: 1}),
]


def test_stream_in_one_piece():
    recorder = read(STREAM)
    assert recorder.messages == EXPECTED
    assert recorder.control == EXPECTED_CONTROL


def test_stream_cut_at_every_byte_gives_the_same():
    for cut in range(1, len(STREAM)):
        recorder = read(STREAM, cuts=(cut,))
        assert recorder.messages == EXPECTED, cut
        assert recorder.control == EXPECTED_CONTROL, cut


def test_stream_cut_at_every_two_bytes_near_each_other_gives_the_same():
    for cut in range(1, len(STREAM) - 3):
        for gap in (1, 2, 3):
            assert read(STREAM, cuts=(cut, cut + gap)).messages == EXPECTED, (cut, gap)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64])
def test_stream_in_small_pieces_gives_the_same(size):
    recorder = read(STREAM, size=size)
    assert recorder.messages == EXPECTED
    assert recorder.control == EXPECTED_CONTROL


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "a.b", "other"]),
        st.integers(1, 3),
        st.binary(max_size=40) | st.just(b"MSG a 1 1\r\n") | st.just(b"\r\n"),
        st.sampled_from(["", "", "", "inbox.1"]),
        st.sampled_from([b"", b"", HEADERS, b"NATS/1.0 503\r\n\r\n"]),
    ),
    max_size=30,
)


@given(MESSAGES, st.lists(st.integers(0, 2000), max_size=6))
def test_messages_come_back_as_sent_however_cut(messages, cuts):
    data, expected = b"", {}
    for subject, sid, payload, reply, headers in messages:
        one = (
            hmsg(subject, sid, headers, payload, reply)
            if headers
            else msg(subject, sid, payload, reply)
        )
        data += one
        expected.setdefault(sid, []).append((Arrival(subject, reply, headers), payload))
    assert read(data, cuts=sorted(min(cut, len(data)) for cut in cuts)).messages == expected


def test_equal_arrivals_of_one_chunk_are_one_object_whatever_the_size():
    data = b"".join(msg("foo", 1, b"x" * size) for size in (1, 2, 1, 3, 1))
    [(_, arrivals, _)] = read(data).chunks
    assert len({id(arrival) for arrival in arrivals}) == 1


def test_arrivals_with_equal_replies_in_a_row_are_one_object():
    data = msg("foo", 1, b"a", "r") + msg("foo", 1, b"bb", "r")
    [(_, arrivals, _)] = read(data).chunks
    assert arrivals[0] is arrivals[1]


def test_one_call_for_each_subscription_of_a_chunk():
    data = (msg("a", 1, b"1") + msg("b", 2, b"2")) * 50
    assert [(sid, len(p)) for sid, _, p in read(data).chunks] == [(1, 50), (2, 50)]


def test_same_subject_for_two_subscriptions_is_kept_apart():
    data = (msg("a", 1, b"x") + msg("a", 2, b"x")) * 3
    assert {sid: len(found) for sid, found in read(data).messages.items()} == {1: 3, 2: 3}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"BLAH x\r\n", "unknown operation b'BLAH'"),
        (b"msg foo 1 3\r\nabc\r\n", "unknown operation b'msg'"),
        (b"\r\n", "unknown operation b''"),
        (b"MSG foo 1\r\n", "MSG with 2 arguments"),
        (b"MSG foo 1 a b 3\r\nabc\r\n", "MSG with 5 arguments"),
        (b"HMSG foo 1 3\r\n", "HMSG with 3 arguments"),
        (b"MSG foo x 3\r\nabc\r\n", "b'x' is not a number"),
        (b"MSG foo 1 -3\r\nabc\r\n", "b'-3' is not a number"),
        (b"MSG foo 1 1_0\r\n", "b'1_0' is not a number"),
        (b"MSG foo 1 " + b"9" * 13 + b"\r\n", "is not a number"),
        ("MSG foo 1 \u0663\r\n".encode(), "is not a number"),
        (b"MSG foo 1 67108865\r\n", "message of 67108865 bytes exceeds 67108864"),
        (b"HMSG foo 1 12 5\r\n", "message of 5 bytes with 12 of headers"),
        (b"HMSG foo 1 0 5\r\nabcde\r\n", "message of 5 bytes with 0 of headers"),
        (b"MSG foo 1 3\r\nabcd\r\n", "is not as long as its size field says"),
        (b"MSG foo 1 3\r\nabcXXPING\r\n", "is not as long as its size field says"),
        (b"x" * (LINE_BYTES_MAX + 1), f"line longer than {LINE_BYTES_MAX} bytes"),
        (b"MSG " + b"x" * LINE_BYTES_MAX + b" 1 3\r\n", f"line longer than {LINE_BYTES_MAX}"),
        (b"INFO " + b"x" * INFO_BYTES_MAX, f"line longer than {INFO_BYTES_MAX} bytes"),
    ],
)
def test_malformed_input_is_told_in_clear_words(data, text):
    with pytest.raises(NatsProtocolError) as caught:
        read(data)
    assert text in str(caught.value)


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_long_line_is_refused_in_any_pieces(size):
    with pytest.raises(NatsProtocolError, match="line longer"):
        read(b"x" * (INFO_BYTES_MAX + 2), size=size)


def test_messages_before_a_fault_are_delivered():
    recorder = Recorder()
    parser = NatsParser(recorder)
    with pytest.raises(NatsProtocolError):
        parser.feed(msg("foo", 1, b"a") * 3 + b"RUBBISH\r\n")
    assert len(recorder.messages[1]) == 3


def test_message_with_a_wrong_end_is_seen_and_not_delivered():
    for good in range(5):
        recorder = Recorder()
        with pytest.raises(NatsProtocolError, match="is not as long"):
            NatsParser(recorder).feed(
                msg("foo", 1, b"abc") * good + b"MSG foo 1 3\r\nabcde" + msg("foo", 1, b"abc") * 2
            )
        assert len(recorder.messages.get(1, [])) == good


def test_large_message_in_small_chunks_is_not_copied_again_and_again():
    payload = b"x" * (8 << 20)
    data = msg("foo", 1, payload)
    chunks = [data[i : i + 1024] for i in range(0, len(data), 1024)]
    recorder = Recorder()
    parser = NatsParser(recorder)
    started = time.process_time()
    for chunk in chunks:
        parser.feed(chunk)
    # Copying the rest at each chunk would move 32 GiB, which takes seconds.
    assert time.process_time() - started < 1.0
    assert recorder.messages[1] == [(Arrival("foo", "", b""), payload)]


def test_caches_are_bounded_whatever_arrives():
    recorder = Recorder()
    parser = NatsParser(recorder)
    for start in range(0, 3 * HEAD_CACHE_COUNT_MAX, 512):
        parser.feed(b"".join(msg(f"s.{start + i}", 1, b"x") for i in range(512)))
        parser.feed(
            b"".join(hmsg("s", 1, header_block([("n", str(start + i))]), b"x") for i in range(512))
        )
        assert len(parser._heads) <= HEAD_CACHE_COUNT_MAX
        assert len(parser._arrivals) <= HEAD_CACHE_COUNT_MAX
    big = header_block([("n", "x" * 100_000)])
    parser.feed(hmsg("s", 1, big, b"x") + msg("y" * 2000, 1, b"x"))
    assert max(map(len, parser._heads)) < 1024
    assert max(len(arrival.subject) for _, arrival in parser._arrivals) < 1024
    assert len(recorder.messages[1]) == 6 * HEAD_CACHE_COUNT_MAX + 2
    assert recorder.messages[1][-2] == (Arrival("s", "", big), b"x")


def test_mutated_streams_raise_nothing_but_protocol_errors(fuzz):
    pieces = [
        b'INFO {"a":1}\r\n',
        msg("foo", 1, b"one"),
        msg("foo", 1, b"one"),
        msg("foo.bar", 2, b"MSG foo 1 3\r\n", reply="r"),
        hmsg("foo", 1, HEADERS, b"own"),
        b"PING\r\n",
        b"-ERR 'x'\r\n",
    ]
    faults = told = 0
    for rng in fuzz.rounds(4222, 100_000):
        data = bytearray(b"".join(rng.choice(pieces) for _ in range(rng.randint(1, 4))))
        for _ in range(rng.randint(0, 3)):
            position = rng.randrange(len(data))
            what = rng.random()
            if what < 0.6:
                data[position] = rng.choice(b"\r\n 0123456789MSGH\x00\xff")
            elif what < 0.8:
                del data[position]
            else:
                data[position:position] = rng.choice((b" ", b"\r\n", b"9", b"MSG "))
            if not data:
                data = bytearray(b"x")
        recorder = Recorder()
        parser = NatsParser(recorder, payload_bytes_max=4096)
        cut = rng.randrange(len(data) + 1)
        try:
            parser.feed(bytes(data[:cut]))
            parser.feed(bytes(data[cut:]))
        except NatsProtocolError:
            faults += 1
        told += bool(recorder.messages)
    assert fuzz.count // 10 < faults < fuzz.count * 9 // 10
    assert told > fuzz.count * 3 // 10


def test_publish_heads():
    assert publish_head(b"foo", 3) == b"PUB foo 3\r\n"
    assert publish_head(b"foo", 3, b"in.1") == b"PUB foo in.1 3\r\n"
    block = header_block([("A", "b")])
    assert block == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert publish_head(b"foo", 3, b"in", block) == b"HPUB foo in 18 21\r\n" + block


@pytest.mark.parametrize("subject", [b"", b"a b", b"a\r\nPUB x 0", b"a\tb", b"a\nb"])
def test_publish_head_cannot_carry_protocol(subject):
    with pytest.raises(AssertionError):
        publish_head(subject, 3)


def test_subscription_lines():
    assert subscribe_line("foo.*", "", 7) == b"SUB foo.* 7\r\n"
    assert subscribe_line("foo.>", "group", 7) == b"SUB foo.> group 7\r\n"
    assert unsubscribe_line(7) == b"UNSUB 7\r\n"
    with pytest.raises(AssertionError):
        subscribe_line("foo", "a b", 7)


def test_appended_header_names_the_partition():
    block = appended_header_block(5 << 24 | 3)
    assert block == b"NATS/1.0\r\nLiftbridge-Appended: 83886083\r\n\r\n"


def test_built_frames_are_what_the_parser_reads():
    # A publisher's HPUB and a subscriber's HMSG differ in the subscription id alone.
    head = publish_head(b"foo", 5, b"in", HEADERS)
    data = head.replace(b"HPUB foo", b"HMSG foo 9") + b"hello" + wire.CRLF
    assert read(data).messages == {9: [(Arrival("foo", "in", HEADERS), b"hello")]}
