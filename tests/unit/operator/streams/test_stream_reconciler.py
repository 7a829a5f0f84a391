"""The Stream reconciler between an API server and brokers in memory."""

import asyncio
from datetime import timedelta

import pytest

from liftbridge_operator.kube.errors import (
    FencedError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CLUSTERS, NAMESPACES, STREAMS
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_operator.model.stream import StreamStatus
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import (
    CONNECTED_SECONDS,
    HEARD_SECONDS,
    INTERVAL_SECONDS,
)
from liftbridge_operator.streams.marks import FINALIZER, mark_of
from liftbridge_operator.streams.status import WAIT_REPORTED_MS
from liftbridge_testkit.kube.fields import copied
from liftbridge_testkit.resources.changes import changes, is_admitted
from liftbridge_testkit.resources.schema import defaulted
from liftbridge_testkit.streams_world import running


async def test_stream_is_created_marked_and_told():
    async with running() as world:
        world.cluster()
        world.stream(partitions=2, config={"minISR": 1})
        await world.settle()
        assert await world.reason() == "CreatePending"
        await world.settle(3)
        body = await world.body()
        made = world.brokers.held["orders"]
        assert made.owner == mark_of("shop", "orders", body["metadata"]["uid"])
        assert made.settings["min_isr"] == 1
        assert await world.reason() == "Reconciled"
        assert body["status"]["creationId"] == str(made.stream_id)
        assert body["status"]["observedGeneration"] == 1
        assert not body["status"]["adopted"]
        assert world.events.told == [("orders", EventReason.STREAM_CREATED)]
        assert StreamStatus.model_validate(body["status"]).partitions == 2


async def test_status_is_told_before_the_brokers_are_asked():
    async with running() as world:
        world.cluster()
        world.stream()
        world.brokers.is_silent = False
        order = []
        world.kube.on_change = lambda *_: order.append("status")
        ask = world.brokers.create

        async def create(*args, **kwargs):
            order.append("create")
            return await ask(*args, **kwargs)

        world.brokers.create = create
        await world.settle()
        assert order[:2] == ["status", "create"]


async def test_nothing_is_written_while_nothing_changes_and_one_look_feeds_all():
    async with running() as world:
        world.cluster()
        for number in range(50):
            world.stream(f"s{number}")
        await world.settle(30)
        assert {await world.reason(f"s{number}") for number in range(50)} == {"Reconciled"}
        writes, looks, calls = len(world.kube.writes), world.brokers.looks, len(world.brokers.calls)
        await world.settle(600)
        assert len(world.kube.writes) == writes
        assert len(world.brokers.calls) == calls
        assert world.brokers.looks - looks == 600 / INTERVAL_SECONDS
        assert world.connected == 1 + 630 // CONNECTED_SECONDS
        assert set(world.board.reasons.values()) == {"Reconciled"}


async def test_stream_deleted_behind_its_back_is_there_again_within_half_a_minute():
    async with running() as world:
        world.cluster()
        world.stream()
        await world.settle(15)
        former = world.brokers.held.pop("orders")
        await world.settle(15)
        assert world.brokers.held["orders"].stream_id != former.stream_id
        assert await world.reason() == "Reconciled"
        assert world.events.told[-1] == ("orders", EventReason.STREAM_MISSING)


async def test_changes_and_drift_are_put_right():
    async with running() as world:
        world.cluster()
        world.stream()
        await world.settle(15)
        world.stream(replicationFactor=2, readonly=True, config={"retentionMaxAge": "1h"})
        await world.settle(15)
        held = world.brokers.held["orders"]
        assert (held.factor, held.settings["retention_max_age"]) == (2, 3_600_000)
        assert held.partitions[0].is_readonly
        assert await world.reason() == "Reconciled"
        assert ("orders", EventReason.STREAM_ALTERED) in world.events.told
        world.brokers.change("orders", settings=held.settings | {"retention_max_age": 1})
        await world.settle(15)
        assert world.brokers.held["orders"].settings["retention_max_age"] == 3_600_000
        assert world.events.told[-1] == ("orders", EventReason.DRIFT_REPAIRED)
        assert (await world.body())["status"]["lastSyncTime"]


async def test_existing_stream_is_adopted_when_it_is_the_same():
    async with running() as world:
        world.cluster()
        world.brokers.put("orders")
        world.brokers.put("other", subject="x")
        world.stream()
        world.stream("other")
        await world.settle(15)
        assert await world.reason() == "Reconciled"
        assert (await world.body())["status"]["adopted"]
        assert world.events.told[0] == ("orders", EventReason.STREAM_ADOPTED)
        assert await world.reason("other") == "Drifted"
        assert world.brokers.held["other"].owner == ""
        assert "creationId" not in (await world.body("other"))["status"]


@pytest.mark.parametrize("policy", ["IfEqual", "Never"])
async def test_stream_that_was_there_before_its_resource_is_not_taken_for_an_own_one(policy):
    """The last look is from before the stream was created, and shows none."""
    async with running() as world:
        world.cluster()
        world.stream("another")
        await world.settle(INTERVAL_SECONDS / 2)
        world.brokers.put("orders")
        world.stream(adoptionPolicy=policy)
        await world.settle(15)
        if policy == "Never":
            assert await world.reason() == "Conflict"
            assert world.brokers.held["orders"].owner == ""
        else:
            assert await world.reason() == "Reconciled"
            assert (await world.body())["status"]["adopted"]
            assert ("orders", EventReason.STREAM_ADOPTED) in world.events.told


async def test_older_of_two_resources_has_the_stream():
    async with running() as world:
        world.cluster()
        world.stream("a", streamName="orders", subject="orders")
        world.stream("b", streamName="orders", subject="orders")
        await world.settle(15)
        owner = world.brokers.held["orders"].owner
        assert owner.startswith("streams.liftbridge.io/shop/a/")
        assert [await world.reason(name) for name in "ab"] == ["Reconciled", "Conflict"]
        await world.delete("a")
        await world.settle(45)
        assert world.brokers.held["orders"].owner.startswith("streams.liftbridge.io/shop/b/")
        assert await world.reason("b") == "Reconciled"
        assert (await world.body("b"))["status"]["adopted"]


async def test_older_resource_takes_a_stream_over_that_a_younger_one_has():
    async with running() as world:
        world.cluster(streams={"allowedNamespaces": []})
        world.stream("a", "elsewhere", streamName="orders", subject="orders")
        world.stream("b", streamName="orders", subject="orders")
        await world.settle(15)
        assert await world.reason("a", "elsewhere") == "NotAllowed"
        assert await world.reason("b") == "Reconciled"
        world.kube.edit(
            CLUSTERS,
            "shop",
            "c",
            lambda body: body["spec"]["streams"].update(allowedNamespaces=["*"]),
        )
        await world.settle(30)
        assert await world.reason("a", "elsewhere") == "Reconciled"
        assert await world.reason("b") == "Conflict"


async def test_resource_that_is_not_let_in_holds_nothing_any_more():
    async with running() as world:
        world.cluster(streams={"allowedNamespaces": ["elsewhere"]})
        world.stream("a", "elsewhere", streamName="orders", subject="orders")
        await world.settle(15)
        assert await world.reason("a", "elsewhere") == "Reconciled"
        world.cluster(streams={"allowedNamespaces": []})
        world.stream("b", streamName="orders", subject="orders")
        await world.settle(30)
        assert await world.reason("a", "elsewhere") == "NotAllowed"
        assert await world.reason("b") == "Reconciled"


async def test_cluster_that_cannot_be_read_is_not_taken_for_one_that_is_gone():
    async with running() as world:
        world.cluster()
        world.stream(deletionPolicy="Delete")
        world.kube.fail(UnavailableError("later"), "get", CLUSTERS)
        with pytest.raises(UnavailableError):
            await world.settle()
        assert "status" not in await world.body()
        world.asked.request(Key(STREAMS, "shop", "orders"))
        await world.settle(15)
        assert await world.reason() == "Reconciled"
        for _ in range(5):
            world.kube.fail(UnavailableError("later"), "get", CLUSTERS)
        await world.settle(20)
        assert await world.reason() == "Reconciled"
        await world.settle(60)
        world.kube.fail(ForbiddenError("no right", status=403), "get", CLUSTERS)
        await world.settle(10)
        world.brokers.messages["orders"] = 0
        await world.delete()
        await world.settle(1)
        assert await world.reason(kind="DeletionBlocked") == "ClusterUnreachable"


async def test_mark_of_a_resource_that_is_gone_holds_nobody_up():
    async with running() as world:
        world.cluster()
        world.brokers.put("orders", owner=mark_of("shop", "gone", "uid-0"))
        world.brokers.put("ours", owner="ops")
        world.stream()
        world.stream("ours")
        await world.settle(15)
        assert await world.reason() == "Reconciled"
        assert await world.reason("ours") == "Conflict"
        assert world.brokers.held["ours"].owner == "ops"


@pytest.mark.parametrize("days", [0, 3])
async def test_wait_is_told_as_soon_though_the_clock_was_set_back(days):
    async with running() as world:
        world.cluster()
        world.brokers.put("orders", owner="ops")
        world.stream()
        await world.settle(10)
        assert "waits" not in (await world.body())["status"]
        world.clock.set_back = timedelta(days=days)
        world.asked.request(Key(STREAMS, "shop", "orders"))
        await world.settle(WAIT_REPORTED_MS / 1_000 + 30)
        (wait,) = (await world.body())["status"]["waits"]
        assert wait["what"] == "Conflict"


async def test_silence_of_the_brokers_is_told_as_unknown_and_ends():
    async with running() as world:
        world.cluster()
        world.stream()
        await world.settle(15)
        world.brokers.is_silent = True
        await world.settle(HEARD_SECONDS + 15)
        for kind in ("Ready", "Synced", "Healthy"):
            assert await world.reason(kind=kind) == "ClusterUnreachable"
        await world.settle(30)
        (wait,) = (await world.body())["status"]["waits"]
        assert wait["what"] == "ClusterNotReady"
        writes = len(world.kube.writes)
        await world.settle(60)
        assert len(world.kube.writes) == writes
        world.brokers.is_silent = False
        await world.settle(15)
        assert await world.reason() == "Reconciled"


async def test_cluster_that_comes_later_is_noticed():
    async with running() as world:
        world.stream()
        await world.settle(5)
        assert await world.reason() == "ClusterNotFound"
        world.cluster(paused=True)
        await world.settle(15)
        assert await world.reason() == "ClusterNotReady"
        assert world.brokers.calls == []
        world.cluster()
        await world.settle(15)
        assert await world.reason() == "Reconciled"


async def test_refusal_is_told_once_and_asked_again_after_a_minute():
    async with running() as world:
        world.cluster()
        world.brokers.refusal = "Invalid replicationFactor 9, cluster size 3"
        world.stream(replicationFactor=9)
        await world.settle(5)
        body = await world.body()
        assert await world.reason() == "InvalidSpec"
        assert "cluster size 3" in body["status"]["conditions"][0]["message"]
        assert len(world.brokers.calls) == 1
        world.brokers.refusal = ""
        await world.settle(61)
        world.asked.request(Key(STREAMS, "shop", "orders"))
        await world.settle(3)
        assert await world.reason() == "Reconciled"


# -- deletion -----------------------------------------------------------------------------------


async def test_retained_stream_stays_and_is_free_for_another_resource():
    async with running() as world:
        world.cluster()
        world.stream()
        await world.settle(15)
        assert "finalizers" not in (await world.body())["metadata"]
        await world.delete()
        await world.settle(3)
        assert world.brokers.held["orders"].owner == ""
        with pytest.raises(NotFoundError):
            await world.body()


@pytest.mark.parametrize("count", [0, 5, None])
async def test_deleted_stream_needs_emptiness_or_confirmation(count):
    async with running() as world:
        world.cluster()
        world.stream(deletionPolicy="Delete")
        await world.settle(15)
        assert (await world.body())["metadata"]["finalizers"] == [FINALIZER]
        assert await world.reason() == "Reconciled"
        world.brokers.messages["orders"] = count
        await world.delete()
        await world.settle(3)
        if count != 0:
            reason = "NotEmpty" if count else "ConfirmationRequired"
            assert await world.reason(kind="DeletionBlocked") == reason
            assert "orders" in world.brokers.held
            writes = len(world.kube.writes)
            world.brokers.messages["orders"] = count and count + 7
            world.asked.request(Key(STREAMS, "shop", "orders"))
            await world.settle(3)
            assert len(world.kube.writes) == writes
            await world.confirm(str(world.brokers.held["orders"].stream_id))
            await world.settle(3)
        assert world.brokers.held == {}
        with pytest.raises(NotFoundError):
            await world.body()
        assert world.events.told[-1] == ("orders", EventReason.STREAM_DELETED)


async def test_ending_namespace_and_gone_cluster_let_the_resource_go_with_the_stream_kept():
    async with running() as world:
        world.cluster()
        world.stream(deletionPolicy="Delete")
        world.stream("second", deletionPolicy="Delete")
        await world.settle(15)
        world.kube.edit(
            NAMESPACES, "", "shop", lambda body: body.update(status={"phase": "Terminating"})
        )
        await world.delete()
        await world.settle(3)
        assert world.brokers.held["orders"].owner == ""
        assert world.events.told[-1] == ("orders", EventReason.STREAM_FORGOTTEN)
        world.kube.edit(NAMESPACES, "", "shop", lambda body: body.pop("status"))
        world.kube.remove(CLUSTERS, "shop", "c")
        await world.settle(12)
        await world.delete("second")
        await world.settle(3)
        assert world.kube.all_of(STREAMS) == []
        assert "second" in world.brokers.held
        assert world.brokers.is_closed


async def test_namespaced_operator_writes_no_finalizer_and_deletes_what_is_confirmed_only():
    async with running(is_namespaced=True) as world:
        world.cluster()
        world.stream(deletionPolicy="Delete")
        world.stream("second", deletionPolicy="Delete")
        await world.settle(15)
        assert all("finalizers" not in one["metadata"] for one in world.kube.all_of(STREAMS))
        await world.delete("second")
        await world.settle(3)
        assert world.brokers.held["second"].owner == ""
        await world.confirm((await world.body())["status"]["creationId"])
        await world.settle(30)
        assert set(world.brokers.held) == {"second"}
        assert await world.reason() == "Deleting"


async def test_stream_made_anew_by_somebody_else_is_not_deleted():
    async with running() as world:
        world.cluster()
        world.stream(deletionPolicy="Delete")
        await world.settle(15)
        await world.delete()
        world.brokers.put("orders")
        await world.settle(15)
        assert "orders" in world.brokers.held
        assert world.kube.all_of(STREAMS) == []


async def test_failing_write_is_made_good_by_the_next_pass():
    async with running() as world:
        world.cluster()
        world.stream()
        world.kube.fail(UnavailableError("later"), "apply_status")
        with pytest.raises(UnavailableError):
            await world.settle()
        assert world.brokers.calls == []
        world.asked.request(Key(STREAMS, "shop", "orders"))
        await world.settle(5)
        assert await world.reason() == "Reconciled"


async def test_at_most_eight_changes_of_a_cluster_are_under_way():
    async with running() as world:
        world.cluster()
        for number in range(40):
            world.stream(f"s{number}")
        keys, world.asked.keys = world.asked.keys, set()
        await asyncio.gather(*(world.reconciler.reconcile(key) for key in keys))
        assert len(world.brokers.held) == 40
        assert 1 < world.brokers.busiest <= 8
        assert world.brokers.looks == 1


async def test_brokers_are_not_asked_for_changes_by_an_operator_that_may_not_lead():
    async with running() as world:
        world.cluster()
        world.stream()
        world.fence.is_closed = True
        with pytest.raises(FencedError):
            await world.settle()
        assert world.brokers.calls == []


(DEFINITION,) = (definition(one) for one in RESOURCES if one.kind == "Stream")
SCHEMA = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
SHAPES = {
    "least": {},
    "all brokers": {"replicationFactor": -1, "readonly": True, "config": {"minISR": 2}},
}
HISTORY = ("observedGeneration", "lastSyncTime", "askedSettings", "conditions")
"""Of the status: how often the resource was changed, when the stream was, and to what."""


async def standing(world):
    """The stream and what is told of it, but for `HISTORY`."""
    status = (await world.body())["status"]
    told = {one["type"]: (one["reason"], one["message"]) for one in status["conditions"]}
    return world.brokers.held["orders"], {
        **{name: one for name, one in status.items() if name not in HISTORY},
        **told,
    }


async def change_to(world, spec):
    world.kube.edit(STREAMS, "shop", "orders", lambda body: body.update(spec=copied(spec)))
    await world.settle(3)


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_accepted_change_has_a_way_back_or_is_named(shape):
    async with running() as world:
        world.cluster()
        world.stream(**SHAPES[shape])
        await world.settle(3)
        spec = (await world.body())["spec"]
        before, stuck, count = await standing(world), {}, 0
        for place, changed in changes(SCHEMA, spec):
            assert is_admitted(SCHEMA, spec, changed), "no way back is refused"
            count += 1
            for one in (changed, spec):
                await change_to(world, defaulted(SCHEMA, one))
            now = await standing(world)
            synced, ready = now[1]["Synced"], now[1]["Ready"]
            field = place.removeprefix(".").split(" (")[0]
            is_named = synced[0] == "SettingsKept" and field in synced[1]
            if now != before and not (is_named and ready == before[1]["Ready"]):
                stuck[place] = [one for one in now[1].items() if one not in before[1].items()]
            before = now
        assert count > 20
        assert stuck == {}
