"""Fences and commits: which claims hold, and what comes of them when others interfere."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from liftbridge_testkit.archive_runs import NOW_MS, MemoryStore
from pyspark_liftbridge.archive import commit as commits
from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import (
    ClaimError,
    ConflictError,
    ContentionError,
    DamagedError,
    OtherStreamError,
    StoreError,
    UnknownOutcomeError,
)
from pyspark_liftbridge.archive.fence import Claim, Verdict, Written
from pyspark_liftbridge.archive.stores.store import Below
from pyspark_liftbridge.archive.table import Making, open_table

COMMITTED, DONE, PLAN_AGAIN = Verdict


def add(start, end, *, partition=0, modified_ms=NOW_MS, path=None):
    stats = delta.Stats(end - start, None, (start, end - 1), None)
    return delta.Add(
        path=path or f"data/{partition}/{start}-{end}",
        size=1,
        modified_ms=modified_ms,
        is_change=True,
        stats_text=stats.text(),
        stats=stats,
        origin=delta.Origin(partition, start, end, Digest(end - start)),
    )


def claim(start, end, *, partition=0, **more):
    span = delta.Span(partition, start, end)
    return Claim((Written(span, (add(start, end, partition=partition),)),), **more)


def proposal(*claims, run_id="mine", stream_id=7):
    return Proposal(run_id=run_id, stream_id=stream_id, claims=claims, now_ms=NOW_MS)


@dataclass
class Hooked(MemoryStore):
    """A store that has something happen in the place of creating an entry.

    Attributes:
        hook: Given how to create it; gives the answer.
    """

    def __init__(self, hook: Callable[[Callable[[], bool]], bool] | None = None) -> None:
        super().__init__()
        self.hook = hook

    def create(self, path, data):
        def really():
            return super(Hooked, self).create(path, data)

        is_entry = path.endswith(".json") and not path.endswith(f"{0:020}.json")
        return self.hook(really) if self.hook and is_entry else really()


def new_table(store):
    table = open_table(store, "orders", 7, Making("id", NOW_MS))
    return table.store, table.snapshot


def test_claim_holds_only_where_the_partition_ends():
    for committed in [None, *range(6)]:
        for start in range(6):
            for end in range(start + 1, 7):
                verdict = fence.judge(claim(start, end), committed)
                if committed is not None and end <= committed:
                    assert verdict is DONE
                else:
                    assert (verdict is COMMITTED) == (start == (committed or 0))


def test_gap_holds_only_where_it_was_told_to_begin():
    for committed in range(6):
        for lost_from in range(6):
            verdict = fence.judge(claim(6, 9, lost_from=lost_from), committed)
            assert verdict is (COMMITTED if committed == lost_from else PLAN_AGAIN)
            inside = fence.judge(claim(2, 9, lost_from=lost_from), committed)
            holds = committed == 2 or (committed == lost_from and committed < 2)
            assert inside is (COMMITTED if holds else PLAN_AGAIN)


def test_first_range_begins_where_the_log_does():
    store, snapshot = new_table(MemoryStore())
    early = commit(store, snapshot, proposal(claim(40, 50)))
    assert (early.verdicts, early.version) == ({0: PLAN_AGAIN}, None)
    outcome = commit(store, snapshot, proposal(claim(40, 50, begins_at=40)))
    assert outcome.verdicts == {0: COMMITTED}
    info = log.read_entry(store, outcome.version)[0]
    assert (info.run.beginnings, info.run.gaps) == ((delta.Span(0, 40, 40),), ())
    # It held for the first range only.
    again = commit(store, outcome.snapshot, proposal(claim(60, 70, begins_at=60)))
    assert again.verdicts == {0: PLAN_AGAIN}


def test_gap_is_written_down():
    store, snapshot = new_table(MemoryStore())
    snapshot = commit(store, snapshot, proposal(claim(0, 10))).snapshot
    outcome = commit(store, snapshot, proposal(claim(15, 20, lost_from=10)))
    info = log.read_entry(store, outcome.version)[0]
    assert info.run.gaps == (delta.Span(0, 10, 15),)
    assert outcome.snapshot.ends["liftbridge/7/0"].version == 20


def test_claims_are_judged_each_by_itself():
    store, snapshot = new_table(MemoryStore())
    first = proposal(claim(0, 10), claim(0, 10, partition=1))
    snapshot = commit(store, snapshot, first).snapshot
    claims = (claim(0, 10), claim(10, 20, partition=1), claim(5, 9, partition=2))
    outcome = commit(store, snapshot, proposal(*claims, run_id="next"))
    assert outcome.verdicts == {0: DONE, 1: COMMITTED, 2: PLAN_AGAIN}
    actions = log.read_entry(store, outcome.version)
    assert [one.path for one in actions if isinstance(one, delta.Add)] == ["data/1/10-20"]
    assert [one.version for one in actions if isinstance(one, delta.Txn)] == [20]


def test_loser_plans_upon_what_the_winner_wrote():
    """The winner took half of the range: nothing of it may go in twice."""
    store = Hooked()
    table, snapshot = new_table(store)

    def winner_first(really):
        store.hook = None
        commit(table, snapshot, proposal(claim(0, 6), run_id="other"))
        return really()

    store.hook = winner_first
    outcome = commit(table, snapshot, proposal(claim(0, 10), claim(0, 3, partition=1)))
    assert outcome.verdicts == {0: PLAN_AGAIN, 1: COMMITTED}
    assert outcome.version == 2
    assert sorted(outcome.snapshot.files) == ["data/0/0-6", "data/1/0-3"]


def failing(*, is_done):
    def hook(really):
        if is_done:
            really()
        raise StoreError("timed out")

    return hook


def test_lost_answer_is_found_out_by_the_own_run():
    store = Hooked()
    table, snapshot = new_table(store)
    store.hook = failing(is_done=True)
    outcome = commit(table, snapshot, proposal(claim(0, 10)))
    assert (outcome.verdicts, outcome.version) == ({0: COMMITTED}, 1)
    assert log.load(table) == outcome.snapshot


def test_store_that_tried_again_by_itself_and_met_its_own_object_is_seen_through():
    store = Hooked()
    table, snapshot = new_table(store)
    store.hook = lambda really: really() and False
    outcome = commit(table, snapshot, proposal(claim(0, 10)))
    assert (outcome.verdicts, outcome.version) == ({0: COMMITTED}, 1)


def test_put_that_comes_late_is_the_same_entry():
    store = Hooked()
    table, snapshot = new_table(store)
    late = []

    def slow(really):
        late.append(really)
        store.hook = lambda again: late[0]() and again()
        raise StoreError("timed out")

    store.hook = slow
    outcome = commit(table, snapshot, proposal(claim(0, 10)))
    assert (outcome.verdicts, outcome.version) == ({0: COMMITTED}, 1)
    assert log.load(table).version == 1


def test_store_that_fails_for_good_is_given_up():
    store = Hooked()
    table, snapshot = new_table(store)
    store.hook = failing(is_done=False)
    with pytest.raises(UnknownOutcomeError, match="failed 6 times during a commit"):
        commit(table, snapshot, proposal(claim(0, 10)))
    assert log.load(table) == snapshot


def test_others_being_first_for_ever_is_given_up():
    store = Hooked()
    table, snapshot = new_table(store)
    versions = iter(range(1, 1_000))

    def other_first(really):
        entry = [delta.CommitInfo(0, "OPTIMIZE", "other", None)]
        store.objects[f"orders/{log.entry_path(next(versions))}"] = delta.encode(entry)
        return really()

    store.hook = other_first
    with pytest.raises(ContentionError, match=f"other writers won all {commits.ROUNDS_MAX} rounds"):
        commit(table, snapshot, proposal(claim(0, 10)))
    assert next(versions) == commits.ROUNDS_MAX + 1


def test_entry_goes_to_the_next_number_or_nowhere():
    store, snapshot = new_table(MemoryStore())
    actions = [delta.Txn("other", 1, None)]
    assert log.append(store, snapshot, actions).version == 1
    with pytest.raises(ConflictError, match="entry 1 is there already") as caught:
        log.append(store, snapshot, actions)
    assert caught.value.version == 1
    assert log.load(store).version == 1


def test_table_of_another_stream_takes_nothing():
    store, snapshot = new_table(MemoryStore())
    with pytest.raises(
        OtherStreamError, match="of stream id 7, but the records are of stream id 8"
    ):
        commit(store, snapshot, proposal(claim(0, 10), stream_id=8))
    assert log.load(store) == snapshot


def test_end_of_a_partition_that_goes_back_is_damage():
    store, snapshot = new_table(MemoryStore())
    snapshot = commit(store, snapshot, proposal(claim(0, 10))).snapshot
    store.create(log.entry_path(2), delta.encode([delta.Txn("liftbridge/7/0", 9, None)]))
    with pytest.raises(DamagedError, match="entry 2: txn of liftbridge/7/0 decreases from 10 to 9"):
        log.load(store)


def pieces(*written):
    return Claim(tuple(Written(delta.Span(*span), tuple(adds)) for span, adds in written))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (Claim(()), "a claim has no piece"),
        (pieces(((0, 5, 5), [])), "5 to 5 does not continue at 5"),
        (pieces(((0, 0, 5), []), ((0, 6, 9), [])), "6 to 9 does not continue at 5"),
        (pieces(((0, 0, 5), []), ((1, 5, 9), [])), "does not continue at 5 of partition 0"),
        (pieces(((0, 0, 5), [add(0, 4)])), "files end at 4, the piece at 5"),
        (pieces(((0, 0, 5), [add(1, 5)])), "but 0/0 comes next"),
        (pieces(((0, 0, 5), [add(0, 3), add(2, 5)])), "but 0/3 comes next"),
        (pieces(((0, 0, 5), [add(0, 5, partition=1)])), "but 0/0 comes next"),
        (pieces(((0, 0, 5), [add(0, 5, modified_ms=0)])), "more than 12 hours ago"),
    ],
)
def test_claim_that_does_not_hold_together_is_refused(wrong, text):
    store, snapshot = new_table(MemoryStore())
    with pytest.raises(ClaimError, match=text):
        commit(store, snapshot, proposal(wrong))
    assert log.load(store) == snapshot


def test_two_claims_to_one_partition_are_refused():
    store, snapshot = new_table(MemoryStore())
    with pytest.raises(ClaimError, match="there must be one for each"):
        commit(store, snapshot, proposal(claim(0, 5), claim(5, 9)))


def test_range_without_records_moves_the_end_alone():
    store, snapshot = new_table(MemoryStore())
    outcome = commit(store, snapshot, proposal(pieces(((0, 0, 5), []), ((0, 5, 9), [add(5, 9)]))))
    assert outcome.snapshot.ends["liftbridge/7/0"].version == 9
    assert sorted(outcome.snapshot.files) == ["data/0/5-9"]
    assert isinstance(store, Below)
