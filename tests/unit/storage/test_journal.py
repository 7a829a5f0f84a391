"""The journal keeps the newest state of every partition and is never believed too much."""

from random import Random

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.storage.journal import (
    Journal,
    LoadedJournal,
    encode_state,
    open_journal,
    parse_journal,
)
from liftbridge_broker.storage.log.state import LogState
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError

PATH = "journal"
A, B, C = PartitionId(1 << 24), PartitionId(2 << 24), PartitionId(3 << 24 | 5)


def state(point: int, *, log_start: int = 0, epoch_count: int = 1) -> LogState:
    epochs = tuple((LeaderEpoch(n + 1), Offset(n * 10)) for n in range(epoch_count))
    return LogState(Offset(log_start), Offset(point), Offset(point), epochs)


def weak(known: LogState) -> LogState:
    return known._replace(recovery_point=known.log_start, epochs=())


def load(files: MemoryFiles) -> LoadedJournal:
    return open_journal(files, PATH)[1]


def filled(files: MemoryFiles) -> Journal:
    """A journal with A, B, C in one group and a second record of B, all durable."""
    journal, _ = open_journal(files, PATH)
    journal.put(A, state(10), is_strict=False)
    journal.put(B, state(20), is_strict=False)
    journal.put(C, state(30, epoch_count=3), is_strict=False)
    journal.flush()
    journal.put(B, state(21), is_strict=False)
    journal.flush()
    return journal


def test_layout_of_a_state_record_is_fixed() -> None:
    assert encode_state(C, state(30, log_start=7, epoch_count=2), is_strict=False).hex() == (
        "01" "0000000003000005" "0000000000000007" "000000000000001e" "000000000000001e"
        "00000002" "0000000000000001" "0000000000000000" "0000000000000002" "000000000000000a"
    )  # fmt: skip


def test_newest_state_of_every_partition_is_loaded() -> None:
    files = MemoryFiles()
    filled(files)
    files.crash(None)

    loaded = load(files)

    assert loaded.states == {A: state(10), B: state(21), C: state(30, epoch_count=3)}
    assert (loaded.damaged_count, loaded.torn_bytes) == (0, 0)


def test_absent_journal_knows_nothing_and_is_not_damage() -> None:
    assert load(MemoryFiles()) == LoadedJournal({}, frozenset(), 0, 0, None)


def test_forgotten_partition_stays_forgotten() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.forget(A)
    journal.forget(A)
    journal.flush()
    assert set(load(files).states) == {B, C}


def test_equal_state_is_not_written_again() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.put(A, state(10), is_strict=False)
    assert not journal.has_pending


def test_only_the_newest_of_several_pending_states_is_written() -> None:
    files = MemoryFiles()
    journal = filled(files)
    before = journal.stamp.length
    for point in range(100, 200):
        journal.put(A, state(point), is_strict=False)
    journal.flush()
    assert journal.stamp.length - before < 80
    assert load(files).states[A] == state(199)


def test_what_is_put_during_a_flush_waits_for_the_next() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.put(A, state(11), is_strict=False)
    handle = journal.begin_flush()
    journal.put(B, state(99), is_strict=False)
    files.sync(handle)
    journal.finish_flush()
    assert journal.has_pending
    files.crash(None)
    loaded = load(files)
    assert (loaded.states[A], loaded.states[B]) == (state(11), state(21))


def test_file_is_rewritten_when_it_has_grown_and_stays_bounded() -> None:
    files = MemoryFiles()
    journal, _ = open_journal(files, PATH, rewrite_bytes_min=2_000)
    generations = set()
    for point in range(1_000):
        journal.put(A, state(point), is_strict=False)
        journal.flush()
        generations.add(journal.stamp.generation)
        assert journal.stamp.length < 2_200
    assert len(generations) > 20
    files.crash(None)
    assert load(files).states == {A: state(999)}
    assert files.paths() == (PATH,)


def test_blocking_flush_during_a_rewrite_puts_the_new_file_in_place() -> None:
    files = MemoryFiles()
    journal, _ = open_journal(files, PATH)
    journal.put(A, state(1), is_strict=False)
    handle = journal.begin_flush()
    journal.put(B, state(2), is_strict=False)
    journal.flush()
    files.crash(None)
    assert load(files).states == {A: state(1), B: state(2)}
    assert int(handle) > 0


def test_late_end_of_a_flush_that_was_finished_meanwhile_is_harmless() -> None:
    files = MemoryFiles()
    journal, _ = open_journal(files, PATH)
    journal.put(A, state(1), is_strict=False)
    journal.begin_flush()
    journal.flush()
    journal.finish_flush()
    journal.put(B, state(2), is_strict=False)
    journal.flush()
    assert load(files).states == {A: state(1), B: state(2)}


def test_failed_write_leaves_everything_pending() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.put(A, state(11), is_strict=False)
    files.fail(Fault("append", PATH, is_full=True))
    with pytest.raises(FilesError):
        journal.begin_flush()
    assert journal.has_pending
    journal.flush()
    assert load(files).states[A] == state(11)


def test_failed_rewrite_leaves_the_old_file_in_use() -> None:
    files = MemoryFiles()
    filled(files).close()
    journal, _ = open_journal(files, PATH)
    journal.put(A, state(12), is_strict=False)
    files.fail(Fault("append", "journal.new", is_full=True))
    with pytest.raises(FilesError):
        journal.begin_flush()
    assert files.paths() == (PATH,)
    assert load(files).states[A] == state(10)
    journal.flush()
    assert load(files).states[A] == state(12)


def test_file_cut_at_any_byte_gives_an_older_state_and_no_damage() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.put(A, state(11), is_strict=False)
    journal.put(C, state(31), is_strict=False)
    journal.flush()
    data = files.content(PATH)
    former = [state(10), state(11), None]
    for length in range(20, len(data)):
        loaded = parse_journal(data[:length])
        assert loaded.damaged_count == 0
        assert loaded.states.get(A) in former
        assert loaded.torn_bytes <= length - 20
    for length in range(1, 20):
        assert parse_journal(data[:length]) == LoadedJournal({}, frozenset(), 1, 0, None)


def test_every_flipped_bit_is_noticed_and_makes_no_state_up() -> None:
    files = MemoryFiles()
    filled(files)
    data = files.content(PATH)
    known = {A: [state(10)], B: [state(20), state(21)], C: [state(30, epoch_count=3)]}
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        loaded = parse_journal(bytes(damaged))
        assert loaded.damaged_count or loaded.torn_bytes
        for partition, found in loaded.states.items():
            assert any(found in (was, weak(was)) for was in known[partition])


def test_rot_weakens_what_no_later_record_confirms() -> None:
    files = MemoryFiles()
    filled(files)
    data = bytearray(files.content(PATH))
    # The second record, of B in the first group: A before it becomes uncertain, C and B after not.
    position = 20 + len(encode_state(A, state(10), is_strict=False)) + 10
    data[position + 15] ^= 1
    loaded = parse_journal(bytes(data))
    assert loaded.damaged_count == 1
    assert loaded.states == {A: weak(state(10)), B: state(21), C: state(30, epoch_count=3)}


def test_record_in_a_wrong_place_is_not_believed() -> None:
    files = MemoryFiles()
    filled(files)
    data = files.content(PATH)
    first = data[20 : 20 + 10 + len(encode_state(A, state(10), is_strict=False))]
    assert parse_journal(data + first).torn_bytes == len(first)


def test_damaged_file_is_kept_and_a_second_start_finds_no_damage() -> None:
    files = MemoryFiles()
    filled(files).close()
    files.flip_bit(PATH, 8 * 50)
    damaged = files.content(PATH)
    journal, loaded = open_journal(files, PATH)
    assert loaded.damaged_count == 1
    journal.flush()
    journal.close()
    assert files.content("journal.damaged") == damaged
    again = load(files)
    assert again.damaged_count == 0
    assert again.states == loaded.states


def test_full_disk_does_not_keep_a_damaged_journal_from_loading() -> None:
    files = MemoryFiles()
    filled(files).close()
    files.flip_bit(PATH, 8 * 50)
    files.fail(Fault("append", "journal.damaged", is_full=True))
    assert load(files).damaged_count == 1


def test_garbage_loads_as_nothing(fuzz: Fuzz) -> None:
    for random in fuzz.rounds(7, 2_000):
        assert parse_journal(random.randbytes(random.randint(1, 400))).states == {}


def test_intact_record_of_a_wrong_shape_is_damage() -> None:
    files = MemoryFiles()
    journal, _ = open_journal(files, PATH)
    for body in (
        b"",
        b"\x01",
        b"\x09" * 9,
        b"\x02" * 10,
        encode_state(A, state(1), is_strict=False) + b"x",
    ):
        journal._live = {A: body}
        journal._begin_rewrite()
        files.sync(journal._new_handle or journal.begin_flush())
        journal.finish_flush()
        loaded = load(files)
        assert loaded.states == {}
        assert loaded.torn_bytes


def test_thousand_partitions_load_from_one_file() -> None:
    files = MemoryFiles()
    journal, _ = open_journal(files, PATH)
    wanted = {PartitionId(n << 24): state(n, epoch_count=3) for n in range(1, 1_001)}
    for partition, known in wanted.items():
        journal.put(partition, known, is_strict=False)
    points = files.power.points
    journal.flush()
    assert files.power.points - points <= 5
    assert load(files).states == wanted


def script(files: MemoryFiles, acknowledged: list[dict[PartitionId, LogState]]) -> None:
    """Three flushes over a rewrite; what each made durable is noted once it did."""
    journal, _ = open_journal(files, PATH, rewrite_bytes_min=300)
    now: dict[PartitionId, LogState] = {}
    for point in range(1, 4):
        for partition in (A, B, C):
            now[partition] = state(point)
            journal.put(partition, now[partition], is_strict=False)
        journal.flush()
        acknowledged.append(dict(now))
    journal.forget(C)
    del now[C]
    journal.flush()
    acknowledged.append(dict(now))


def test_power_cut_at_every_write_and_sync_keeps_what_was_flushed() -> None:
    files = MemoryFiles()
    script(files, [])
    points = files.power.points
    assert points > 12
    cuts = 0
    for point in range(1, points + 1):
        for seed in range(20):
            files, acknowledged = MemoryFiles(), list[dict[PartitionId, LogState]]([{}])
            files.power.cut_at = point
            with pytest.raises(PowerCutError):
                script(files, acknowledged)
            files.crash(Random(seed))
            loaded = load(files)
            for partition, known in acknowledged[-1].items():
                newer = [known, *(state(n) for n in range(known[1], 4))]
                found = loaded.states.get(partition)
                gone = partition == C and len(acknowledged) == 4
                assert (
                    found in newer
                    or found in [weak(one) for one in newer]
                    or (gone and found is None)
                )
            cuts += 1
    assert cuts == points * 20


def test_a_forgotten_partition_may_be_known_until_a_flush_is_durable() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.forget(A)
    assert journal.may_know(A)
    files.sync(journal.begin_flush())
    assert journal.may_know(A)
    journal.finish_flush()
    assert not journal.may_know(A)


def test_the_end_of_an_older_flush_does_not_settle_what_was_forgotten_since() -> None:
    files = MemoryFiles()
    journal = filled(files)
    journal.forget(A)
    files.sync(journal.begin_flush())
    journal.flush()
    journal.put(A, state(11), is_strict=False)
    journal.forget(A)
    journal.finish_flush()
    assert journal.may_know(A)
