"""A cluster at rest costs next to no reads, and nothing is changed on what was remembered."""

import pytest

from liftbridge_operator.cluster.reconciling.sparing import (
    HELD_S,
    UNSEEN_S,
    RememberedError,
    SparingKube,
    SparingReconciler,
)
from liftbridge_operator.kube.errors import NotFoundError, UnavailableError
from liftbridge_operator.kube.kinds import (
    CLUSTERS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    kind_of,
)
from liftbridge_operator.kube.port import Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.process.watches import OWNED, key_of
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.operator_sim.reconciled import (
    NAME,
    NAMESPACE,
    OpenFence,
    ReconciledWorld,
)
from liftbridge_testkit.operator_sim.secured import secret_store

REST_MS = 10_000
HOUR_S = 3_600
READS_PER_S_MAX = 0.2
SPEC = {
    "tls": {"mode": "Generated"},
    "listeners": [
        {"name": "internal", "tls": True},
        {"name": "other", "port": 9293},
    ],
}


class CountingKube:
    """Counts reads by kind, on their way to the API server."""

    def __init__(self, kube):
        self.kube = kube
        self.reads = []

    def __getattr__(self, name):
        return getattr(self.kube, name)

    async def get(self, kind, namespace, name):
        self.reads.append(("get", kind))
        return await self.kube.get(kind, namespace, name)

    async def list_all(self, kind, namespace, **named):
        self.reads.append(("list", kind))
        return await self.kube.list_all(kind, namespace, **named)


class World(ReconciledWorld):
    """An operator that remembers, and is told of changes as by watches."""

    def restart(self, kube=None):
        self.counting = CountingKube(kube or self.kube)
        self.sparing = SparingKube(self.counting, self.fence, lambda: self.now_ms / 1_000)
        self.issue = secret_store(self, self.sparing)
        inner = super().restart(self.sparing)
        inner._act_fence = self.sparing
        self.reconciler = SparingReconciler(inner, self.sparing)
        return self.reconciler

    def _on_change(self, event, body):
        super()._on_change(event, body)
        kind, metadata = kind_of(body), body["metadata"]
        if kind in (CLUSTERS, *OWNED):
            labels = metadata.get("labels") or {}
            key = key_of(kind, metadata["namespace"], metadata["name"], labels)
            if key is not None:
                self.sparing.forget(key)

    async def rest(self, seconds):
        """Passes as they are asked for at rest, without anything that happens."""
        for _ in range(seconds * 1_000 // REST_MS):
            self.tick(REST_MS)
            await self.reconciler.reconcile(self.key)


async def at_rest(spec=SPEC):
    world = World(spec)
    await world.until_ready()
    await world.rest(300)
    assert world.is_ready
    world.counting.reads.clear()
    return world


async def test_cluster_at_rest_is_read_at_most_once_in_five_seconds():
    world = await at_rest()
    written = len(world.kube.writes)
    await world.rest(HOUR_S)
    assert world.is_ready
    assert len(world.kube.writes) == written
    assert 0 < len(world.counting.reads) <= HOUR_S * READS_PER_S_MAX
    assert ("list", SECRETS) not in world.counting.reads


async def test_secret_that_nobody_watches_is_repaired_within_a_minute():
    world = await at_rest()
    world.kube.remove(SECRETS, NAMESPACE, names.operator_leaf(NAME))
    await world.rest(60)
    assert world.kube.look(SECRETS, NAMESPACE, names.operator_leaf(NAME)) is not None


async def test_change_that_a_watch_tells_is_repaired_in_the_next_pass():
    world = await at_rest()

    def change(body):
        body["spec"]["selector"] = {"app": "other"}

    world.kube.edit(SERVICES, NAMESPACE, f"{NAME}-internal", change)
    await world.rest(10)
    live = world.kube.look(SERVICES, NAMESPACE, f"{NAME}-internal")
    assert live["spec"]["selector"] != {"app": "other"}


async def test_pod_is_deleted_only_on_what_was_read_in_the_same_pass():
    """Watches are silent: what the memory holds is as old as can be."""
    world = await at_rest()
    world.sparing.forget = lambda _about: None
    world.edit(lambda spec: spec.update(image="liftbridge-broker:other"))
    await world.rest(int(HELD_S))
    seen = []
    delete = world.kube.delete

    async def deleted(kind, *args, **kwargs):
        if kind == PODS:
            seen.append(list(world.counting.reads))
        return await delete(kind, *args, **kwargs)

    world.kube.delete = deleted
    for _ in range(200):
        world.counting.reads.clear()
        await world.go_on()
    assert seen
    assert all({("list", PODS), ("get", CLUSTERS)} <= set(reads) for reads in seen)
    assert world.is_ready


# -- the memory alone -----------------------------------------------------------------------------

ABOUT = Key(CLUSTERS, "n", "cluster")


@pytest.fixture
def memory():
    kube = CountingKube(MemoryKube())
    now = [0.0]
    sparing = SparingKube(kube, OpenFence(), lambda: now[0])
    kube.kube.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "n", "labels": {names.CLUSTER: "cluster"}},
            "data": {"a": "1"},
        }
    )
    return kube, sparing, now


async def read(sparing, *, is_fresh=False):
    with sparing.passing(ABOUT, is_fresh=is_fresh):
        return await sparing.get(CONFIG_MAPS, "n", "c")


async def test_answer_holds_until_it_is_too_old_or_something_changed(memory):
    kube, sparing, now = memory
    await read(sparing)
    await read(sparing)
    assert len(kube.reads) == 1
    now[0] += HELD_S
    await read(sparing)
    assert len(kube.reads) == 2
    sparing.forget(ABOUT)
    await read(sparing)
    await read(sparing, is_fresh=True)
    assert len(kube.reads) == 4


@pytest.mark.parametrize("labels", [{}, {names.CLUSTER: "another"}])
async def test_object_that_no_watch_tells_of_is_read_again_soon(memory, labels):
    kube, sparing, now = memory
    kube.kube.edit(CONFIG_MAPS, "n", "c", lambda body: body["metadata"].update(labels=labels))
    await read(sparing)
    now[0] += UNSEEN_S
    await read(sparing)
    assert len(kube.reads) == 2


async def test_nothing_is_kept_of_a_cluster_that_is_gone():
    world = await at_rest()
    world.kube.remove(CLUSTERS, NAMESPACE, NAME)
    assert await world.reconciler.reconcile(world.key) is None
    assert world.key not in world.sparing._memories


async def test_answer_is_the_callers_own(memory):
    _, sparing, _ = memory
    (await read(sparing))["data"]["a"] = "2"
    (await read(sparing))["data"]["a"] = "3"
    assert (await read(sparing))["data"] == {"a": "1"}


WRITES = {
    "create": lambda port, body: port.create(body),
    "apply": lambda port, body: port.apply(body),
    "apply_status": lambda port, body: port.apply_status(body),
    "patch": lambda port, _: port.patch(
        CONFIG_MAPS, "n", "c", {}, preconditions=Preconditions("u")
    ),
    "delete": lambda port, _: port.delete(CONFIG_MAPS, "n", "c", preconditions=Preconditions("u")),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_no_write_is_sent_on_what_was_remembered(memory, verb):
    kube, sparing, _ = memory
    body = await read(sparing)
    with sparing.passing(ABOUT, is_fresh=False):
        await sparing.get(CONFIG_MAPS, "n", "c")
        with pytest.raises(RememberedError):
            await WRITES[verb](sparing, body)
        with pytest.raises(RememberedError):
            sparing.check(NAMESPACE)
    assert kube.kube.writes == []


async def test_write_in_a_pass_that_read_anew_makes_all_of_it_old(memory):
    kube, sparing, _ = memory
    with sparing.passing(ABOUT, is_fresh=False):
        body = await sparing.get(CONFIG_MAPS, "n", "c")
        sparing.check(NAMESPACE)
        await sparing.patch(
            CONFIG_MAPS, "n", "c", {"data": {"a": "2"}}, preconditions=Preconditions.of(body)
        )
    assert (await read(sparing))["data"] == {"a": "2"}
    assert len(kube.reads) == 2


async def test_change_during_a_read_is_not_missed(memory):
    kube, sparing, _ = memory
    get = kube.kube.get

    async def changed_meanwhile(*args):
        found = await get(*args)
        sparing.forget(ABOUT)
        return found

    kube.kube.get = changed_meanwhile
    await read(sparing)
    await read(sparing)
    assert len(kube.reads) == 1 + 1


async def test_what_is_not_there_is_remembered_and_a_lost_answer_is_not(memory):
    kube, sparing, _ = memory
    for _ in range(2):
        with sparing.passing(ABOUT, is_fresh=False), pytest.raises(NotFoundError):
            await sparing.get(CONFIG_MAPS, "n", "none")
    assert len(kube.reads) == 1
    kube.kube.fail(UnavailableError("lost"), "list")
    with sparing.passing(ABOUT, is_fresh=False):
        with pytest.raises(UnavailableError):
            await sparing.list_all(NODES, "")
        assert (await sparing.list_all(NODES, "")).items == ()
