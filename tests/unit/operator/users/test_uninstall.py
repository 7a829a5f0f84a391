"""Before a release goes no `Stream` waits for the operator, and nothing else has changed."""

import asyncio
from itertools import product
from random import Random

import pytest

from liftbridge_operator.kube.errors import ConflictError, UnavailableError
from liftbridge_operator.kube.kinds import DEPLOYMENTS, LEASES, STREAMS, USERS
from liftbridge_operator.kube.port import Preconditions
from liftbridge_operator.process.claims import CLAIM, EVERYWHERE, HERE, RELEASE
from liftbridge_operator.process.lease import Lease, LeaseTimes
from liftbridge_operator.streams.marks import FINALIZER
from liftbridge_operator.users.uninstall import ATTEMPTS_MAX, FINALIZERS, uninstall
from liftbridge_testkit.kube.clock import ManualClock
from liftbridge_testkit.kube.memory import MemoryKube

OTHER = "example.com/other"
TIMES = LeaseTimes(15.0, 10.0, 2.0)


class World:
    """An operator with its Lease, and streams of every kind."""

    def __init__(self, *, has_deployment=True):
        self.kube = MemoryKube()
        self.clock = ManualClock()
        if has_deployment:
            what = {"apiVersion": "apps/v1", "kind": "Deployment"}
            metadata = {"name": "liftbridge", "namespace": "system"}
            self.kube.put({**what, "metadata": metadata, "spec": {"replicas": 2}})
        self.running = self.lease("operator")

    def lease(self, identity):
        return Lease(
            self.kube,
            namespace="system",
            name="liftbridge",
            identity=identity,
            clock=self.clock,
            rng=Random(1),
            times=TIMES,
        )

    def put(self, name, finalizers, policy="Delete", namespace="shop"):
        return self.kube.put(
            {
                "apiVersion": "liftbridge.io/v1alpha1",
                "kind": "Stream",
                "metadata": {"name": name, "namespace": namespace, "finalizers": finalizers},
                "spec": {"clusterRef": {"name": "c"}, "subject": name, "deletionPolicy": policy},
            }
        )

    def put_lease(self, namespace, name, holder, release):
        """A Lease of another release, or of this one."""
        metadata = {"name": name, "namespace": namespace, "labels": {RELEASE: release}}
        spec = {"leaseDurationSeconds": 60} | ({"holderIdentity": holder} if holder else {})
        kind = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        self.kube.put({**kind, "metadata": metadata, "spec": spec})

    def let_go(self):
        """Namespaces whose streams wait for nobody."""
        return {
            one["metadata"]["namespace"]
            for one in self.kube.all_of(STREAMS)
            if not one["metadata"].get("finalizers")
        }

    def begin(self):
        made = uninstall(
            self.kube,
            self.lease("job"),
            namespace="system",
            name="liftbridge",
            clock=self.clock,
        )
        return asyncio.get_running_loop().create_task(made)

    async def finished(self, task, seconds=60):
        for _ in range(seconds * 2):
            if task.done():
                break
            await self.clock.advance(0.5)
        return await task


async def test_every_stream_loses_the_finalizer_and_nothing_else():
    world = World()
    cases = list(
        product([(), (FINALIZER,), (FINALIZER, OTHER), (OTHER,)], ["Delete", "Retain"], [0, 1])
    )
    before = {}
    for number, (finalizers, policy, is_deleted) in enumerate(cases):
        name = f"s{number}"
        body = world.put(name, list(finalizers), policy)
        if is_deleted and finalizers:
            await world.kube.delete(STREAMS, "shop", name, preconditions=Preconditions.of(body))
        before[name] = (finalizers, is_deleted)
    count = await world.finished(world.begin())
    assert count == sum(FINALIZER in finalizers for finalizers, _ in before.values())
    for name, (finalizers, is_deleted) in before.items():
        live = world.kube.look(STREAMS, "shop", name)
        left = [one for one in finalizers if one != FINALIZER]
        if is_deleted and finalizers and not left:
            assert live is None
        else:
            assert live["metadata"].get("finalizers", []) == left
            assert live["spec"]["subject"] == name
    assert world.kube.look(DEPLOYMENTS, "system", "liftbridge")["spec"]["replicas"] == 0


async def test_nothing_is_let_go_while_an_operator_leads_that_would_take_it_back():
    world = World()
    world.put("s", [FINALIZER])
    await world.running.acquire()
    holding = asyncio.get_running_loop().create_task(world.running.hold())
    task = world.begin()
    for _ in range(40):
        await world.clock.advance(0.5)
    assert world.kube.look(STREAMS, "shop", "s")["metadata"]["finalizers"] == [FINALIZER]
    assert world.kube.look(DEPLOYMENTS, "system", "liftbridge")["spec"]["replicas"] == 0
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    await world.running.release()
    assert await world.finished(task) == 1
    assert world.kube.look(LEASES, "system", "liftbridge")["spec"]["holderIdentity"] == "job"


@pytest.mark.parametrize("renews", [True, False])
async def test_namespaces_of_another_release_are_left_alone_while_that_one_lives(renews):
    world = World()
    for namespace in ("a", "b"):
        world.put("s", [FINALIZER], namespace=namespace)
    world.put_lease("a", CLAIM, "other/liftbridge", HERE)
    task = world.begin()
    for number in range(100):
        await world.clock.advance(1)
        if renews:
            world.kube.edit(
                LEASES, "a", CLAIM, lambda one, n=number: one["spec"].update(renewTime=str(n))
            )
    assert await task == 1 + (not renews)
    assert world.let_go() == {"b"} if renews else {"a", "b"}


@pytest.mark.parametrize("renews", [True, False])
async def test_streams_are_those_of_the_release_for_all_namespaces_that_leads(renews):
    world = World()
    world.put("s", [FINALIZER])
    world.put_lease("elsewhere", "liftbridge", "process", EVERYWHERE)
    task = world.begin()
    for number in range(100):
        await world.clock.advance(1)
        if renews:
            world.kube.edit(
                LEASES,
                "elsewhere",
                "liftbridge",
                lambda one, n=number: one["spec"].update(renewTime=str(n)),
            )
    assert await task == (not renews)


async def test_release_without_its_deployment_is_let_go_too():
    world = World(has_deployment=False)
    world.put("s", [FINALIZER])
    assert await world.finished(world.begin()) == 1


async def test_stream_that_somebody_changes_is_looked_at_again():
    world = World()
    world.put("s", [FINALIZER])
    world.kube.fail(ConflictError("changed", status=409, reason="Conflict"), "patch", STREAMS)
    assert await world.finished(world.begin()) == 1


async def test_stream_that_changes_again_and_again_is_told():
    world = World()
    world.put("s", [FINALIZER])
    for _ in range(ATTEMPTS_MAX):
        world.kube.fail(ConflictError("changed", status=409, reason="Conflict"), "patch", STREAMS)
    with pytest.raises(ConflictError):
        await world.finished(world.begin())


async def test_api_server_that_does_not_answer_is_told():
    world = World()
    world.kube.fail(UnavailableError("no answer"), "get", DEPLOYMENTS)
    with pytest.raises(UnavailableError):
        await world.finished(world.begin())


async def test_users_lose_the_finalizer_too():
    world = World()
    metadata = {"name": "u", "namespace": "shop", "finalizers": [FINALIZERS[USERS], OTHER]}
    what = {"apiVersion": USERS.api_version, "kind": USERS.kind}
    world.kube.put({**what, "metadata": metadata, "spec": {"clusterRef": {"name": "c"}}})
    assert await world.finished(world.begin()) == 1
    assert world.kube.look(USERS, "shop", "u")["metadata"]["finalizers"] == [OTHER]
