"""What an archive notes of the history that it read, and what follows from it."""

from dataclasses import dataclass, field

import pytest

from liftbridge_testkit.archive_runs import NOW_MS, MemoryStore
from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.fence import Claim, Written
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.jobs.cursor import Shown, show
from pyspark_liftbridge.plan.archiving import MissingError, check_histories
from pyspark_liftbridge.plan.histories import Read
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.unified import Held

NEVER = Known(7, 0, 20, 0, 0, ((3, 0),))
HARMLESS = Known(7, 0, 20, 0, 8, ((3, 0), (8, 11)))
OTHERS = Known(7, 0, 20, 0, 8, ((3, 0), (8, 5)))
REMOVED = Known(7, 10, 20, 0, 8, ((8, 10),))
READ = Read(0, 3, 10)


def committed(table, start, end, read):
    """The table after a run that archived so much, without any file."""
    claims = [Claim((Written(delta.Span(0, start, end), ()),), read=read)]
    proposal = Proposal(run_id=f"to {end}", stream_id=7, claims=claims, now_ms=NOW_MS)
    return table._replace(snapshot=commit(table.store, table.snapshot, proposal).snapshot)


@pytest.fixture
def table():
    return open_table(MemoryStore(), "orders", 7, Making("id", NOW_MS))


def test_table_notes_each_history_with_its_end_and_the_last_one_counts(table):
    reads = [Read(0, 3, 10), Read(0, 4, 12), Read(8, 4, 15), Read(8, 11, 20)]
    start = 0
    for read in reads:
        table = committed(table, start, read.end, read)
        start = read.end
        assert reading.held_of(table.snapshot)[0] == Held(0, read.end, (), read)
    log.write_checkpoint(table.store, table.snapshot, now_ms=NOW_MS)
    ends = log.load(table.store).ends
    assert {f"liftbridge/7/0/history/{one[0]}/{one[1]}": one.end for one in reads} == {
        name: txn.version for name, txn in ends.items() if "/history/" in name
    }


def test_table_of_a_former_version_notes_none_and_hides_none(table):
    table = committed(table, 0, 10, None)
    assert reading.held_of(table.snapshot)[0] == Held(0, 10)
    table = committed(table, 10, 12, Read(0, 3, 12))
    table = committed(table, 12, 15, None)
    assert reading.held_of(table.snapshot)[0] == Held(0, 15, (), Read(0, 3, 12))


@pytest.mark.parametrize("fails_on_loss", [True, False])
def test_log_with_other_records_where_some_are_archived_is_an_error(fails_on_loss):
    def check(known, read):
        check_histories("s", {0: known}, {0: Held(0, 10, (), read)}, fails_on_loss=fails_on_loss)

    for known in (NEVER, HARMLESS):
        check(known, READ)
    check(OTHERS, None)
    check(OTHERS, Read(8, 3, 10))
    with pytest.raises(MissingError) as caught:
        check(OTHERS, READ)
    assert str(caught.value) == (
        "s/0: offsets up to 9 were archived in history 0, the last one by leader epoch 3, but the "
        "log is in history 8 and has one of leader epoch 8 there: an unclean election may have "
        "given archived offsets to other records; keep this archive, and start another one at "
        "another root"
    )


def test_log_that_has_nothing_of_what_is_archived_is_one_unless_the_job_may_go_on():
    held = {0: Held(0, 10, (), READ)}
    with pytest.raises(MissingError, match=r"has nothing there.*set --allow-loss to continue"):
        check_histories("s", {0: REMOVED}, held, fails_on_loss=True)
    check_histories("s", {0: REMOVED}, held, fails_on_loss=False)


@dataclass
class Cursors:
    """A client with the one stream and cursor that there is.

    Attributes:
        sets: Position and history of each call.
    """

    at: int | None = None
    sets: list[tuple[int, int | None]] = field(default_factory=list)

    @property
    def streams(self):
        return self

    def get(self, _):
        return self

    def fetch_cursor(self, _, **_of):
        return self.at

    def set_cursor(self, _, offset, *, unclean_epoch, **_of):
        self.at = offset
        self.sets.append((offset, unclean_epoch))


def test_cursor_is_set_once_in_each_history(table):
    table, client, shown = committed(table, 0, 10, READ), Cursors(), Shown()
    for known in (NEVER, NEVER, HARMLESS, HARMLESS):
        show(client, "archive/x", table, {0: known}, shown)
    assert client.sets == [(10, 0), (10, 8)]


def test_cursor_is_not_set_by_what_another_runner_committed_of_a_former_history(table):
    """It had read that before the election, and this one has compared what came before."""
    before = committed(table, 0, 5, Read(0, 3, 5))
    committed(before, 5, 10, READ)
    client = Cursors()
    show(client, "archive/x", before, {0: OTHERS}, Shown())
    assert client.sets == [(5, 8)]
    client = Cursors(at=7)
    show(client, "archive/x", before, {0: OTHERS}, Shown())
    assert client.sets == []
