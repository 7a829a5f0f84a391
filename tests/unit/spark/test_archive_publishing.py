"""Which files a published table takes next, over any log and from any entry of it."""

from random import Random

import pytest

from liftbridge_testkit.archive_runs import NOW_MS, MemoryStore
from pyspark_liftbridge.archive import publishing
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.publishing import Step, planned, steps
from pyspark_liftbridge.archive.table import Making, open_table


def add(path):
    return delta.Add(path, 1, NOW_MS, True, "", None, None)  # noqa: FBT003 - as the log has it


def remove(path):
    return delta.Remove(path, NOW_MS, is_change=False, size=1)


def run(entries, present=(), *, entries_max=1):
    """Steps over entries, which are the last of the log."""
    live = set(present)
    for _, actions in entries:
        live |= {one.path for one in actions if isinstance(one, delta.Add)}
        live -= {one.path for one in actions if isinstance(one, delta.Remove)}
    found = list(planned(entries, frozenset(present), frozenset(live), entries_max=entries_max))
    return found, live


def test_each_entry_is_a_step():
    entries = [(0, []), (1, [add("a")]), (2, [delta.Txn("x", 1, None)]), (3, [add("b"), add("c")])]
    assert run(entries)[0] == [Step(1, ("a",), ()), Step(3, ("b", "c"), ())]


def test_entries_share_a_step_up_to_a_bound():
    entries = [(at, [add(f"{at}")]) for at in range(5)]
    assert [one.version for one in run(entries, entries_max=2)[0]] == [1, 3, 4]


def test_many_files_end_a_step(monkeypatch):
    monkeypatch.setattr(publishing, "FILES_MAX", 3)
    entries = [(at, [add(f"{at}a"), add(f"{at}b")]) for at in range(5)]
    assert [one.version for one in run(entries, entries_max=100)[0]] == [1, 3, 4]


def test_files_that_are_published_go_with_those_that_come_in_their_place():
    entries = [(3, [add("d")]), (4, [remove("a"), remove("b"), add("ab")])]
    assert run(entries, "abc")[0] == [Step(3, ("d",), ()), Step(4, ("ab",), ("a", "b"))]


def test_file_that_is_gone_by_now_is_never_published():
    entries = [
        (0, [add("a")]),
        (1, [add("b")]),
        (2, [add("c")]),
        (3, [remove("a"), remove("b"), add("ab")]),
        (4, [add("d")]),
    ]
    assert run(entries)[0] == [Step(3, ("ab", "c"), ()), Step(4, ("d",), ())]


def test_file_that_is_named_again_comes_in_once():
    """Delta may name a file again, with other statistics, and put one back."""
    entries = [(1, [add("a")]), (2, [remove("b"), add("b")]), (3, [add("c"), add("c")])]
    assert run(entries, "ab")[0] == [Step(3, ("c",), ())]


@pytest.mark.parametrize("seed", range(200))
def test_steps_from_anywhere_come_to_what_the_log_comes_to(seed):
    random = Random(seed)
    files, entries, states = set(), [], [frozenset()]
    for version in range(random.randint(1, 30)):
        actions = [add(f"{version}.{at}") for at in range(random.randint(0, 3))]
        gone = [one for one in sorted(files) if random.random() < 0.1]
        actions += [remove(one) for one in gone]
        files = files - set(gone) | {one.path for one in actions if isinstance(one, delta.Add)}
        entries.append((version, actions))
        states.append(frozenset(files))
    at = random.randrange(len(states))
    found, live = run(entries[at:], states[at], entries_max=random.choice((1, 2, 7)))
    table = states[at]
    for step in found:
        assert table.isdisjoint(step.added)
        assert table.issuperset(step.removed)
        table = table - set(step.removed) | set(step.added)
        assert table == states[step.version + 1]
    assert table == live == states[-1]
    assert [one.version for one in found] == sorted({one.version for one in found})


@pytest.fixture
def table():
    found = open_table(MemoryStore(), "orders", 7, Making("id", NOW_MS))
    snapshot = found.snapshot
    for at in range(1, 6):
        gone = [remove("1.parquet")] if at == 5 else []
        snapshot = log.append(found.store, snapshot, [add(f"{at}.parquet"), *gone])
    return found._replace(snapshot=snapshot)


def test_log_is_read_from_what_is_published(table):
    found = list(
        steps(table.store, table.snapshot, 3, frozenset({"1.parquet", "x"}), entries_max=1)
    )
    assert found == [Step(4, ("4.parquet",), ()), Step(5, ("5.parquet",), ("1.parquet",))]
    assert list(steps(table.store, table.snapshot, 5, frozenset(), entries_max=1)) == []


def test_entries_that_were_cleaned_away_are_one_step(table):
    written = log.write_checkpoint(table.store, table.snapshot, now_ms=NOW_MS)
    for version in range(4):
        table.store.delete(log.entry_path(version))
    present = frozenset({"1.parquet", "2.parquet"})
    assert list(steps(table.store, written, 2, present, entries_max=1)) == [
        Step(5, ("3.parquet", "4.parquet", "5.parquet"), ("1.parquet",))
    ]
    assert len(list(steps(table.store, written, 3, present, entries_max=1))) == 2


def test_archive_that_is_behind_is_told(table):
    with pytest.raises(DamagedError, match="entry 9 is published, but the archive ends at entry 5"):
        list(steps(table.store, table.snapshot, 9, frozenset(), entries_max=1))
