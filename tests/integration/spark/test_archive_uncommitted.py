"""What is archived and in the log is not lost, also while a leader does not call it committed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from liftbridge_client import RetriableError, connect_sync
from liftbridge_testkit.archive_runs import NOW_MS
from liftbridge_testkit.cluster import ClusterKit
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.fence import Claim, Written
from pyspark_liftbridge.archive.stores.store import open_store
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.jobs import archive
from pyspark_liftbridge.jobs.archive import Job, archive_once, do


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    # A follower that is paused stays in sync, however slow the machine is.
    config = {"clustering.replica.max.lag.time": "10m", "clustering.broker.session.timeout": "10m"}
    place = tmp_path_factory.mktemp("uncommitted")
    with ClusterKit(place, config=config, has_proxies=False) as running:
        yield running


def test_what_is_not_committed_yet_is_not_said_to_be_lost(
    cluster: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "BEHIND_SECONDS_MAX", 0.5)
    servers = ",".join(broker.address for broker in cluster.brokers.values())
    with connect_sync(servers) as lb:
        stream = lb.streams.create("orders", replication=2)
        stream.publish(b"0", ack_policy="all")
        job = Job("orders", str(tmp_path), {"servers": servers}, {}, fails_on_loss=True)
        archive_once(job, lambda works: [do(one) for one in works])
        found = stream.info().partitions[0]
        follower = next(one for one in found.replicas if one != found.leader)
        cluster[follower].pause()
        try:
            stream.publish(b"1", ack_policy="leader")
            (bounds,) = stream.bounds(0)
            assert (bounds.high_watermark, bounds.log_end) == (1, 2)
            # As a run left it that read from a leader with its followers.
            table = open_table(
                open_store(str(tmp_path)), "orders", bounds.stream_id, Making("id", NOW_MS)
            )
            claims = [Claim((Written(delta.Span(0, 1, 2), ()),))]
            proposal = Proposal(
                run_id="other", stream_id=bounds.stream_id, claims=claims, now_ms=NOW_MS
            )
            commit(table.store, table.snapshot, proposal)
            with pytest.raises(
                RetriableError, match="committed them only up to 1: a replica is away"
            ):
                archive_once(job, lambda works: [do(one) for one in works])
        finally:
            cluster[follower].resume()
        cluster.until(lambda: stream.bounds(0)[0].high_watermark == 2, "committed")
        done = archive_once(job, lambda works: [do(one) for one in works])
        assert done.records == 0
