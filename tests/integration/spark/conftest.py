"""A broker with cursors for what the source asks of it without Spark, and an object store."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from liftbridge_client import SyncClient, connect_sync
from liftbridge_testkit.object_store import ENVIRONMENT, ObjectStore
from liftbridge_testkit.processes import Broker

_names = count()
SECONDS_MAX = 20.0


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"cursors.stream.partitions": 1}
    with Broker(Path(tmp_path_factory.mktemp("spark")), config=config) as running:
        yield running


@pytest.fixture(scope="session")
def lb(broker: Broker) -> Iterator[SyncClient]:
    with connect_sync(broker.address) as client:
        yield client


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(Path(tmp_path_factory.mktemp("objects"))) as running:
        yield running


@pytest.fixture
def s3(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The object store, with its credentials in the environment."""
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    return object_store


@pytest.fixture
def name() -> str:
    """A name that no other test of the run uses."""
    return f"spark-{next(_names)}"


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until something holds, which it must in time."""

    def wait(holds: Callable[[], bool]) -> None:
        deadline, step = monotonic() + SECONDS_MAX, Event()
        while not holds():
            assert monotonic() < deadline, "not in time"
            step.wait(0.02)

    return wait
