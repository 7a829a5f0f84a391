"""Cursors: keys, the partition that keeps them, and the bounded index of the latest offsets."""

import pytest

from liftbridge_broker.errors import (
    CorruptionError,
    FailedPreconditionError,
    InvalidRequestError,
)
from liftbridge_broker.groups.cursors import (
    UNKNOWN,
    Cursor,
    CursorIndex,
    CursorPosition,
    CursorScan,
    IndexState,
    Missing,
    check_cursor,
    cursor_key,
    cursors_partition,
    stamp,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.subjects import CURSOR_ID_BYTES_MAX
from liftbridge_broker.wire.cursors import decode_cursor, encode_cursor
from liftbridge_testkit.fuzzing import Fuzz


def test_the_key_is_that_of_the_original() -> None:
    assert cursor_key("foo", 3, "me") == b"me,foo,3"
    assert Cursor("foo", 3, "me", 9).key == b"me,foo,3"


def test_the_partition_is_crc_32_of_the_key() -> None:
    """0xCBF43926 is the check value of CRC-32 (IEEE) for these digits."""
    assert cursors_partition(b"123456789", 2**32) == 0xCBF43926
    assert cursors_partition(b"123456789", 10) == 0xCBF43926 % 10
    assert cursors_partition(b"me,foo,3", 1) == 0


@pytest.mark.parametrize(
    ("stream", "cursor_id", "text"),
    [
        ("", "", "No stream provided"),
        ("", "me", "No stream provided"),
        ("foo", "", "No cursorId provided"),
        ("a,b", "me", "Invalid stream: it contains ','"),
        ("foo", "x" * (CURSOR_ID_BYTES_MAX + 1),
         "Invalid cursor: stream or cursorId is longer than 1024 bytes"),
        ("x" * (CURSOR_ID_BYTES_MAX + 1), "me",
         "Invalid cursor: stream or cursorId is longer than 1024 bytes"),
    ],
)  # fmt: skip
def test_requests_are_refused_in_the_words_of_the_original(
    stream: str, cursor_id: str, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_cursor(stream, cursor_id)
    assert caught.value.text == text


def test_ids_with_commas_stay_apart() -> None:
    check_cursor("b", "a,b")
    assert cursor_key("b", 0, "a,b") != cursor_key("b", 0, "a")


def test_values_are_those_of_the_original() -> None:
    cursor = Cursor("foo", 3, "me", -1)

    assert encode_cursor(cursor) == b"\x0a\x03foo\x10\x03\x1a\x02me\x20" + b"\xff" * 9 + b"\x01"
    assert decode_cursor(encode_cursor(cursor)) == cursor
    assert encode_cursor(Cursor("foo", 0, "me", 0)) == b"\x0a\x03foo\x1a\x02me"
    known = Cursor("foo", 3, "me", 4, stream_id=9)
    assert encode_cursor(known) == b"\x0a\x03foo\x10\x03\x1a\x02me\x20\x04\x28\x09"
    assert decode_cursor(encode_cursor(known)) == known
    after = known._replace(unclean_epoch=5)
    assert decode_cursor(encode_cursor(after)) == after


def test_cursor_is_stored_with_the_id_of_its_stream() -> None:
    cursor = Cursor("foo", 3, "me", 4)
    assert stamp(cursor, 9, 0) == cursor._replace(stream_id=9)
    assert stamp(cursor, 0, 0) == cursor
    meant = cursor._replace(stream_id=9)
    assert stamp(meant, 9, 0) == meant
    assert stamp(meant, 9, 5) == meant._replace(unclean_epoch=5)


@pytest.mark.parametrize(
    ("present", "text"), [(9, "stream foo has id 9, not 7"), (0, "stream foo with id 7 does not")]
)
def test_cursor_of_another_stream_is_not_stored(present: int, text: str) -> None:
    with pytest.raises(FailedPreconditionError, match=f"cursor me is not set: {text}"):
        stamp(Cursor("foo", 3, "me", 4, stream_id=7), present, 0)


@pytest.mark.parametrize("unclean_epoch", [0, 5])
def test_cursor_is_stored_in_the_history_that_was_read(unclean_epoch: int) -> None:
    cursor = Cursor("foo", 3, "me", 4)
    stored = stamp(cursor, 9, unclean_epoch, read_in=unclean_epoch)
    assert stored == cursor._replace(stream_id=9, unclean_epoch=unclean_epoch)


@pytest.mark.parametrize(("read_in", "present"), [(0, 5), (5, 7), (5, 0)])
def test_cursor_of_what_was_read_in_another_history_is_not_stored(
    read_in: int, present: int
) -> None:
    text = f"foo/3 was read in history {read_in}, and {present} is current"
    with pytest.raises(FailedPreconditionError, match=text):
        stamp(Cursor("foo", 3, "me", 4), 9, present, read_in=read_in)


def test_what_is_no_cursor_is_corrupt() -> None:
    with pytest.raises(CorruptionError, match="value of a cursor"):
        decode_cursor(b"\x0a\xff")


def test_no_value_does_more_than_be_corrupt(fuzz: Fuzz) -> None:
    """Anyone may publish to the subject of `__cursors`."""
    whole = encode_cursor(Cursor("foo", 3, "me", -1))
    taken = 0
    for random in fuzz.rounds(1, 100_000):
        value = bytearray(whole[: random.randint(1, len(whole))])
        for _ in range(random.randint(1, 3)):
            value[random.randrange(len(value))] = random.randrange(256)
        try:
            found = decode_cursor(bytes(value))
        except CorruptionError:
            continue
        assert decode_cursor(encode_cursor(found)) == found
        taken += 1
    assert fuzz.count // 100 < taken < fuzz.count


def fed(index: CursorIndex, *cursors: tuple[bytes, int | None]) -> CursorIndex:
    for key, offset in cursors:
        position = None if offset is None else CursorPosition(offset)
        index.feed(key, position, index.next_offset)
    return index


def test_the_latest_offset_counts_also_when_it_goes_back() -> None:
    index = fed(CursorIndex(Offset(0)), (b"a", 5), (b"b", 6), (b"a", 3))

    assert index.look_up(b"a") == CursorPosition(3)
    assert index.look_up(b"b") == CursorPosition(6)
    assert index.look_up(b"c") is Missing.ABSENT
    assert len(index) == 2


def test_an_index_is_ready_when_everything_committed_was_fed() -> None:
    index = CursorIndex(Offset(2))
    assert index.state(Offset(2)) is IndexState.READY
    assert index.state(Offset(4)) is IndexState.LOADING

    fed(index, (b"a", 1))
    assert index.state(Offset(4)) is IndexState.LOADING
    index.skip_to(Offset(4))
    assert index.state(Offset(4)) is IndexState.READY


def test_records_that_were_fed_are_skipped() -> None:
    index = fed(CursorIndex(Offset(0)), (b"a", 1), (b"a", 2))
    index.feed(b"a", CursorPosition(1), Offset(0))

    assert index.look_up(b"a") == CursorPosition(2)
    assert index.next_offset == 2


def test_skipping_never_goes_back() -> None:
    index = fed(CursorIndex(Offset(0)), (b"a", 1), (b"a", 2))
    index.skip_to(Offset(1))

    assert index.next_offset == 2


def test_an_empty_value_removes_a_cursor() -> None:
    index = fed(CursorIndex(Offset(0)), (b"a", 1), (b"a", None), (b"b", None))

    assert index.look_up(b"a") is Missing.ABSENT
    assert len(index) == 0


def test_beyond_the_bound_the_longest_unused_is_forgotten_and_that_is_told() -> None:
    index = fed(CursorIndex(Offset(0), cursors_max=2), (b"a", 1), (b"b", 2))
    assert index.look_up(b"x") is Missing.ABSENT
    fed(index, (b"c", 3))

    assert len(index) == 2
    assert index.look_up(b"a") is Missing.FORGOTTEN
    assert index.look_up(b"b") == CursorPosition(2)
    fed(index, (b"d", 4))
    assert index.look_up(b"c") is Missing.FORGOTTEN
    assert index.look_up(b"b") == CursorPosition(2)


def test_a_scan_finds_what_was_forgotten() -> None:
    scan = CursorScan((b"a", b"none"), Offset(3))
    assert scan.next_offset == Offset(3)
    assert scan.results == {b"a": UNKNOWN, b"none": UNKNOWN}
    for offset, (key, value) in enumerate([(b"a", 1), (b"b", 9), (b"a", 2)], start=3):
        scan.feed(key, CursorPosition(value), Offset(offset))

    assert scan.next_offset == Offset(6)
    assert scan.results == {b"a": CursorPosition(2), b"none": UNKNOWN}
    scan.feed(b"a", None, Offset(6))
    assert scan.results[b"a"] == UNKNOWN
