"""The state of publishers with the way back: what is saved, and what of it is believed."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from liftbridge_broker.errors import CorruptionError, FencedPublisherError, OutOfOrderError
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PublisherId
from liftbridge_broker.ports.publishers import StampedBatch
from liftbridge_broker.replication.publisher_history import DRAIN_STAMPS, PublisherHistory
from liftbridge_broker.replication.publishers import PublisherStamp, PublisherTable
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.headers import PublisherHeader

P = 7
Q = 8


class Registered(NamedTuple):
    """Applied metadata, as a table sees them."""

    applied_index: int
    publisher_epochs: Mapping[PublisherId, int]


class Log:
    """A log of headers; `reads` counts how often they were read."""

    def __init__(self, start: int = 0, end: int = 0) -> None:
        self.headers: list[PublisherHeader] = []
        self.log_start_offset = Offset(start)
        self.log_end_offset = Offset(end)
        self.high_watermark = self.settled_offset = Offset(0)
        self.reads = 0

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        return LeaderEpoch(4 if offset else 0)

    def stamped(self, offset: Offset) -> Iterator[StampedBatch]:
        self.reads += 1
        return iter([one for one in self.headers if one.base_offset >= offset])

    def append(self, history: PublisherHistory, publisher: int, count: int) -> None:
        base = int(self.log_end_offset)
        first = history.next_sequence(publisher)
        self.headers.append(PublisherHeader(publisher, 0, first, base, base + count - 1))
        self.log_end_offset = Offset(base + count)
        history.replay(self.headers[-1])

    def cut(self, end: int) -> None:
        """Cut at the beginning of a batch."""
        self.headers = [one for one in self.headers if one.base_offset < end]
        self.log_end_offset = Offset(end)


def committed(log: Log, end: int, *, synced: int | None = None) -> None:
    log.high_watermark = Offset(end)
    log.settled_offset = Offset(end if synced is None else synced)


def test_a_cut_takes_back_what_it_removes_and_reads_nothing() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log)
    log.append(history, P, 2)
    committed(log, 2)
    history.settle()
    log.append(history, P, 3)
    log.append(history, Q, 1)
    log.cut(2)

    assert history.roll_back()
    assert (history.next_sequence(P), history.next_sequence(Q), log.reads) == (2, 0, 0)


def test_a_cut_below_what_is_settled_is_not_known_and_changes_nothing() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log)
    log.append(history, P, 2)
    log.append(history, P, 3)
    committed(log, 5)
    history.settle()
    log.cut(2)

    assert not history.roll_back()
    assert history.next_sequence(P) == 5


def test_of_what_a_copy_does_not_know_only_a_beginning_passes_until_the_publisher_begins_anew() -> (
    None
):
    """The limit of `docs/explanation/durability.md`: retention had removed all of the publisher."""
    epochs = {PublisherId(P): 0}
    log = Log(start=9, end=9)
    history = PublisherHistory(
        lambda: PublisherTable(registered=lambda: Registered(P, epochs)), log
    )
    history.take_up(None)

    assert history.check(PublisherStamp(PublisherId(P), 0, 0), 2) == ()
    assert history.check(PublisherStamp(PublisherId(P), 0, 5, may_skip=True), 1) == ()
    with pytest.raises(OutOfOrderError):
        history.check(PublisherStamp(PublisherId(P), 0, 1), 1)
    epochs[PublisherId(P)] = 1
    for first, may_skip in ((0, False), (5, True)):
        with pytest.raises(FencedPublisherError):
            history.check(PublisherStamp(PublisherId(P), 0, first, may_skip), 1)


def test_a_log_that_begins_anew_further_on_is_of_an_unknown_past() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log)
    log.append(history, P, 5)
    history.settle()
    log.log_start_offset = log.log_end_offset = Offset(9)
    committed(log, 9)

    assert not history.roll_back()


def test_more_stamps_than_are_held_are_read_from_the_log() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log, stamps_max=2)
    for _ in range(5):
        log.append(history, P, 1)
    log.cut(4)

    assert history.roll_back()
    assert (history.next_sequence(P), log.reads) == (4, 1)
    committed(log, 4)
    history.settle()
    log.headers.clear()
    assert history.roll_back()
    assert (history.next_sequence(P), log.reads) == (4, 2)


def test_what_is_committed_and_not_synced_survives_a_log_start_behind_it() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log)
    log.append(history, P, 3)
    log.append(history, Q, 3)
    committed(log, 6, synced=2)
    history.settle()
    saved = history.snapshot()
    log.headers.clear()
    log.log_start_offset = Offset(5)

    history.take_up(saved)

    assert (history.next_sequence(P), history.next_sequence(Q)) == (3, 2)


def test_what_a_former_version_saved_is_taken_up() -> None:
    log = Log(1, 3)
    table = PublisherTable()
    table.replay(PublisherHeader(P, 0, 0, 0, 2))
    history = PublisherHistory(PublisherTable, log)

    history.take_up(table.snapshot())

    assert history.next_sequence(P) == 3


def some_history(log: Log) -> PublisherHistory:
    """Two records settled, one of them committed and not synced, and one not committed."""
    history = PublisherHistory(PublisherTable, log)
    log.append(history, P, 2)
    log.append(history, P, 2)
    committed(log, 3, synced=2)
    history.settle()
    return history


def test_layout_of_a_snapshot_is_fixed() -> None:
    history = some_history(Log())

    assert history.snapshot() == bytes.fromhex(
        "4c427068 0001 0000 00000054 00000001"
        "4c427073 0002 0000 0000000000000002 0000000000000004 00000001"
        "0000000000000007 00000000 0000000000000002 0000000000000000 00000001"
        "0000000000000000 0000000000000001 0000000000000000"
        "0000000000000007 00000000 0000000000000002 0000000000000002 0000000000000002"
        "0000000000000004 0000000000000000"
    )


def test_a_snapshot_cut_anywhere_is_left_aside() -> None:
    log = Log()
    data = some_history(log).snapshot()
    for length in range(len(data)):
        history = PublisherHistory(PublisherTable, log)
        history.take_up(data[:length])
        assert history.next_sequence(P) == 4


def test_damaged_snapshots_never_stop_a_start(fuzz: Fuzz) -> None:
    whole = some_history(Log()).snapshot()
    for random in fuzz.rounds(1016, 2_000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0xFF))
        history = PublisherHistory(PublisherTable, Log(3, 3))
        history.take_up(bytes(data))
        assert len(history) <= 2


def test_a_log_that_cannot_be_read_says_so() -> None:
    class Damaged(Log):
        def stamped(self, offset: Offset) -> Iterator[StampedBatch]:
            raise CorruptionError(f"rot at {offset}")

    with pytest.raises(CorruptionError):
        PublisherHistory(PublisherTable, Damaged()).take_up(None)


def test_few_headers_are_held_of_what_may_be_settled() -> None:
    log = Log()
    history = PublisherHistory(PublisherTable, log)
    for _ in range(20 * DRAIN_STAMPS):
        log.append(history, P, 1)
        committed(log, log.log_end_offset)
    # Each stamp that is saved takes 52 bytes, and the table of one publisher some hundred.
    assert len(history.snapshot()) < 60 * DRAIN_STAMPS + 1_000
    assert history.roll_back()
    assert history.next_sequence(P) == 20 * DRAIN_STAMPS
