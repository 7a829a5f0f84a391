"""Idempotent publishers: what is appended, a duplicate, refused, forgotten."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from liftbridge_broker.errors import (
    CorruptionError,
    FencedPublisherError,
    InvalidRequestError,
    NotAppendedError,
    OutOfOrderError,
)
from liftbridge_broker.model.ids import PublisherId
from liftbridge_broker.replication.publishers import (
    EXTENTS_MAX,
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_SEQUENCE,
    PublisherStamp,
    PublisherTable,
    parse_headers,
)
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.headers import PublisherHeader

P = 7
Q = 8


class Registered(NamedTuple):
    """Applied metadata, as a table sees them."""

    applied_index: int
    publisher_epochs: Mapping[PublisherId, int]


def table_of(epochs: Mapping[PublisherId, int], *, applied_index: int = P) -> PublisherTable:
    """A table beside these metadata."""
    return PublisherTable(registered=lambda: Registered(applied_index, epochs))


def stored(
    table: PublisherTable, publisher: int, first: int, count: int, *, epoch: int = 0, at: int = 0
) -> int:
    """Append a batch behind everything that is there."""
    base = int(table.end_offset)
    table.replay(PublisherHeader(publisher, epoch, first, base, base + count - 1, at))
    return base


def test_sequences_begin_at_zero_and_go_on_without_gaps() -> None:
    table = PublisherTable()
    assert table.check(P, 0, 0, 3) == ()
    stored(table, P, 0, 3)

    assert table.next_sequence(P) == 3
    assert table.check(P, 0, 3, 1) == ()


def test_a_duplicate_gets_the_original_offset() -> None:
    table = PublisherTable()
    stored(table, Q, 0, 10)
    stored(table, P, 0, 3)

    assert table.check(P, 0, 0, 3) == ((10, 3),)


def test_parts_of_a_stored_batch_are_duplicates_too() -> None:
    table = PublisherTable()
    stored(table, P, 0, 5)

    assert table.check(P, 0, 2, 1) == ((2, 1),)
    assert table.check(P, 0, 3, 2) == ((3, 2),)


def test_a_run_cut_into_many_batches_is_one_duplicate() -> None:
    table = PublisherTable()
    for first in range(0, 200, 10):
        stored(table, P, first, 10)

    assert table.check(P, 0, 0, 200) == ((0, 200),)
    assert table.check(P, 0, 55, 90) == ((55, 90),)


def test_batches_of_others_between_end_a_run() -> None:
    table = PublisherTable()
    stored(table, P, 0, 2)
    stored(table, Q, 0, 1)
    stored(table, P, 2, 2)

    assert table.check(P, 0, 0, 2) == ((0, 2),)
    assert table.check(P, 0, 2, 2) == ((3, 2),)
    assert table.check(P, 0, 0, 4) == ((0, 2), (3, 2))
    assert table.check(P, 0, 1, 2) == ((1, 1), (3, 1))


def test_a_gap_is_refused() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3)

    with pytest.raises(OutOfOrderError) as caught:
        table.check(P, 0, 4, 1)
    assert caught.value.text == "sequence 4 of publisher 7 is out of order, expected 3"


def test_the_first_sequence_must_be_zero() -> None:
    with pytest.raises(OutOfOrderError, match="expected 0"):
        PublisherTable().check(P, 0, 1, 1)


def test_of_a_run_that_overlaps_the_end_the_first_part_is_stored() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3)
    assert table.check(P, 0, 2, 2) == ((2, 1),)
    stored(table, Q, 0, 1)
    stored(table, P, 3, 1)
    assert table.check(P, 0, 1, 9) == ((1, 2), (4, 1))


def test_the_last_five_runs_are_remembered() -> None:
    table = PublisherTable()
    for number in range(EXTENTS_MAX + 1):
        stored(table, P, number, 1)
        stored(table, Q, number, 1)

    with pytest.raises(OutOfOrderError, match="not remembered"):
        table.check(P, 0, 0, 1)
    for number in range(1, EXTENTS_MAX + 1):
        assert table.check(P, 0, number, 1) == ((2 * number, 1),)


def test_a_newer_epoch_in_the_log_fences() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3, epoch=2)

    with pytest.raises(FencedPublisherError) as caught:
        table.check(P, 1, 3, 1)
    assert caught.value.text == "epoch 1 of publisher 7 is fenced by epoch 2"
    assert table.check(P, 3, 3, 1) == ()


def test_sequences_go_on_over_epochs_and_are_known_within_one() -> None:
    """A leader that remembered less may have told the newer epoch to begin lower."""
    table = PublisherTable()
    stored(table, P, 0, 3)

    with pytest.raises(OutOfOrderError, match=r"sequence 0 of publisher 7 .* expected 3"):
        table.check(P, 1, 0, 3)
    with pytest.raises(OutOfOrderError, match="expected 3"):
        table.check(P, 1, 0, 3, may_skip=True)
    assert table.check(P, 1, 3, 1) == ()
    stored(table, P, 3, 1, epoch=1)
    assert table.check(P, 1, 3, 1) == ((3, 1),)
    with pytest.raises(OutOfOrderError, match="not remembered"):
        table.check(P, 1, 0, 3)


def test_what_a_newer_epoch_stored_below_replaces_what_was_known() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3)
    stored(table, P, 0, 2, epoch=1)

    assert table.next_sequence(P) == 2
    assert table.check(P, 1, 0, 2) == ((3, 2),)


def test_the_end_of_what_a_publisher_stored_is_known() -> None:
    table = PublisherTable()
    assert table.end_of(P) == 0
    stored(table, P, 0, 3)
    stored(table, Q, 0, 2)

    assert (table.end_of(P), table.end_of(Q)) == (3, 5)


def test_the_registered_epoch_fences_before_any_batch() -> None:
    registered = {PublisherId(P): 1}
    table = table_of(registered)
    assert table.check(P, 1, 0, 1) == ()

    registered[PublisherId(P)] = 2

    with pytest.raises(FencedPublisherError, match="fenced by epoch 2"):
        table.check(P, 1, 0, 1)


def test_a_publisher_that_is_not_registered_is_refused() -> None:
    with pytest.raises(FencedPublisherError, match="publisher 7 is not registered"):
        table_of({}).check(P, 0, 0, 1)


def test_a_publisher_whose_registration_is_on_its_way_may_come_again() -> None:
    with pytest.raises(NotAppendedError, match="publisher 7 is not known here yet"):
        table_of({}, applied_index=P - 1).check(P, 0, 0, 1)


def test_the_metadata_may_be_replaced_by_a_snapshot() -> None:
    present = Registered(P - 1, {})
    table = PublisherTable(registered=lambda: present)
    present = Registered(P, {PublisherId(P): 0})
    assert table.check(P, 0, 0, 1) == ()


def test_an_epoch_from_the_future_may_come_again() -> None:
    with pytest.raises(NotAppendedError, match="not known here yet"):
        table_of({PublisherId(P): 0}).check(P, 1, 0, 1)


@pytest.mark.parametrize(
    ("first", "count"), [(-1, 1), (0, 0), (0, -1), (2**63 - 1, 1), (2**63 - 2, 2), (2**64, 1)]
)
def test_numbers_out_of_range_are_refused(first: int, count: int) -> None:
    with pytest.raises(InvalidRequestError):
        PublisherTable().check(P, 0, first, count)


def test_check_changes_nothing() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3)
    before = table.snapshot()
    table.check(P, 0, 3, 1)
    table.check(P, 0, 0, 1)
    table.check(Q, 0, 0, 1)

    assert table.snapshot() == before


def test_the_longest_silent_publisher_is_forgotten_beyond_the_bound() -> None:
    table = PublisherTable(publishers_max=2)
    stored(table, 1, 0, 1)
    stored(table, 2, 0, 1)
    stored(table, 1, 1, 1)
    stored(table, 3, 0, 1)

    assert len(table) == 2
    assert [table.next_sequence(publisher) for publisher in (1, 2, 3)] == [2, 0, 1]


def test_silence_in_record_time_is_forgotten() -> None:
    table = PublisherTable(ttl_ns=100)
    stored(table, 1, 0, 1, at=1000)
    stored(table, 2, 0, 1, at=1100)
    assert table.next_sequence(1) == 1

    stored(table, 0, 0, 1, at=1101)
    assert table.next_sequence(1) == 0
    assert table.next_sequence(2) == 1


def test_batches_without_a_publisher_are_no_publisher() -> None:
    table = PublisherTable()
    stored(table, 0, 0, 5)

    assert len(table) == 0
    assert table.end_offset == 5


def test_a_batch_that_was_replayed_is_skipped() -> None:
    table = PublisherTable()
    stored(table, P, 0, 2)
    stored(table, P, 2, 2)
    before = table.snapshot()

    table.replay(PublisherHeader(P, 0, 0, 0, 1))
    table.replay(PublisherHeader(P, 0, 2, 2, 3))

    assert table.snapshot() == before


def test_a_compacted_batch_counts_its_range() -> None:
    """Compaction removes records and keeps the range, so sequences follow from offsets."""
    table = PublisherTable()
    table.replay(PublisherHeader(P, 0, 0, 100, 109))

    assert table.next_sequence(P) == 10


def test_damaged_snapshots_are_refused_or_are_a_state(fuzz: Fuzz) -> None:
    made = PublisherTable()
    for number in range(3):
        stored(made, number + 1, 0, 10)
    whole = made.snapshot()
    refused = 0
    for random in fuzz.rounds(1015, 5_000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0xFF))
        data = data[: random.randint(1, len(data))] if random.random() < 0.5 else data
        again = PublisherTable()
        try:
            again.restore(bytes(data))
        except CorruptionError:
            refused += 1
        else:
            assert len(again.snapshot()) <= len(data)
    assert fuzz.count // 4 < refused < fuzz.count


def test_sequences_of_a_hostile_header_stay_storable() -> None:
    table = PublisherTable()
    table.replay(PublisherHeader(2**64 - 1, 2**32 - 1, 2**63 - 1, 0, 2**62))
    other = PublisherTable()
    other.restore(table.snapshot())

    assert other.snapshot() == table.snapshot()
    with pytest.raises(InvalidRequestError):
        table.check(2**64 - 1, 2**32 - 1, 2**63 - 1, 1)


def test_a_snapshot_and_what_follows_equal_the_whole() -> None:
    whole, part = PublisherTable(), PublisherTable()
    headers = [PublisherHeader(n % 3, 0, n // 3, n, n, n) for n in range(30)]
    for header in headers[:17]:
        part.replay(header)
    restored = PublisherTable()
    restored.restore(part.snapshot())
    for header in headers:
        whole.replay(header)
        restored.replay(header)

    assert restored.snapshot() == whole.snapshot()


def test_layout_of_a_snapshot_is_fixed() -> None:
    table = PublisherTable()
    stored(table, P, 5, 3, epoch=2, at=9)

    assert table.snapshot() == bytes.fromhex(
        "4c427073 0002 0000 0000000000000003 0000000000000004 00000001"
        "0000000000000007 00000002 0000000000000008 0000000000000009 00000001"
        "0000000000000005 0000000000000007 0000000000000000"
    )


def test_a_snapshot_cut_anywhere_is_refused_and_changes_nothing() -> None:
    table = PublisherTable()
    stored(table, P, 0, 3)
    stored(table, Q, 0, 3)
    data = table.snapshot()

    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            table.restore(data[:length])
    with pytest.raises(CorruptionError):
        table.restore(data + b"\0")
    assert table.snapshot() == data


@pytest.mark.parametrize("position", [0, 5, 8, 16])
def test_a_snapshot_with_another_header_is_refused(position: int) -> None:
    data = bytearray(PublisherTable().snapshot())
    data[position] = 0xFF

    with pytest.raises(CorruptionError, match="wrong header"):
        PublisherTable().restore(bytes(data))


def test_a_snapshot_with_a_publisher_twice_is_refused() -> None:
    table = PublisherTable()
    stored(table, P, 0, 1)
    stored(table, Q, 0, 1)
    data = table.snapshot().replace(Q.to_bytes(8, "big"), P.to_bytes(8, "big"))

    with pytest.raises(CorruptionError, match="wrong entry of publisher 7"):
        PublisherTable().restore(data)


def test_a_snapshot_of_a_larger_table_loses_the_longest_silent() -> None:
    large, small = PublisherTable(), PublisherTable(publishers_max=1)
    stored(large, P, 0, 1)
    stored(large, Q, 0, 1)

    small.restore(large.snapshot())

    assert len(small) == 1
    assert small.next_sequence(Q) == 1


def headers(publisher: bytes, epoch: bytes, sequence: bytes) -> dict[str, bytes]:
    return {HEADER_ID: publisher, HEADER_EPOCH: epoch, HEADER_SEQUENCE: sequence}


def test_headers_are_a_stamp() -> None:
    largest = (b"18446744073709551615", b"4294967295", b"9223372036854775807")

    assert parse_headers(headers(b"7", b"0", b"12")) == PublisherStamp(PublisherId(7), 0, 12)
    assert parse_headers(headers(*largest)) == (*map(int, largest), False)
    assert parse_headers({"other": b"1"}) is None


@pytest.mark.parametrize(
    ("given", "name", "numbers"),
    [
        ({HEADER_ID: b"7"}, HEADER_EPOCH, "0 to 4294967295"),
        ({HEADER_EPOCH: b"7"}, HEADER_ID, "1 to 18446744073709551615"),
        ({HEADER_ID: b"1", HEADER_EPOCH: b"1"}, HEADER_SEQUENCE, "0 to 9223372036854775807"),
    ],
)
def test_half_a_stamp_is_refused(given: dict[str, bytes], name: str, numbers: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_headers(given)
    assert caught.value.text == f"Invalid header {name}, must be a decimal number of {numbers}"


@pytest.mark.parametrize(
    "number", [b"", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"0x1", b"1e3", "\u0661".encode(),
               b"9" * 21, b"0" * 5000, b"18446744073709551616", b"0"],
)  # fmt: skip
def test_a_publisher_id_is_ascii_digits_in_range(number: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_headers(headers(number, b"0", b"0"))
