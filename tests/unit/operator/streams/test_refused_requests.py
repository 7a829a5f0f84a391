"""Whoever refuses a request for a stream is named, and is not asked again in every pass."""

import json
from itertools import pairwise

import pytest

from liftbridge_operator.kube.answers import error_of
from liftbridge_operator.kube.kinds import STREAMS
from liftbridge_operator.streams.decide import REFUSED_SECONDS
from liftbridge_operator.streams.marks import FINALIZER
from liftbridge_testkit.streams_world import running

WAYS = {
    "right": (403, 'User "operator" cannot patch resource "streams" in API group ""'),
    "rule": (403, 'admission webhook "rule.example" denied the request: no'),
    "rule that does not answer": (500, 'failed calling webhook "rule.example": no'),
    "schema": (422, "metadata: Invalid value: no"),
}
DELETED = {"deletionPolicy": "Delete"}


def refuse(world, way):
    """Every write of the resource itself is refused from now on; returns them as they come."""
    status, words = WAYS[way]
    asked = []

    def admit(verb, body):
        if body["kind"] == STREAMS.kind and verb == "patch":
            asked.append(world.clock.now())
            text = json.dumps({"kind": "Status", "message": words})
            raise error_of("PATCH", "/streams/orders", status, text.encode())

    world.kube.admit = admit
    return asked


async def message(world, kind):
    told = (await world.body())["status"]["conditions"]
    return next(one["message"] for one in told if one["type"] == kind)


def are_apart(asked):
    gaps = [after - before for before, after in pairwise(asked)]
    return len(asked) > 2 and min(gaps) >= REFUSED_SECONDS - 1


@pytest.mark.parametrize("way", WAYS)
async def test_finalizer_that_cannot_be_added_is_told(way):
    async with running() as world:
        world.cluster()
        asked = refuse(world, way)
        world.stream(**DELETED)
        await world.settle(4 * REFUSED_SECONDS)
        assert await world.reason() == "Refused"
        assert WAYS[way][1] in await message(world, "Ready")
        assert [one["what"] for one in (await world.body())["status"]["waits"]] == ["ActionRefused"]
        assert are_apart(asked)
        world.kube.admit = None
        await world.settle(2 * REFUSED_SECONDS)
        assert await world.reason() == "Reconciled"


@pytest.mark.parametrize("way", WAYS)
async def test_finalizer_that_cannot_be_removed_is_told(way):
    async with running() as world:
        world.cluster()
        world.stream(**DELETED)
        await world.settle(15)
        assert (await world.body())["metadata"]["finalizers"] == [FINALIZER]
        asked = refuse(world, way)
        world.kube.edit(
            STREAMS, "shop", "orders", lambda body: body["spec"].update(deletionPolicy="Retain")
        )
        await world.delete()
        await world.settle(4 * REFUSED_SECONDS)
        assert await world.reason(kind="DeletionBlocked") == "Refused"
        assert await world.reason() == "Deleting"
        assert WAYS[way][1] in await message(world, "DeletionBlocked")
        assert are_apart(asked)
        world.kube.admit = None
        await world.settle(2 * REFUSED_SECONDS)
        assert world.kube.names_of(STREAMS) == []


async def adopted(world):
    world.brokers.put("orders")
    world.stream()


async def observed_again(world):
    world.stream()
    await world.settle(15)
    world.kube.edit(
        STREAMS, "shop", "orders", lambda body: body["spec"].update(managementPolicy="Observe")
    )


async def deleted(world):
    world.stream(**DELETED)
    await world.settle(15)
    world.brokers.messages["orders"] = 0
    await world.delete()


@pytest.mark.parametrize(
    ("bring", "kind"),
    [(adopted, "Ready"), (observed_again, "Ready"), (deleted, "DeletionBlocked")],
    ids=["Mark", "Forget", "Delete"],
)
async def test_change_that_brokers_refuse_is_told(bring, kind):
    async with running() as world:
        world.cluster()
        if bring is adopted:
            world.brokers.refusal = "no room"
        await bring(world)
        world.brokers.refusal = "no room"
        await world.settle(REFUSED_SECONDS)
        assert await world.reason(kind=kind) == "Refused"
        assert "no room" in await message(world, kind)
