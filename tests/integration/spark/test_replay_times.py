"""A log is searched by time: records whose times go back are not put back."""

from pathlib import Path

import pytest

from liftbridge_client import SyncClient
from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, records
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.stores.store import open_store
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.jobs import replay
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.jobs.selection import Selection
from pyspark_liftbridge.jobs.works import RefusedError

DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000


def archive(root: Path) -> None:
    """Archive 20 records; from offset 10 on they are an hour older."""
    batches = [
        records(range(10), day_us=DAY_US),
        records(range(10, 20), day_us=DAY_US - HOUR_US),
    ]
    table = open_table(open_store(str(root)), STREAM, STREAM_ID, Making("id", NOW_MS))
    place, chance = Place(STREAM, STREAM_ID, delta.Span(0, 0, 20)), Chance(lambda: "a", NOW_MS)
    claims = [Claim((write_files(table.store, place, batches, chance),))]
    proposal = Proposal(run_id="a run", stream_id=STREAM_ID, claims=claims, now_ms=NOW_MS)
    commit(table.store, table.snapshot, proposal)


def test_times_that_go_back_are_refused_before_anything_is_written(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path
) -> None:
    archive(tmp_path)
    access = Access({"servers": broker.address}, str(tmp_path), {})

    def written(to: str, *, end: int | None = None, keeps: bool = True) -> int:
        chosen = Selection() if end is None else Selection(end=end)
        job = replay.Job(f"{STREAM}/", to, access, chosen, keeps)
        (done,) = replay.replay(job, lambda works: [replay.do(one) for one in works])
        return done.written

    copy = lb.streams.create(name)
    with pytest.raises(RefusedError, match="offset 10 of partition 0 of the archive has an ear"):
        written(name)
    assert copy.bounds(0)[0].log_end == 0
    assert written(name, end=10) == 10
    lb.streams.create(f"{name}-anew")
    assert written(f"{name}-anew", keeps=False) == 20
