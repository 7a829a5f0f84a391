"""Idempotent publishers against a model that remembers everything."""

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.errors import OutOfOrderError
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.replication.publishers import EXTENTS_MAX, PublisherTable


class Header(NamedTuple):
    publisher_id: int
    publisher_epoch: int
    first_sequence: int
    base_offset: int
    last_offset: int
    largest_timestamp: int
    leader_epoch: int = 1


class Attempt(NamedTuple):
    """A publish: `back` is how far before the next sequence it begins, as a retry does."""

    publisher: int
    back: int
    record_count: int


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        publisher=st.integers(1, 3),
        back=st.integers(-2, 12),
        record_count=st.integers(1, 6),
    ),
    max_size=60,
)


@given(ATTEMPTS)
def test_nothing_is_stored_twice_and_duplicates_point_to_the_original(
    attempts: list[Attempt],
) -> None:
    table = PublisherTable()
    offsets: dict[int, list[int]] = {1: [], 2: [], 3: []}
    log: list[Header] = []
    log_end = 0
    for publisher, back, count in attempts:
        stored = offsets[publisher]
        first = max(0, len(stored) - back)
        try:
            pieces = table.check(publisher, 0, first, count)
        except OutOfOrderError:
            assert first > len(stored) or _may_be_forgotten(stored, first)
            continue
        known = [
            offset
            for piece in pieces
            for offset in range(piece.base_offset, piece.base_offset + piece.record_count)
        ]
        assert known == stored[first : first + count]
        new = count - len(known)
        if new:
            sequence = len(stored)
            stored += range(log_end, log_end + new)
            log.append(Header(publisher, 0, sequence, log_end, log_end + new - 1, log_end))
            table.replay(log[-1])
            log_end += new
    assert [table.next_sequence(one) for one in offsets] == [len(one) for one in offsets.values()]
    rebuilt = PublisherTable()
    for header in log:
        rebuilt.replay(header)
    assert rebuilt.snapshot() == table.snapshot()


def _may_be_forgotten(stored: list[int], first: int) -> bool:
    """Whether a run begins before the last pieces of the log, which alone are remembered."""
    pieces_behind = sum(
        1 for one, two in zip(stored[first:], stored[first + 1 :], strict=False) if two != one + 1
    )
    return pieces_behind >= EXTENTS_MAX


@given(ATTEMPTS, st.integers(0, 60), st.integers(1, 3), st.integers(1, 30))
def test_a_snapshot_anywhere_and_the_rest_of_the_log_give_the_same(
    attempts: list[Attempt], cut: int, publishers_max: int, ttl_ns: int
) -> None:
    log: list[Header] = []
    nexts = {1: 0, 2: 0, 3: 0}
    for at, (publisher, _, count) in enumerate(attempts):
        base = log[-1].last_offset + 1 if log else 0
        log.append(Header(publisher, 0, nexts[publisher], base, base + count - 1, at * 3))
        nexts[publisher] += count

    def table() -> PublisherTable:
        return PublisherTable(publishers_max=publishers_max, ttl_ns=ttl_ns)

    whole, before, after = table(), table(), table()
    for header in log:
        whole.replay(header)
    for header in log[:cut]:
        before.replay(header)
    after.restore(before.snapshot())
    for header in log:
        after.replay(header)

    assert after.snapshot() == whole.snapshot()
    assert len(whole) <= publishers_max


@given(st.lists(st.tuples(st.integers(-8, 12), st.integers(1, 6)), max_size=40))
def test_a_publisher_that_may_skip_stores_no_sequence_twice(
    attempts: list[tuple[int, int]],
) -> None:
    table = PublisherTable()
    stored: dict[int, int] = {}
    log_end = 0
    for back, count in attempts:
        expected = table.next_sequence(1)
        wanted = range(first := max(0, expected - back), first + count)
        try:
            pieces = table.check(1, 0, first, count, may_skip=True)
        except OutOfOrderError:
            gone = [sequence for sequence in wanted if sequence < expected]
            assert any(one not in stored for one in gone) or _is_long_ago(stored, first)
            continue
        known = [
            offset
            for piece in pieces
            for offset in range(piece.base_offset, piece.base_offset + piece.record_count)
        ]
        new = wanted[len(known) :]
        assert known == [stored[sequence] for sequence in wanted[: len(known)]]
        assert not any(sequence in stored for sequence in new)
        if new:
            header = Header(1, 0, new[0], log_end, log_end + len(new) - 1, log_end)
            table.replay(header)
            stored.update(zip(new, range(log_end, log_end + len(new)), strict=True))
            log_end += len(new)
            assert table.next_sequence(1) == new[-1] + 1


def _is_long_ago(stored: dict[int, int], first: int) -> bool:
    """Whether more skips than are remembered lie behind a sequence."""
    later = sorted(sequence for sequence in stored if sequence >= first)
    return sum(1 for one, two in pairwise(later) if two != one + 1) >= EXTENTS_MAX


class Lead(NamedTuple):
    """Another replica leads; a new one knows only what comes after it was copied."""

    number: int
    is_new: bool


class Register(NamedTuple):
    """The publisher begins again where the leader tells it."""


class Send(NamedTuple):
    """The publisher sends a run, `back` runs ago or a new one."""

    back: int
    record_count: int
    may_skip: bool


STEPS = st.lists(
    st.one_of(
        st.builds(Lead, st.integers(0, 2), st.booleans()),
        st.builds(Register),
        st.builds(Send, st.integers(0, 2), st.integers(1, 3), st.booleans()),
    ),
    min_size=20,
    max_size=60,
)


@given(STEPS)
def test_what_leaders_forgot_makes_no_other_record_a_duplicate(
    steps: list[Lead | Register | Send],
) -> None:
    """Each record has a content of its own; a duplicate is answered with the place of its own."""
    replicas, leader = [PublisherTable()], 0
    log: list[int] = []
    epoch, begins, runs = 0, 0, list[list[int]]()
    made = 0
    for step in steps:
        table = replicas[leader]
        match step:
            case Lead(number, is_new):
                if is_new:
                    replicas.append(PublisherTable())
                    replicas[-1].note_end(Offset(len(log)), LeaderEpoch(1))
                leader = number % len(replicas)
            case Register():
                epoch, begins, runs = epoch + 1, table.next_sequence(1), []
            case Send(back, count, may_skip):
                if not 0 < back <= len(runs):
                    runs.append(list(range(made, made + count)))
                    made += count
                    back = 1
                run = runs[-back]
                first = begins + sum(map(len, runs[:-back]))
                try:
                    pieces = table.check(1, epoch, first, len(run), may_skip=may_skip)
                except OutOfOrderError:
                    continue
                known = [
                    offset
                    for piece in pieces
                    for offset in range(piece.base_offset, piece.base_offset + piece.record_count)
                ]
                assert [log[offset] for offset in known] == run[: len(known)]
                new = run[len(known) :]
                if new:
                    end = len(log) + len(new) - 1
                    header = Header(1, epoch, first + len(known), len(log), end, 0)
                    log += new
                    for replica in replicas:
                        replica.replay(header)
