"""At no time two releases write to one namespace, whatever they watch, and however they end."""

import asyncio
from itertools import product
from random import Random

import pytest
from structlog.testing import capture_logs

from liftbridge_operator.kube.errors import FencedError, ForbiddenError, UnavailableError
from liftbridge_operator.kube.kinds import LEASES, STREAMS
from liftbridge_operator.process.claims import (
    CERTAIN_S,
    CLAIM,
    CLAIM_TIMES,
    LOOK_S,
    SETTLE_S,
    AllClaims,
    ClaimedReconciler,
    LeaderFence,
    NamespaceClaims,
)
from liftbridge_operator.process.lease import Lease, LeaseLostError, LeaseTimes
from liftbridge_operator.process.reconciler import Key
from liftbridge_testkit.kube.clock import ManualClock
from liftbridge_testkit.kube.memory import MemoryKube

TIMES = LeaseTimes(duration_s=15.0, renew_s=10.0, retry_s=2.0)
NAMESPACES = ("a", "b")
ALL = ()
WATCHED = (ALL, ("a",), ("b",), ("a", "b"))
STEP_S = 1.0

FIRST_S = SETTLE_S + 5
"""Until a release has namespaces that nobody else claims."""

TAKEN_OVER_S = CLAIM_TIMES.duration_s + CLAIM_TIMES.retry_s * 1.2 + SETTLE_S + 5
"""Until the namespaces of a release that died are another one's."""


class Allowed:
    """The API server with the rights that the chart gives to a release."""

    def __init__(self, kube, home, watched):
        self._kube = kube
        self._home = home
        self._watched = watched
        self.is_blind = False

    def _meet(self, verb, namespace, name=""):
        if self._watched:
            is_right = namespace == self._home or (namespace in self._watched and verb != "delete")
        else:
            is_right = namespace == self._home or (verb, name) == ("delete", CLAIM)
        if not is_right:
            raise ForbiddenError(f"{verb} in {namespace!r}", status=403, reason="Forbidden")

    async def get(self, kind, namespace, name):
        self._meet("get", namespace)
        return await self._kube.get(kind, namespace, name)

    async def list_all(self, kind, namespace, *, selector=""):
        if self.is_blind:
            raise UnavailableError("no answer to a list")
        if self._watched or namespace:
            self._meet("list", namespace)
        return await self._kube.list_all(kind, namespace, selector=selector)

    async def create(self, body):
        self._meet("create", body["metadata"]["namespace"])
        return await self._kube.create(body)

    async def patch(self, kind, namespace, name, changes, *, preconditions):
        self._meet("patch", namespace)
        return await self._kube.patch(kind, namespace, name, changes, preconditions=preconditions)

    async def delete(self, kind, namespace, name, *, preconditions):
        self._meet("delete", namespace, name)
        await self._kube.delete(kind, namespace, name, preconditions=preconditions)


class Process:
    """A process of a release; it leads when it may, and ends when it is told to, or must."""

    def __init__(self, world, release, watched):
        self.release = release
        self.clock = ManualClock()
        self.is_frozen = False
        self.gains = 0
        world.count += 1
        self.kube = kube = Allowed(world.kube, release, watched)
        given = {"clock": self.clock, "on_gain": self._gain}
        rng = Random(f"{release} {world.count}")
        self.claims = (
            NamespaceClaims(
                kube, release=f"{release}/liftbridge", namespaces=watched, rng=rng, **given
            )
            if watched
            else AllClaims(kube, namespace=release, name="liftbridge", **given)
        )
        lease = Lease(
            kube,
            namespace=release,
            name="liftbridge",
            identity=f"process-{world.count}",
            clock=self.clock,
            rng=rng,
            times=TIMES,
            others=self.claims,
            marks=self.claims.marks,
        )
        self.fence = LeaderFence(lease, self.claims)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def _gain(self):
        self.gains += 1

    async def _run(self):
        await self.fence.lease.acquire()
        await self.fence.hold()

    def writes_to(self, namespace):
        try:
            self.fence.check(namespace)
        except FencedError:
            return False
        return True

    async def end(self):
        """As by SIGTERM."""
        await self.kill()
        await self.fence.lease.release()

    async def kill(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class World:
    """Releases before one API server, each installed in a namespace of its own name."""

    def __init__(self):
        self.kube = MemoryKube()
        self.processes = []
        self.count = 0
        self.seconds = 0

    def start(self, release, watched):
        """A process of a release begins."""
        self.processes.append(Process(self, release, watched))
        return self.processes[-1]

    async def drop(self, process, how):
        """A process ends."""
        await getattr(process, how)()
        if how == "end":
            assert not any(map(process.writes_to, NAMESPACES))
            self.processes.remove(process)

    async def advance(self, seconds):
        """Time goes on; at each moment every namespace has at most one release."""
        for _ in range(round(seconds / STEP_S)):
            self.seconds += STEP_S
            for one in self.processes:
                if one.is_frozen or one.task.done():
                    one.clock.jump(STEP_S)
                else:
                    await one.clock.advance(STEP_S)
                self.check()

    def check(self):
        for namespace in NAMESPACES:
            writers = [one.release for one in self.processes if one.writes_to(namespace)]
            assert len(writers) <= 1, f"{writers} write to {namespace}"

    def owners(self):
        return {
            namespace: one.release
            for one in self.processes
            for namespace in NAMESPACES
            if one.writes_to(namespace)
        }

    async def close(self):
        for one in self.processes:
            await one.kill()


def wanted(first, second):
    """Who has each namespace at last: the release that names it, or the one that was first."""
    found = {}
    for namespace in NAMESPACES:
        named = [one for one, watched in (("one", first), ("two", second)) if namespace in watched]
        for_all = [one for one, watched in (("one", first), ("two", second)) if not watched]
        if named or for_all:
            found[namespace] = (named or for_all)[0]
    return found


def alone(release, watched):
    return dict.fromkeys(watched or NAMESPACES, release)


@pytest.mark.parametrize(("first", "second"), list(product(WATCHED, WATCHED)), ids=str)
async def test_each_namespace_has_one_release_in_any_order_of_starts(first, second):
    for apart_s in (0, 1, 12, 40):
        world = World()
        world.start("one", first)
        await world.advance(apart_s)
        world.start("two", second)
        await world.advance(FIRST_S + LOOK_S)
        if apart_s:
            assert world.owners() == wanted(first, second)
        assert world.owners().keys() == wanted(first, second).keys()
        await world.close()


ENDS = ("end", "kill", "freeze", "upgrade", "unclaim", "unlease")


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(("first", "second"), list(product(WATCHED, WATCHED)), ids=str)
async def test_what_becomes_of_one_release_never_gives_a_namespace_to_two(first, second, how):
    """The first one ends, stops, or loses what it claims by, and the other one takes over."""
    for after_s in (3, 50):
        world = World()
        process = world.start("one", first)
        await world.advance(1)
        world.start("two", second)
        await world.advance(after_s)
        if how in ("end", "kill"):
            await world.drop(process, how)
            await world.advance(TAKEN_OVER_S)
            assert world.owners() == alone("two", second)
        elif how == "freeze":
            process.is_frozen = True
            await world.advance(TAKEN_OVER_S)
            process.is_frozen = False
            await world.advance(FIRST_S)
            assert world.owners() == alone("two", second)
        elif how == "upgrade":
            before = world.owners()
            later = world.start("one", first)
            await world.advance(3)
            await world.drop(process, "end")
            await world.advance(TIMES.retry_s * 3)
            if after_s > SETTLE_S and (first or second):
                assert world.owners() == before, "an upgrade gave a namespace away"
            await world.advance(FIRST_S)
            assert world.owners().keys() >= before.keys()
            assert not later.task.done()
        else:
            name = CLAIM if how == "unclaim" else "liftbridge"
            for lease in world.kube.all_of(LEASES):
                if lease["metadata"]["name"] == name:
                    world.kube.remove(LEASES, lease["metadata"]["namespace"], name)
            await world.advance(TAKEN_OVER_S)
        await world.close()


@pytest.mark.parametrize("seed", range(30))
async def test_releases_come_and_go_by_chance_and_never_share_a_namespace(seed):
    rng = Random(f"claims {seed}")
    world = World()
    kinds = {name: rng.choice(WATCHED) for name in ("one", "two", "three")}
    for _ in range(12):
        name = rng.choice(sorted(kinds))
        mine = [one for one in world.processes if one.release == name]
        what = rng.choice(("start", "end", "kill", "freeze", "wake", "switch", "blind"))
        if what == "switch":  # an upgrade that watches other namespaces
            kinds[name] = rng.choice(WATCHED)
        if what in ("start", "switch") and len(mine) < 3:
            world.start(name, kinds[name])
        elif mine and what in ("end", "kill"):
            await world.drop(rng.choice(mine), what)
        elif mine and what in ("freeze", "wake"):
            rng.choice(mine).is_frozen = what == "freeze"
        elif what == "blind":  # some lists fail, as for a while in an upgrade of the API server
            for one in mine:
                one.kube.is_blind = not one.kube.is_blind
        await world.advance(rng.choice((1, 2, 5, 11, 17, 30, 70)))
    assert world.seconds >= 12
    await world.close()


@pytest.mark.parametrize("created_s", [1, 4])
@pytest.mark.parametrize("ended_s", [2, 6])
async def test_claim_that_is_not_settled_is_waited_for_by_whoever_takes_it_over(created_s, ended_s):
    world = World()
    for_all = world.start("one", ALL)
    await world.advance(LOOK_S * 2)
    for_all.kube.is_blind = True  # it goes on with what it saw, for as long as that holds
    await world.advance(created_s)
    process = world.start("two", ("a",))
    await world.advance(ended_s)
    assert world.kube.look(LEASES, "a", CLAIM) is not None
    await world.drop(process, "end")
    world.start("two", ("a",))
    await world.advance(CERTAIN_S)
    assert world.owners().get("a") != "two"
    await world.advance(FIRST_S)
    assert world.owners() == {"a": "two"}
    await world.close()


async def test_release_that_waits_says_for_whom_and_has_its_other_namespaces():
    world = World()
    world.start("one", ("a",))
    await world.advance(FIRST_S)
    with capture_logs() as logs:
        second = world.start("two", ("a", "b"))
        await world.advance(FIRST_S)
    assert world.owners() == {"a": "one", "b": "two"}
    assert (second.claims.left, second.claims.rivals) == (
        {"a": "one/liftbridge"},
        {"one/liftbridge"},
    )
    (hindrance,) = second.claims.hindrances(is_leading=True)
    assert "namespace a is claimed by release one/liftbridge" in hindrance
    assert "watchNamespaces" in hindrance
    assert second.claims.hindrances(is_leading=False) == []
    (told,) = (one for one in logs if one["event"] == "release_conflict")
    assert (told["namespace"], told["rival"]) == ("a", "one/liftbridge")
    await world.close()


async def test_release_for_all_namespaces_leaves_those_that_another_one_names():
    world = World()
    first = world.start("one", ALL)
    await world.advance(5)
    with capture_logs() as logs:
        second = world.start("two", ("a",))
        await world.advance(FIRST_S)
        assert first.claims.left == {"a": "two/liftbridge"}
        assert first.claims.hindrances(is_leading=True) == []
        assert first.gains == 0
        await world.drop(second, "kill")
        await world.advance(TAKEN_OVER_S)
    assert (first.claims.left, first.gains) == ({}, 1)
    told = [one["event"] for one in logs if one["event"].startswith("namespace_")]
    assert told == ["namespace_left", "namespace_claimed", "namespace_taken_back"]
    assert not [one for one in world.kube.all_of(LEASES) if one["metadata"]["name"] == CLAIM]
    await world.close()


async def test_of_two_releases_for_all_namespaces_the_one_that_waits_says_for_whom():
    world = World()
    first = world.start("one", ALL)
    await world.advance(5)
    second = world.start("two", ALL)
    await world.advance(5)
    assert (second.claims.rivals, first.claims.rivals) == ({"one/liftbridge"}, frozenset())
    (hindrance,) = second.claims.hindrances(is_leading=False)
    assert "release one/liftbridge watches all namespaces" in hindrance
    await world.drop(first, "end")
    await world.advance(6)
    assert (set(world.owners().values()), second.claims.rivals) == ({"two"}, frozenset())
    await world.close()


async def test_release_that_may_not_see_others_does_not_lead_and_says_so_once():
    world = World()

    class Blind(Allowed):
        async def list_all(self, *_args, **_named):
            raise ForbiddenError("no list of leases", status=403, reason="Forbidden")

    with capture_logs() as logs:
        process = world.start("one", ALL)
        process.claims._kube = Blind(world.kube, "one", ALL)
        await world.advance(10)
    assert world.owners() == {}
    assert "no list of leases" in process.claims.hindrances(is_leading=False)[0]
    assert len([one for one in logs if one["event"] == "claims_not_seen"]) == 1
    await world.close()


async def test_leader_that_cannot_see_others_any_more_ends_before_a_claim_is_settled():
    world = World()
    process = world.start("one", ALL)
    await world.advance(5)
    assert world.owners() == alone("one", ALL)
    process.claims._kube = Allowed(world.kube, "one", ("x",))
    await world.advance(CERTAIN_S + LOOK_S)
    assert world.owners() == {}
    with pytest.raises(LeaseLostError):
        process.task.result()


async def test_pass_begins_only_where_the_release_has_the_namespace():
    world = World()
    first = world.start("one", ALL)
    world.start("two", ("a",))
    await world.advance(FIRST_S)
    seen = []

    class Reconciler:
        async def reconcile(self, key):
            seen.append(key)

    for process in world.processes:
        one = ClaimedReconciler(Reconciler(), process.claims)
        for namespace in NAMESPACES:
            await one.reconcile(Key(STREAMS, namespace, process.release))
    assert {(key.namespace, key.name) for key in seen} == {("b", "one"), ("a", "two")}
    assert first.claims.is_left("a")
    await world.close()


async def test_release_at_rest_costs_one_list_and_no_write_however_many_namespaces_there_are():
    world = World()
    world.start("one", ALL)
    for number in range(50):
        world.kube.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "node", "namespace": f"n{number}"},
                "spec": {"holderIdentity": "node"},
            }
        )
    await world.advance(5)
    del world.kube.writes[:]
    await world.advance(60)
    assert {one.name for one in world.kube.writes} == {"liftbridge"}
    assert len(world.kube.writes) <= 60 / TIMES.retry_s + 1
    await world.close()


def test_times_leave_nothing_between_two_releases():
    longest_write_s = 10.0
    assert CERTAIN_S + longest_write_s <= SETTLE_S < CLAIM_TIMES.renew_s
    assert CLAIM_TIMES.renew_s + longest_write_s <= CLAIM_TIMES.duration_s
    assert 2 * LOOK_S < CERTAIN_S
