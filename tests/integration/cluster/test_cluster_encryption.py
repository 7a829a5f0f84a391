"""Encrypted streams of a running cluster: rotation of the master key under load, and in a kill."""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from liftbridge_client import SyncAdminClient, connect_admin_sync
from liftbridge_proto import api_pb2
from liftbridge_testkit.checker import History, check
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.steady import OwnClientPublisher, SteadyReader

STREAM = "orders"
VALUES_BEGIN_WITH = b"LBCK"
ROTATIONS = 3


def line(number: int) -> str:
    """A master key in a key file."""
    return f"key-{number} {number:064x}\n"


def create(cluster: ClusterKit) -> None:
    with cluster["b1"].channel() as channel:
        api(channel).CreateStream(
            api_pb2.CreateStreamRequest(
                name=STREAM,
                subject=STREAM,
                replicationFactor=3,
                encryption=api_pb2.NullableBool(value=True),
                segmentMaxBytes=api_pb2.NullableInt64(value=65_536),
            ),
            timeout=10,
        )
    cluster.until(partial(are_in_sync, cluster), "three in sync")


def are_in_sync(cluster: ClusterKit) -> bool:
    return len(cluster.partition(STREAM).isr) == 3


def test_a_rotation_under_load_costs_nothing_acknowledged(tmp_path: Path) -> None:
    """Each key replaces the former one, which goes; during one rotation a broker is killed."""
    keys = tmp_path / "master.keys"
    keys.write_text(line(0))
    with ClusterKit(tmp_path, config={"encryption.keys.file": str(keys)}) as cluster:
        create(cluster)
        history = History()
        addresses = [broker.address for broker in cluster.brokers.values()]
        publisher = OwnClientPublisher(history.new_publisher(), addresses, STREAM)
        reader = SteadyReader(history, addresses, STREAM)
        publisher.start()
        reader.start()
        for number in range(1, ROTATIONS + 1):
            is_last = number == ROTATIONS
            if is_last:
                assert publisher.errors == {}, "no fault until here, so no failed call"
            rotate(cluster, keys, number, hurt=["b3"] if is_last else [])
            publisher.wait_for(publisher.done_count + 500)
        publisher.stop()
        cluster.until(partial(are_in_sync, cluster), "three in sync")
        reader.stop()
        assert {cluster.metric("streams_locked", at) for at in cluster.brokers} == {0}
        assert check(history, cluster.read_log(STREAM)) == []
        assert reader.done_count > 500
        assert files_with(cluster, VALUES_BEGIN_WITH) == []


def rotate(cluster: ClusterKit, keys: Path, number: int, hurt: Sequence[str]) -> None:
    """Replace the former key by this one, while brokers that are to be hurt are down."""
    former, fresh = f"key-{number - 1}", f"key-{number}"
    give(cluster, keys, line(number - 1) + line(number))
    with connect_admin_sync(cluster["b1"].admin_address) as admin:
        cluster.until(lambda: brokers_with(admin, fresh) == len(cluster.brokers), "reports")
        for name in hurt:
            cluster[name].kill()
        admin.keys.rotate(fresh)
        cluster.until(lambda: admin.keys.rewrap().left == 0, "all data keys wrapped anew")
        assert {one.key_id: one.streams for one in admin.keys.status()} == {former: 0, fresh: 1}
    give(cluster, keys, line(number))
    for name in hurt:
        cluster.start(name)  # it reads all that it stored, and has only the fresh key


def give(cluster: ClusterKit, keys: Path, text: str) -> None:
    """Replace the key file, and let the brokers read it."""
    keys.write_text(text)
    for broker in cluster.living:
        broker.signal(signal.SIGHUP)


def brokers_with(admin: SyncAdminClient, key_id: str) -> int:
    return sum(len(one.brokers) for one in admin.keys.status() if one.key_id == key_id)


def files_with(cluster: ClusterKit, text: bytes) -> list[Path]:
    return [
        path
        for broker in cluster.brokers.values()
        for path in broker.data_dir.rglob("*")
        if path.is_file() and text in path.read_bytes()
    ]
