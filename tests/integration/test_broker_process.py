"""What the broker's process asks of the system: its helper process, and room for open files."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
