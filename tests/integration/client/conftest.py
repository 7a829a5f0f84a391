"""One broker for the tests that do not hurt it, and one for those that do."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from liftbridge_client import Client, connect
from liftbridge_testkit.processes import Broker, NatsServer

_names = count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"cursors.stream.partitions": 3, "activity.stream.enabled": True}
    with Broker(Path(tmp_path_factory.mktemp("client")), config=config) as running:
        yield running


@pytest.fixture(scope="session")
def restarted_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    place = tmp_path_factory.mktemp("mortal")
    # A NATS server of its own lives on when the broker is killed.
    with NatsServer(place) as nats, Broker(place, nats_url=nats.url) as running:
        yield running


@pytest.fixture
def mortal_broker(restarted_broker: Broker) -> Iterator[Broker]:
    """A broker to kill and freeze: whole again for the next test, its streams stay."""
    if not restarted_broker.is_alive():
        restarted_broker.start()
    yield restarted_broker
    if restarted_broker.is_alive():
        restarted_broker.resume()


@pytest.fixture(params=["batches", "plain"])
async def lb(request, broker: Broker) -> AsyncIterator[Client]:
    """A client that uses our own calls, and one as against the original server."""
    async with connect(broker.address, retry_time=timedelta(seconds=20)) as client:
        assert client.has_data
        client.has_data = request.param == "batches"
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test of the run uses."""
    return f"stream-{next(_names)}"
