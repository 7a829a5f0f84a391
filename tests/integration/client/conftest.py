"""One broker with NATS for the tests of a module that do not hurt it."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from liftbridge_client import Client, connect
from liftbridge_testkit.processes import Broker

_names = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"cursors.stream.partitions": 3}
    with Broker(Path(tmp_path_factory.mktemp("client")), config=config) as running:
        yield running


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
