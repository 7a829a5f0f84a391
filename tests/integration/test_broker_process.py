"""The broker and its system: helper process, open files, data directories of others."""

import contextlib
import os
import re
import resource
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import grpc
import pytest

from liftbridge_client import LiftbridgeError, connect_admin_sync, connect_sync
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import Broker, NatsServer
from liftbridge_testkit.world import World

HELPER = b"liftbridge_broker.adapters.disk.compactor"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One NATS server for all brokers of this file."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


CONFIG = {"streams.fsync.interval": "50ms"}
"""Only what is synced is compacted."""


def helpers(broker: Broker) -> list[int]:
    """Compactors that this broker started and that run."""
    return [
        int(child)
        for children in Path(f"/proc/{broker.pid}/task").glob("*/children")
        for child in children.read_text().split()
        if HELPER in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    ]


def compacted(broker: Broker) -> int:
    """Have a log compacted; process id of the helper that did it."""
    before = broker.log_text().count("log_compacted")
    with broker.channel() as channel:
        world = World(channel)
        world.create(
            compactEnabled=api_pb2.NullableBool(value=True),
            segmentMaxBytes=api_pb2.NullableInt64(value=2_000),
            cleanerInterval=api_pb2.NullableInt64(value=100),
        )
        for number in range(60):
            world.publish(key=b"key-%d" % (number % 5), value=b"%04d" % number * 100)
        broker.wait_until(lambda: broker.log_text().count("log_compacted") > before, "compacted")
        keys = {message.key for message in world.take(5, startPosition=api_pb2.EARLIEST)}
    assert len(keys) == 5
    (helper,) = helpers(broker)
    return helper


def ends(helper: int, act: Callable[[], object]) -> bool:
    """Whether a process ends by what is done here."""
    descriptor = os.pidfd_open(helper)
    try:
        act()
        ended, _, _ = select.select([descriptor], [], [], 20.0)
    finally:
        os.close(descriptor)
    return bool(ended)


def test_log_is_compacted_by_a_helper_that_ends_with_the_broker(
    tmp_path: Path, nats: NatsServer
) -> None:
    with Broker(tmp_path, nats_url=nats.url, config=CONFIG) as broker:
        helper = compacted(broker)
        assert ends(helper, lambda: broker.signal(signal.SIGTERM))
        assert broker.wait() == 0
    assert "is_clean=True" in broker.log_text()


def test_helper_ends_with_a_broker_that_crashed(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url, config=CONFIG) as broker:
        helper = compacted(broker)
        assert ends(helper, broker.kill_alone)


def test_helper_that_was_killed_is_replaced(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url, config=CONFIG) as broker:
        helper = compacted(broker)
        assert ends(helper, lambda: os.kill(helper, signal.SIGKILL))
        assert compacted(broker) != helper


# Open files.


class Cramped(Broker):
    """A broker on a system that lets it open few files.

    `limit` is what the shell's `ulimit` gets: with `-S`, a process may raise it.
    """

    limit = "-n 200"

    def command(self) -> Sequence[str]:
        """Command line with the limit before it."""
        return ("sh", "-c", f'ulimit {self.limit} && exec "$@"', "sh", *super().command())


class LowAtFirst(Cramped):
    """A broker that begins with a low limit of open files, as on most systems."""

    limit = "-S -n 256"


def test_broker_may_open_as_many_files_as_the_system_allows(
    tmp_path: Path, nats: NatsServer
) -> None:
    with LowAtFirst(tmp_path, nats_url=nats.url) as broker:
        limits = Path(f"/proc/{broker.pid}/limits").read_text()
        found = re.search(r"Max open files +([0-9]+)", limits)
        assert found
        _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert int(found[1]) == highest
        assert f"open_files_limited before=256 limit={highest}" in plain(broker)


def test_more_partitions_than_files_may_be_open_refuse_the_start(
    tmp_path: Path, nats: NatsServer
) -> None:
    broker = Cramped(tmp_path, nats_url=nats.url)
    for number in range(150):
        (broker.data_dir / "streams" / "0000000001-s" / str(number)).mkdir(parents=True)
    broker.spawn()
    assert broker.wait(seconds_max=20) == 1
    (line,) = [one for one in plain(broker).splitlines() if one.startswith("liftbridge-broker: ")]
    assert "150 partitions need 214 open files, and the system allows 200" in line


def test_partitions_that_the_next_start_would_refuse_are_not_created(
    tmp_path: Path, nats: NatsServer
) -> None:
    limit, room = 200, (200 - 64) * 3 // 4
    with Cramped(tmp_path, nats_url=nats.url) as broker, connect_sync(broker.address) as client:
        with connect_admin_sync(broker.admin_address) as admin:
            (described,) = admin.brokers()
        assert described.replicas_max == room < limit
        with pytest.raises(LiftbridgeError, match=f"has {room}, as many as the open files"):
            client.streams.create("more", partitions=room + 1)
        client.streams.create("most", partitions=room)
        with pytest.raises(LiftbridgeError, match=f"has {room}, as many as the open files"):
            client.streams.create("one-more")
        broker.kill()
        broker.start()
        assert [one.name for one in client.streams.list()] == ["most"]


def plain(broker: Broker) -> str:
    """Log without colours and without the space that aligns it."""
    return re.sub(" +", " ", re.sub(r"\x1b\[[0-9;]*m", "", broker.log_text()))


# Directories.


def unknown_count(broker: Broker) -> float:
    return broker.metric("liftbridge_unknown_directories ")


def test_stored_id_wins_and_another_one_is_told(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url, name="first") as first:
        assert first.stop() == 0
    with Broker(tmp_path, nats_url=nats.url, name="second", data_dir=first.data_dir) as second:
        (line,) = [line for line in plain(second).splitlines() if "server_id_ignored" in line]
        assert f"configured=second path={first.data_dir} stored=first" in line
        with second.channel() as channel:
            brokers = World(channel).api.FetchMetadata(api_pb2.FetchMetadataRequest()).brokers
        assert [broker.id for broker in brokers] == ["first"]


def test_deletion_is_completed_after_a_kill_and_strange_logs_stay(
    tmp_path: Path, nats: NatsServer
) -> None:
    with Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            world = World(channel)
            world.create()
            world.publish()
            (folder,) = (broker.data_dir / "streams").iterdir()
            kept = shutil.copytree(folder, tmp_path / "kept")
            world.delete()
        broker.kill()
        # As if the kill had come after the deletion was committed and before the log was moved.
        shutil.rmtree(broker.data_dir / "trash")
        shutil.copytree(kept, folder)
        strange = shutil.copytree(kept, broker.data_dir / "streams" / "0000000001-strange")
        broker.start()
        assert not folder.exists()
        assert len(list((broker.data_dir / "trash").iterdir())) == 1
        assert strange.exists()
        assert unknown_count(broker) == 1
        assert f"deletion_completed path=streams/{folder.name}/0" in plain(broker)
        assert "unknown_directory_kept path=streams/0000000001-strange/0" in plain(broker)


# End.


def test_publishers_of_a_broker_that_stops_know_what_became_of_each_message(
    tmp_path: Path, nats: NatsServer
) -> None:
    config = {"streams.fsync.policy": "commit"}
    with (
        Broker(tmp_path, nats_url=nats.url, config=config) as broker,
        broker.channel() as channel,
    ):
        world = World(channel)
        name = world.create()
        sending = threading.Event()

        def requests() -> Iterator[api_pb2.PublishRequest]:
            for number in count():
                if number == 2_000:
                    sending.set()
                yield api_pb2.PublishRequest(
                    stream=name, value=b"v" * 100, correlationId=str(number), expectedOffset=-1
                )

        acked, refused = 0, []
        with contextlib.suppress(grpc.RpcError):
            for answer in world.api.PublishAsync(requests()):
                if answer.HasField("asyncError"):
                    refused.append(answer.asyncError.message)
                else:
                    acked += 1
                if sending.is_set():
                    sending.clear()
                    broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert acked > 0
        assert [text for text in refused if "unknown" in text] == []
    with broker, broker.channel() as channel:
        world = World(channel)
        world.name = name
        messages, _, _ = world.read(
            startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST
        )
        assert len(messages) == acked
