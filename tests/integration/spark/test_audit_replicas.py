"""An audit reads every replica of three real brokers, and finds what one of them has otherwise."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import pack

import pytest

from liftbridge_broker.logformat.batch import COVERED_START, read_header
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_client import SyncClient, connect_sync
from liftbridge_client.cli import exits
from liftbridge_testkit.cluster import ClusterKit
from pyspark_liftbridge.cli.replay import exit_code_of
from pyspark_liftbridge.jobs import audit, holders
from pyspark_liftbridge.jobs.audit import Audited, Difference
from pyspark_liftbridge.jobs.audit import audit as compared
from pyspark_liftbridge.jobs.comparing import BUCKET
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.jobs.works import Progress, silent

COUNT = 3 * BUCKET
ALTERED = BUCKET + 17


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterKit]:
    with ClusterKit(tmp_path, has_proxies=False) as running:
        with connect_sync(servers(running)) as lb:
            stream = lb.streams.create("orders", replication=3)
            with stream.publisher(ack_policy="all") as publisher:
                for at in range(0, COUNT, 5_000):
                    publisher.publish_batch([b"<%d>" % one for one in range(at, at + 5_000)])
        yield running


def servers(cluster: ClusterKit) -> str:
    return ",".join(broker.address for broker in cluster.brokers.values())


def audited(cluster: ClusterKit, tell: Progress = silent) -> Audited:
    whole = audit.Job("orders", Access({"servers": servers(cluster)}, "", {}), "")

    def run(works: Sequence[str]) -> list[str]:
        return [audit.do(one) for one in works]

    return compared(whole, run, tell)


def leader(lb: SyncClient) -> str:
    return lb.streams.get("orders").info().partitions[0].leader


def alter(broker_dir: Path, old: bytes, new: bytes) -> None:
    """Alter a record in the log of a broker that does not run, with a checksum that fits."""
    (place,) = (path for path in broker_dir.rglob("*.log") if old in path.read_bytes())
    data = bytearray(place.read_bytes())
    at = data.index(old)
    start = 0
    while (end := start + COVERED_START + read_header(memoryview(data), start).length) <= at:
        start = end
    data[at : at + len(new)] = new
    data[start + 8 : start + 12] = pack(">I", crc32c(bytes(data[start + COVERED_START : end])))
    place.write_bytes(data)


def test_a_broker_that_dies_meanwhile_is_told_apart_from_a_difference(
    cluster: ClusterKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "RETRY_NS", 1_000_000_000)
    with connect_sync(servers(cluster)) as lb:
        first = leader(lb)
        cluster.until(
            lambda: len(lb.streams.get("orders").info().partitions[0].isr) == 3, "all in sync"
        )
    follower = next(name for name in cluster.brokers if name != first)
    whole = audit.Job("orders", Access({"servers": servers(cluster)}, "", {}), "")

    def overtaken(works: Sequence[str]) -> list[str]:
        cluster[follower].kill()
        return [audit.do(one) for one in works]

    found = compared(whole, overtaken)
    cluster.start(follower)
    with connect_sync(servers(cluster)) as lb:
        cluster.until(
            lambda: follower in lb.streams.get("orders").info().partitions[0].isr, "in sync"
        )
    (away,) = found.differences
    assert (away.holder, away.is_unread) == (f"broker {follower}", True)
    # On a slow machine it is out of sync before it is asked.
    assert away.text.startswith(("could not be read: ", "was not compared: "))
    assert exit_code_of(found) == exits.UNHEALTHY


def test_replicas_are_alike_until_one_is_altered_or_away(
    cluster: ClusterKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "TASK_OFFSETS", BUCKET)
    reports: list[tuple[int, int]] = []
    found = audited(cluster, lambda done, all_: reports.append((done, all_)))
    assert found == Audited((), 3 * COUNT, ("broker b1", "broker b2", "broker b3"), 0)
    assert reports == [(0, 3), (3, 3)]

    with connect_sync(servers(cluster)) as lb:
        first = leader(lb)
        follower = next(name for name in cluster.brokers if name != first)
    cluster.stop(follower)
    with connect_sync(servers(cluster)) as lb:
        cluster.until(
            lambda: follower not in lb.streams.get("orders").info().partitions[0].isr, "left"
        )
    alter(cluster[follower].data_dir, b"<%d>" % ALTERED, b"[%d>" % ALTERED)
    cluster.start(follower)
    with connect_sync(servers(cluster)) as lb:
        cluster.until(
            lambda: follower in lb.streams.get("orders").info().partitions[0].isr, "in sync"
        )
        text = f"differs from broker {leader(lb)}: value"
    altered = Difference(0, ALTERED, ALTERED + 1, f"broker {follower}", text)
    found = audited(cluster)
    assert found.differences == (altered,)
    assert exit_code_of(found) == exits.REFUSED

    cluster[follower].kill()
    with connect_sync(servers(cluster)) as lb:
        cluster.until(
            lambda: follower not in lb.streams.get("orders").info().partitions[0].isr, "left"
        )
    found = audited(cluster)
    told = "was not compared: it is not in sync"
    assert found.differences == (
        Difference(0, 0, COUNT, f"broker {follower}", told, is_unread=True),
    )
    assert exit_code_of(found) == exits.UNHEALTHY
