"""Of two releases that look after the same namespaces one leads, and the other one says so."""

import asyncio
from itertools import product
from random import Random

import pytest
from structlog.testing import capture_logs

from liftbridge_operator.kube.errors import ForbiddenError
from liftbridge_operator.kube.kinds import LEASES
from liftbridge_operator.runtime.lease import Lease, LeaseTimes
from liftbridge_operator.runtime.releases import Releases
from liftbridge_testkit.kube.clock import ManualClock
from liftbridge_testkit.kube.memory import MemoryKube

TIMES = LeaseTimes(duration_s=15.0, renew_s=10.0, retry_s=2.0)
WATCHED = ((), ("a",), ("b",), ("a", "b"))


class World:
    """Releases before one API server, each in a namespace of its own."""

    def __init__(self):
        self.kube = MemoryKube()
        self.clock = ManualClock()
        self.leading = set()
        self.releases = {}

    def install(self, name, watched):
        """A release begins; it holds its Lease once it leads."""
        releases = Releases(
            self.kube, namespace=name, name="liftbridge", watched=watched, clock=self.clock
        )
        self.releases[name] = releases
        lease = Lease(
            self.kube,
            namespace=name,
            name="liftbridge",
            identity=name,
            clock=self.clock,
            rng=Random(name),
            times=TIMES,
            releases=releases,
        )

        async def lead():
            await lease.acquire()
            self.leading.add(name)
            try:
                await lease.hold()
            finally:
                self.leading.discard(name)
                await lease.release()

        return asyncio.get_running_loop().create_task(lead())

    async def advance(self, seconds):
        for _ in range(round(seconds * 2)):
            await self.clock.advance(0.5)


def do_overlap(one, other):
    return not one or not other or bool(set(one) & set(other))


async def end(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("first", "second"), list(product(WATCHED, WATCHED)), ids=str)
@pytest.mark.parametrize("apart_s", [0, 5])
async def test_two_releases_lead_at_once_only_over_different_namespaces(first, second, apart_s):
    world = World()
    tasks = [world.install("one", first)]
    await world.advance(apart_s)
    tasks.append(world.install("two", second))
    for _ in range(60):
        await world.advance(1)
        assert len(world.leading) <= 2 - do_overlap(first, second)
    assert len(world.leading) == 2 - do_overlap(first, second)
    await end(*tasks)


async def test_release_that_waits_says_for_whom_and_leads_when_that_one_is_gone():
    world = World()
    with capture_logs() as logs:
        first = world.install("one", ())
        await world.advance(5)
        second = world.install("two", ("a",))
        await world.advance(5)
        assert world.leading == {"one"}
        assert world.releases["two"].rival == "one/liftbridge"
        assert world.releases["one"].rival == ""
        told = [one for one in logs if one["event"] == "release_conflict"]
        assert [one["rival"] for one in told] == ["one/liftbridge"]
        await end(first)
        await world.advance(6)
        assert (world.leading, world.releases["two"].rival) == ({"two"}, "")
    await end(second)


async def test_release_that_is_dead_holds_nobody_up_for_longer_than_its_lease():
    world = World()
    first = world.install("one", ())
    await world.advance(5)
    (lease,) = world.kube.all_of(LEASES)
    await end(first)
    world.kube.put(lease)  # it was killed, and gave nothing back
    second = world.install("two", ())
    await world.advance(TIMES.duration_s - 3)
    assert world.leading == set()
    await world.advance(6)
    assert world.leading == {"two"}
    await end(second)


async def test_lease_that_is_no_operators_is_none_of_a_release():
    world = World()
    world.kube.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "node", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "node"},
        }
    )
    task = world.install("one", ())
    await world.advance(3)
    assert world.leading == {"one"}
    await end(task)


async def test_release_that_may_not_see_others_leads_and_says_so_once():
    world = World()
    world.kube.fail(ForbiddenError("no list of leases", status=403, reason="Forbidden"), "list")
    with capture_logs() as logs:
        task = world.install("one", ())
        await world.advance(10)
        assert world.leading == {"one"}
    assert len([one for one in logs if one["event"] == "releases_not_seen"]) == 1
    await end(task)
