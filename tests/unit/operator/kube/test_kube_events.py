"""Events are written once, counted up when they repeat, and dropped when they cannot be written."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from liftbridge_operator.kube.errors import ForbiddenError
from liftbridge_operator.kube.events import REMEMBERED_MAX, REPEAT_S, Events
from liftbridge_operator.kube.kinds import EVENTS
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_testkit.kube.memory import MemoryKube


class World:
    def __init__(self):
        self.kube = MemoryKube()
        self.now = 0.0
        self.results = []
        self.events = Events(
            self.kube,
            instance="operator-1",
            now=lambda: self.now,
            wall=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now),
            rng=Random(1),
            on_result=self.results.append,
        )
        self.cluster = self.kube.put(
            {
                "apiVersion": "liftbridge.io/v1alpha1",
                "kind": "LiftbridgeCluster",
                "metadata": {"name": "c", "namespace": "n"},
            }
        )

    async def tell(self, broker="c-0"):
        values = {"broker": broker}
        await self.events.record(self.cluster, EventReason.BROKER_ADDED, values)

    @property
    def written(self):
        return self.kube.all_of(EVENTS)


@pytest.fixture
def world():
    return World()


async def test_event_says_what_the_catalogue_says_and_whom_it_is_about(world):
    await world.tell()
    (event,) = world.written
    assert event["note"] == "c-0 is now a member of the cluster."
    assert (event["type"], event["reason"], event["action"]) == ("Normal",) + ("BrokerAdded",) * 2
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert event["reportingController"] == "liftbridge.io/operator"
    assert event["reportingInstance"] == "operator-1"
    metadata = world.cluster["metadata"]
    assert event["regarding"] == {
        "apiVersion": "liftbridge.io/v1alpha1",
        "kind": "LiftbridgeCluster",
        "namespace": "n",
        "name": "c",
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }


async def test_repetition_is_counted_and_written_at_intervals(world):
    for _ in range(5):
        await world.tell()
    assert world.results == ["written"] + ["repeated"] * 4
    assert len(world.kube.writes) == 1
    world.now = REPEAT_S
    await world.tell()
    (event,) = world.written
    assert event["series"] == {"count": 6, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}


async def test_other_values_are_another_event(world):
    await world.tell("c-0")
    await world.tell("c-1")
    assert len(world.written) == 2


async def test_event_that_the_server_forgot_is_written_anew(world):
    await world.tell()
    world.kube.remove(EVENTS, "n", world.written[0]["metadata"]["name"])
    world.now = REPEAT_S
    await world.tell()
    assert "series" not in world.written[0]


async def test_event_that_cannot_be_written_is_dropped(world):
    world.kube.fail(ForbiddenError("no"), verb="create")
    await world.tell()
    assert world.results == ["failed"]
    await world.tell()
    assert world.results == ["failed", "written"]


async def test_what_is_remembered_is_bounded(world):
    for number in range(REMEMBERED_MAX + 1):
        await world.tell(f"c-{number}")
    await world.tell("c-0")
    assert world.results == ["written"] * (REMEMBERED_MAX + 2)
