"""Clusters of real brokers: how they begin, what they tell, and what a stop or a crash changes."""

import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from liftbridge_testkit.cluster import ClusterKit


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterKit]:
    """Three brokers that found a cluster together."""
    with ClusterKit(tmp_path) as running:
        yield running


def identity(cluster: ClusterKit, name: str) -> bytes:
    return (cluster[name].data_dir / "identity").read_bytes()


def names(cluster: ClusterKit, at: str) -> set[str]:
    return {broker.id for broker in cluster.metadata(at).brokers}


def await_all(cluster: ClusterKit, *wanted: str) -> None:
    """Wait until every broker that lives tells of these, which are all unless they are named."""
    expected = set(wanted or cluster.brokers)
    cluster.everywhere(lambda at: names(cluster, at) == expected, f"{expected} told")


def test_listed_brokers_found_one_cluster_and_go_on_with_it_after_a_restart(
    cluster: ClusterKit,
) -> None:
    await_all(cluster)
    for name in cluster.brokers:
        assert cluster.metric("raft_voters", name) == 3
        assert cluster.metric("raft_leader_known", name) == 1
    ports = {broker.id: broker.port for broker in cluster.metadata().brokers}
    assert ports == {name: broker.port for name, broker in cluster.brokers.items()}
    assert sum(cluster.metric("raft_leader", name) for name in cluster.brokers) == 1
    term = max(cluster.metric("raft_term", name) for name in cluster.brokers)
    assert cluster.stop() == [0, 0, 0]
    cluster.start()
    await_all(cluster)
    for name, broker in cluster.brokers.items():
        assert broker.log_text().count("is_clean=True") >= 2  # of the stop, and the next start
        assert cluster.metric("raft_term", name) > term
        assert broker.log_text().count("cluster_found") == 1


def test_brokers_join_a_seed_and_get_votes(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, has_seed=True) as cluster:
        cluster.await_voters(3)
        await_all(cluster)
        cluster.add("b4")
        cluster.start("b4")
        cluster.await_voters(4)
        cluster["b1"].kill()
        cluster["b1"].start()
        await_all(cluster)
        assert cluster.metric("raft_voters", "b4") == 4


def test_more_than_the_quorum_only_follow(tmp_path: Path) -> None:
    config = {"clustering.raft.max.quorum.size": 1}
    with ClusterKit(tmp_path, 2, config=config, has_seed=True) as cluster:
        cluster.until(lambda: cluster.metric("raft_learners", "b1") == 1, "a learner")
        assert cluster.metric("raft_voters", "b1") == 1


def test_metadata_go_on_when_their_leader_is_killed(cluster: ClusterKit) -> None:
    leader = next(name for name in cluster.brokers if cluster.metric("raft_leader", name))
    cluster[leader].kill()
    others = [name for name in cluster.brokers if name != leader]
    cluster.until(
        lambda: sum(cluster.metric("raft_leader", name) for name in others) == 1,
        "another metadata leader",
        seconds_max=5,
    )
    await_all(cluster, *others)
    cluster[leader].start()
    await_all(cluster)
    assert not cluster.metric("raft_leader", leader)


def test_wiped_disk_comes_back_as_a_new_member(cluster: ClusterKit) -> None:
    former = identity(cluster, "b2")
    cluster.wipe("b2")
    cluster.start("b2")
    assert identity(cluster, "b2") != former
    assert "cluster_found" in cluster["b2"].log_text()
    # The former directory loses its place, the new one gets a vote.
    cluster.await_voters(3)
    cluster["b1"].kill()
    cluster.until(
        lambda: (
            cluster.metric("raft_leader_known", "b2") == 1 and cluster.metric("brokers", "b2") == 3
        ),
        "the wiped one to be of the quorum",
    )


def test_majority_of_wiped_disks_waits_instead_of_founding_anew(tmp_path: Path) -> None:
    with ClusterKit(tmp_path) as cluster:
        cluster.wipe("b1")
        cluster.wipe("b2")
        for name in ("b1", "b2"):
            cluster[name].spawn()
        cluster.until(lambda: "cluster_awaited" in end(cluster, "b1"), "b1 to wait")
        cluster.until(lambda: "cluster_awaited" in end(cluster, "b2"), "b2 to wait")
        assert all("is_founded=True" not in end(cluster, name) for name in ("b1", "b2"))
        for name in ("b1", "b2"):
            assert cluster[name].stop() == 0


def end(cluster: ClusterKit, name: str) -> str:
    """Log of the last start."""
    return cluster[name].log_text().rpartition("broker_starting")[2]


def test_broker_that_is_cut_off_is_fenced_and_comes_back(cluster: ClusterKit) -> None:
    cluster.proxies["b3"].hold()
    cluster.until(lambda: names(cluster, "b1") == {"b1", "b2"}, "b3 to be fenced")
    cluster.until(lambda: cluster.metric("broker_fenced", "b3") == 1, "b3 to fence itself")
    cluster.proxies["b3"].heal()
    cluster.until(lambda: names(cluster, "b1") == {"b1", "b2", "b3"}, "b3 to be back")
    cluster.until(lambda: cluster.metric("broker_fenced", "b3") == 0, "b3 to know it")
    assert cluster["b3"].is_alive()


def test_broker_without_a_quorum_stays_ready(cluster: ClusterKit) -> None:
    await_all(cluster)
    cluster.until(lambda: cluster.metric("broker_ready", "b3") == 1, "b3 to be ready")
    cluster["b1"].kill()
    cluster["b2"].kill()
    cluster.until(lambda: cluster.metric("broker_fenced", "b3") == 1, "b3 to fence itself")
    assert cluster.metric("broker_ready", "b3") == 1


def test_two_brokers_that_cannot_reach_each_other_keep_one_leader(cluster: ClusterKit) -> None:
    leader = next(name for name in cluster.brokers if cluster.metric("raft_leader", name))
    one, other = (name for name in cluster.brokers if name != leader)
    term = cluster.metric("raft_term", leader)
    namespace = "_LIFTBRIDGE.liftbridge-default"
    cluster.proxies[one].lose_to(f"{namespace}.b.{other}.")
    cluster.proxies[other].lose_to(f"{namespace}.b.{one}.")
    heard = cluster.metric("raft_commit_index", leader)
    cluster[leader].pause()
    cluster[leader].resume()
    cluster.until(lambda: cluster.metric("raft_leader", leader) == 1, "the same leader")
    assert cluster.metric("raft_term", leader) == term
    assert cluster.metric("raft_commit_index", leader) >= heard


def test_all_brokers_stop_at_once_in_order(cluster: ClusterKit) -> None:
    """Nobody waits for votes that are gone for good; every directory is clean (C13)."""
    await_all(cluster)
    began = monotonic()
    assert cluster.stop() == [0, 0, 0]
    assert monotonic() - began < 6
    for name in cluster.brokers:
        assert re.search(r"broker_stopped .*is_clean=True", end(cluster, name))
        assert "drain_timed_out" not in end(cluster, name)
    cluster.start()
    for name in cluster.brokers:
        assert re.search(r"data_directory_opened .*is_clean=True", end(cluster, name))
