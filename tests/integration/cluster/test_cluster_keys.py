"""Keys of a running cluster: the first one, another one, a wrong one, and frames of nobody."""

import re
import signal
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from liftbridge_broker.wire.peer.keys import parse_keys
from liftbridge_proto import api_pb2
from liftbridge_testkit.checker import History, check
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.forgery import measure
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.steady import OwnClientPublisher

STREAM = "orders"
OLD, NEW = ("a" * 32, "b" * 32)
PAGE = ROOT / "docs/how-to/give-a-cluster-a-secret.md"
STEP = re.compile(r"^\| \d+ \| (.*) \|$", re.MULTILINE)
FRAMES, RATE = 5_000, 2_000


def steps() -> list[tuple[str, ...]]:
    """Lines of the file, step by step, as the page has them."""
    named = PAGE.read_text().replace("KEY-1", OLD).replace("KEY-2", NEW)
    found = [tuple(cells.replace("`", "").split(", ")) for cells in STEP.findall(named)]
    return [after for before, after in pairwise([(), *found]) if after != before]


def create(cluster: ClusterKit) -> None:
    with cluster["b1"].channel() as channel:
        api(channel).CreateStream(
            api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, replicationFactor=3),
            timeout=10,
        )
    cluster.until(lambda: len(cluster.partition(STREAM).isr) == 3, "three in sync")


def has_read(broker: Broker, ids: Sequence[str]) -> bool:
    """Whether these keys are the last that a broker told of."""
    told = [line for line in broker.log_text().splitlines() if "cluster_keys_read" in line]
    return told[-1:] != [] and f"keys={list(ids)}" in told[-1]


def give(cluster: ClusterKit, lines: Sequence[str]) -> None:
    """Replace the file of all brokers, and wait until the last one has read it."""
    ids = parse_keys("\n".join(lines), "keys").key_ids
    cluster.write_keys(*lines)
    for broker in cluster.brokers.values():
        broker.signal(signal.SIGHUP)
        broker.wait_until(partial(has_read, broker, ids), f"keys {ids}")


def test_a_running_cluster_gets_its_first_key_and_another_one(tmp_path: Path) -> None:
    """As the page says; every step goes on under load, and costs no acknowledged message."""
    written = steps()
    assert (len(written), written[0], written[-1]) == (7, ("open",), (NEW,))
    with ClusterKit(tmp_path, keys=written[0]) as cluster:
        create(cluster)
        history = History()
        addresses = [broker.address for broker in cluster.brokers.values()]
        publisher = OwnClientPublisher(history.new_publisher(), addresses, STREAM)
        publisher.start()
        for after in written[1:]:
            give(cluster, after)
            publisher.wait_for(publisher.done_count + 500)
            for at in cluster.brokers:
                assert cluster.metric("peers_authenticated", at) == ("open" not in after)
        publisher.stop()
        cluster.until(lambda: len(cluster.partition(STREAM).isr) == 3, "three in sync")

        assert check(history, cluster.read_log(STREAM)) == []


def test_a_broker_with_another_key_or_none_is_no_member(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, keys=(OLD,)) as cluster:
        wrong = tmp_path / "wrong.keys"
        wrong.write_text(NEW)
        strangers = [
            cluster.add("b4", config={"clustering.secret.file": str(wrong)}),
            cluster.add("b5", config={"clustering.secret.file": ""}),
        ]
        for stranger in strangers:
            stranger.spawn()
        cluster.until(
            lambda: all(
                cluster.metric("peer_frames_refused_total", at) >= 10 for at in ("b1", "b2", "b3")
            ),
            "questions of strangers",
        )
        assert not any(stranger.is_ready() for stranger in strangers)
        for at in ("b1", "b2", "b3"):
            assert cluster.metric("raft_voters", at) == 3
            assert cluster.metric("raft_learners", at) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("short", "a key must have 32 to 1024 characters, this one has 5"),
        (f"{OLD}\n{OLD}", "line 2"),
        (f"{OLD} {OLD}", "printable characters without blanks"),
    ],
)
def test_a_file_without_a_good_key_is_refused_by_name_and_never_shown(
    tmp_path: Path, text: str, reason: str
) -> None:
    cluster = ClusterKit(tmp_path, 1, keys=(OLD,))
    try:
        cluster.secret_file.write_text(text)
        broker = cluster["b1"]
        broker.spawn()
        assert broker.wait() == 1
        assert reason in broker.log_text()
        assert str(cluster.secret_file) in broker.log_text()
        assert OLD not in broker.log_text()
    finally:
        cluster.close()


def test_nothing_of_frames_that_others_made_is_believed(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, config={"logging.format": "json"}, has_proxies=False) as cluster:
        found = measure(cluster, FRAMES, RATE, seconds=1.0, settle_seconds=1.0)
    assert found["frames forged"] == FRAMES
    assert found["frames not refused"] == 0
    assert found["acknowledged and wrong or missing"] == 0
    assert found["publisher refused"] == 0
    assert found["acknowledged"] > 0
