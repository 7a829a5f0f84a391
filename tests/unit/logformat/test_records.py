"""Frames: what protobuf says of them, and that every way to write a record gives the same bytes."""

from collections.abc import Mapping, Sequence

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.frames import (
    Frame,
    decode_frame,
    frame_end,
    frame_key,
    frame_offset,
    frame_timestamp,
    iter_frames,
)
from liftbridge_broker.logformat.records import (
    FRAME_PREFIX,
    FRAME_PREFIX_SIZE,
    RecordEncoder,
    header_entry,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_proto import api_pb2

NOW = 1_700_000_000_123_456_789
BASES = (0, 1, 100, 127, 128, 16_300, 16_383, 16_384, 5_000_000, (1 << 28) - 3, (1 << 63) - 200)


def encoded(
    encoder: RecordEncoder,
    base: int,
    values: Sequence[bytes],
    *,
    timestamp: int = NOW,
    subject: str | bytes = "foo.bar",
    reply: str | bytes = "",
    keys: Sequence[bytes] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
) -> bytes:
    pieces = encoder.encode(
        base_offset=base,
        timestamp=timestamp,
        subject=subject,
        reply=reply,
        values=values,
        keys=keys,
        headers=headers,
    )
    return b"".join(pieces)


def parsed(data: bytes) -> list[api_pb2.Message]:
    """Messages in frames, read with nothing of ours but the prefix."""
    found = []
    at = 0
    while at < len(data):
        assert data[at] == 0
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        found.append(api_pb2.Message.FromString(data[at + 5 : end]))
        at = end
    assert at == len(data)
    return found


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("has_keys", [False, True])
def test_protobuf_reads_what_was_meant(base: int, has_keys: bool) -> None:
    values = [bytes([n % 256]) * (n * 3) for n in range(150)]
    keys = [b"k" * (n % 130) for n in range(150)] if has_keys else None
    data = encoded(RecordEncoder("stream", 5), base, values, keys=keys, reply="re.ply")
    messages = parsed(data)
    assert [m.offset for m in messages] == list(range(base, base + 150))
    assert [m.value for m in messages] == values
    assert [m.key for m in messages] == (keys or [b""] * 150)
    for message in messages:
        assert (message.stream, message.partition, message.timestamp) == ("stream", 5, NOW)
        assert (message.subject, message.replySubject) == ("foo.bar", "re.ply")
        assert dict(message.headers) == {"subject": b"foo.bar", "reply": b"re.ply"}
        assert (message.ackInbox, message.correlationId, message.ackPolicy) == ("", "", 0)


@pytest.mark.parametrize("base", BASES)
def test_all_paths_of_the_encoder_give_the_same_bytes(base: int) -> None:
    encoder = RecordEncoder("s", 0)
    values = [b"v" * n for n in range(150)]
    whole = encoded(encoder, base, values)
    ones = [encoded(encoder, base + n, [value]) for n, value in enumerate(values)]
    plain = [
        encoder.encode_record(
            offset=base + n, timestamp=NOW, subject="foo.bar", reply="", value=value
        )
        for n, value in enumerate(values)
    ]
    without_headers = encoded(encoder, base, values, headers=[None] * 150)
    no_keys = encoded(encoder, base, values, keys=[b""] * 150)
    assert whole == b"".join(ones) == b"".join(plain) == without_headers == no_keys


@pytest.mark.parametrize("timestamp", [0, 1, -1, 127, (1 << 28) - 1, 1 << 28, NOW, (1 << 63) - 1])
def test_every_timestamp_is_kept(timestamp: int) -> None:
    encoder = RecordEncoder("s", 0)
    data = encoded(encoder, 7, [b"v"], timestamp=timestamp)
    assert [m.timestamp for m in parsed(data)] == [timestamp]
    assert frame_timestamp(data, 0) == timestamp
    again = encoder.encode_record(
        offset=7, timestamp=timestamp, subject="foo.bar", reply="", value=b"v"
    )
    assert data == again


def test_clock_that_jumps_between_batches_is_followed() -> None:
    encoder = RecordEncoder("s", 0)
    times = [NOW, NOW + (1 << 28), NOW - (1 << 40), NOW, 5, NOW]
    data = b"".join(encoded(encoder, n, [b"v"], timestamp=t) for n, t in enumerate(times))
    assert [m.timestamp for m in parsed(data)] == times


def test_defaults_are_not_written() -> None:
    data = RecordEncoder("", 0).encode_record(
        offset=0, timestamp=0, subject="", reply="", value=b""
    )
    assert data[FRAME_PREFIX_SIZE:] == header_entry(b"subject", b"") + header_entry(b"reply", b"")
    assert decode_frame(data, 0, len(data)).value == b""


def test_headers_are_sorted_with_subjects_behind_and_never_forged() -> None:
    headers = {"z": b"1", "a": b"\xff", "subject": b"forged", "reply": b"forged", "ä": b""}
    data = encoded(RecordEncoder("s", 1), 3, [b"v"], headers=[headers], keys=[b"k"])
    frame = decode_frame(data, 0, len(data))
    assert frame.headers == (
        ("a", b"\xff"),
        ("z", b"1"),
        ("ä", b""),
        ("subject", b"foo.bar"),
        ("reply", b""),
    )
    assert frame.key == b"k"
    assert dict(parsed(data)[0].headers) == dict(frame.headers)


def test_subject_that_is_no_utf8_is_kept_in_the_header_and_readable_in_the_field() -> None:
    data = encoded(RecordEncoder("s", 0), 3, [b"v"], subject=b"a\xffb", reply=b"\xfe")
    message = parsed(data)[0]
    assert (message.subject, message.replySubject) == ("a\ufffdb", "\ufffd")
    assert message.headers["subject"] == b"a\xffb"
    assert decode_frame(data, 0, len(data)).headers[-1] == ("reply", b"\xfe")


def test_no_values_give_no_pieces() -> None:
    assert encoded(RecordEncoder("s", 0), 3, []) == b""


def test_caches_are_bounded_and_forgetting_changes_nothing() -> None:
    encoder = RecordEncoder("s", 0)
    first = encoded(encoder, 20_000, [b"x"] * 2, keys=[b"k"] * 2)
    for n in range(5000):
        encoded(encoder, 20_000, [b"x" * n] * 2, subject=f"s{n}", keys=[b"k" * n] * 2)
        encoded(encoder, 20_000, [b"x" * n] * 2)
    for n in range(4200):
        encoded(encoder, 20_000, [b""] * 2, subject="s" * n)
    cached = (encoder._constants, encoder._heads, encoder._value_sizes, encoder._key_sizes)
    assert max(len(cache) for cache in cached) <= 4096
    assert max(len(heads) for heads in encoder._heads.values()) <= 4096
    assert encoded(encoder, 20_000, [b"x"] * 2, keys=[b"k"] * 2) == first


def test_misuse_of_the_encoder_stops() -> None:
    encoder = RecordEncoder("s", 0)
    with pytest.raises(AssertionError):
        encoded(encoder, -1, [b"v"])
    with pytest.raises(AssertionError):
        encoded(encoder, 0, [b"v"], keys=[])
    with pytest.raises(AssertionError):
        encoded(encoder, 0, [b"v"], headers=[])
    with pytest.raises(AssertionError):
        RecordEncoder("s", -1)


def test_quick_looks_agree_with_decoding() -> None:
    encoder = RecordEncoder("s", 2)
    data = encoded(encoder, 0, [b"a", b"", b"c"], keys=[b"", b"k2", b"k3"])
    data += encoded(encoder, 3, [b"d"], timestamp=0)
    for start, end, offset in iter_frames(data, 0, len(data)):
        frame = decode_frame(data, start, end)
        assert frame_offset(data, start) == offset == frame.offset
        assert frame_key(data, start) == frame.key
        assert frame_timestamp(data, start) == frame.timestamp
        assert frame_end(data, start, len(data)) == end


def test_decoded_frame_holds_everything() -> None:
    data = encoded(RecordEncoder("s", 2), 9, [b"v"], keys=[b"k"], reply="r")
    assert decode_frame(memoryview(data), 0, len(data)) == Frame(
        offset=Offset(9),
        key=b"k",
        value=b"v",
        timestamp=NOW,
        stream="s",
        partition=2,
        subject="foo.bar",
        reply_subject="r",
        headers=(("subject", b"foo.bar"), ("reply", b"r")),
    )


def framed(body: bytes) -> bytes:
    return FRAME_PREFIX.pack(0, len(body)) + body


def entry(name: bytes, value: bytes) -> bytes:
    return header_entry(name, value)


TAIL = entry(b"subject", b"x") + entry(b"reply", b"")
SUBJECT = b"\x3a\x01x"


@pytest.mark.parametrize(
    "body",
    [
        b"\x08\x00" + SUBJECT + TAIL,
        b"\x08\x81\x00" + SUBJECT + TAIL,
        b"\x08" + b"\xff" * 9 + b"\x01" + SUBJECT + TAIL,
        b"\x08" + b"\xff" * 9 + b"\x02" + SUBJECT + TAIL,
        b"\x08" + b"\xff" * 10 + b"\x01" + SUBJECT + TAIL,
        b"\x12\x00" + SUBJECT + TAIL,
        b"\x1a\x01a\x12\x01k" + SUBJECT + TAIL,
        b"\x1a\x01a\x1a\x01b" + SUBJECT + TAIL,
        b"\x1a\x05a" + TAIL,
        b"\x20\x00" + SUBJECT + TAIL,
        b"\x2a\x01\xff" + SUBJECT + TAIL,
        b"\x30\x80\x80\x80\x80\x08" + SUBJECT + TAIL,
        SUBJECT + TAIL + b"\x52\x01a",
        SUBJECT + TAIL + b"\x08\x01",
        SUBJECT,
        SUBJECT + entry(b"subject", b"x"),
        SUBJECT + entry(b"reply", b"") + entry(b"subject", b"x"),
        SUBJECT + entry(b"b", b"") + entry(b"a", b"") + TAIL,
        SUBJECT + entry(b"a", b"") + entry(b"a", b"") + TAIL,
        SUBJECT + entry(b"reply", b"") + TAIL,
        SUBJECT + entry(b"subject", b"y") + entry(b"reply", b""),
        SUBJECT + entry(b"subject", b"x") + entry(b"reply", b"r"),
        SUBJECT + b"\x4a\x00" + TAIL,
        SUBJECT + b"\x4a\x03\x0a\x01a" + TAIL,
        SUBJECT + b"\x4a\x05\x12\x00\x0a\x01a" + TAIL,
        SUBJECT + b"\x4a\x07\x0a\x01a\x12\x00\x12\x00" + TAIL,
        SUBJECT + b"\x4a\x05\x0a\x01\xff\x12\x00" + TAIL,
        SUBJECT + b"\x4a\x04\x0a\x05a\x12" + TAIL,
    ],
)
def test_frame_that_the_encoder_would_not_write_is_refused(body: bytes) -> None:
    good = framed(SUBJECT + TAIL)
    assert decode_frame(good, 0, len(good)).subject == "x"
    data = framed(body)
    with pytest.raises(CorruptionError):
        decode_frame(data, 0, len(data))


def test_frame_must_be_whole_and_uncompressed() -> None:
    data = encoded(RecordEncoder("s", 2), 300, [b"value"], keys=[b"key"])
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_frame(data[:length], 0, length)
        with pytest.raises(CorruptionError):
            frame_offset(data[:length], 0)
    with pytest.raises(CorruptionError):
        decode_frame(b"\x01" + data[1:], 0, len(data))
    with pytest.raises(CorruptionError, match="does not end"):
        decode_frame(data + b"\0", 0, len(data) + 1)


def test_offsets_of_frames_must_rise() -> None:
    encoder = RecordEncoder("s", 0)
    data = encoded(encoder, 5, [b"a"]) + encoded(encoder, 5, [b"b"])
    with pytest.raises(CorruptionError, match="do not rise"):
        list(iter_frames(data, 0, len(data)))


def test_constants_of_long_subjects_are_not_kept() -> None:
    encoder = RecordEncoder("s", 0)
    whole = 0
    for number in range(100):
        for subject, reply in (("s" * 4_000 + str(number), ""), ("s", "r" * 4_000 + str(number))):
            frames = encoded(encoder, number, [b"v"], subject=subject, reply=reply)
            assert [(one.subject, one.replySubject) for one in parsed(frames)] == [(subject, reply)]
            whole += len(frames)
    kept = encoder._constants.values()
    assert sum(len(one.all) for one in kept) < whole / 100
