"""One broker for each file of conformance tests: the shipped program with its embedded NATS."""

from collections.abc import Iterator

import pytest

from liftbridge_testkit.processes import Broker
from liftbridge_testkit.world import World


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with cursors on, everything else as shipped."""
    work_dir = tmp_path_factory.mktemp("broker")
    with Broker(work_dir, config={"cursors.stream.partitions": 1}) as running:
        yield running


@pytest.fixture
def world(broker: Broker) -> Iterator[World]:
    """The broker as one test sees it."""
    with broker.channel() as channel:
        yield World(channel)
