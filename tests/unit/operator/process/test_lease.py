"""One of two operators leads, and the one that does not lead any more knows it first."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest

from liftbridge_operator.kube.errors import FencedError, UnavailableError
from liftbridge_operator.kube.kinds import LEASES
from liftbridge_operator.process.lease import Lease, LeaseLostError, LeaseTimes
from liftbridge_testkit.kube.clock import ManualClock
from liftbridge_testkit.kube.memory import MemoryKube

TIMES = LeaseTimes(duration_s=15.0, renew_s=10.0, retry_s=2.0)


class World:
    """Two processes before one API server."""

    def __init__(self):
        self.kube = MemoryKube()
        self.clocks = {name: ManualClock() for name in "ab"}
        self.leases = {name: self.lease(name) for name in "ab"}

    def lease(self, name):
        return Lease(
            self.kube,
            namespace="n",
            name="operator",
            identity=name,
            clock=self.clocks[name],
            rng=Random(3),
            times=TIMES,
        )

    async def advance(self, seconds):
        """Both live on, in steps short enough for nobody to be ahead."""
        for _ in range(round(seconds * 2)):
            for clock in self.clocks.values():
                await clock.advance(0.5)
            assert sum(lease.is_leader for lease in self.leases.values()) <= 1

    @property
    def spec(self):
        return self.kube.all_of(LEASES)[0]["spec"]


@pytest.fixture
def world():
    return World()


@asynccontextmanager
async def running(*actions):
    """Run coroutines beside the test; what they raise is theirs."""
    tasks = [asyncio.get_running_loop().create_task(action) for action in actions]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def led(world, name="a"):
    """A process leads for sure."""
    lease = world.leases[name]
    await lease.acquire()
    assert lease.is_leader
    return lease


async def test_first_one_leads_and_the_fence_lets_it_write(world):
    lease = await led(world)
    lease.check()
    assert lease.age_s == 0.0
    assert world.spec["holderIdentity"] == "a"
    assert world.spec["leaseDurationSeconds"] == 15
    assert not world.leases["b"].is_leader
    with pytest.raises(FencedError):
        world.leases["b"].check()


async def test_server_that_knows_of_no_lease_has_answered(world):
    lease = world.leases["a"]
    world.kube.fail(UnavailableError("away"), verb="get")
    async with running(lease.acquire()) as (task,):
        await world.clocks["a"].advance(0.5)
        assert lease.silence_s is None
        await world.clocks["a"].advance(3.0)
        assert task.done()
    # It leads by a lease that it made, and has not renewed it yet.
    assert lease.silence_s == lease.age_s


async def test_leader_that_renews_keeps_the_lease(world):
    lease = await led(world)
    async with running(lease.hold(), world.leases["b"].acquire()) as (held, other):
        await world.advance(120.0)
        assert lease.is_leader
        assert not held.done()
        assert not other.done()
    assert world.spec["leaseTransitions"] == 0


async def test_other_one_takes_over_when_the_leader_is_silent(world):
    await led(world)
    async with running(world.leases["b"].acquire()) as (other,):
        await world.advance(14.5)
        assert not other.done()
        await world.advance(4.0)
        assert other.done()
    assert world.spec["holderIdentity"] == "b"
    assert world.spec["leaseTransitions"] == 1


async def test_stopped_process_is_fenced_the_moment_it_goes_on(world):
    lease = await led(world)
    async with running(lease.hold(), world.leases["b"].acquire()) as (held, other):
        await world.clocks["b"].advance(30.0)  # meanwhile the leader gets no turn
        assert other.done()
        world.clocks["a"].jump(30.0)
        assert not lease.is_leader
        with pytest.raises(FencedError):
            lease.check()
        await world.clocks["a"].advance(3.0)
        with pytest.raises(LeaseLostError):
            held.result()
    assert world.spec["holderIdentity"] == "b"


async def test_leader_without_an_api_server_gives_up_before_it_can_be_replaced(world):
    lease = await led(world)

    def break_down(_event, _value):
        raise UnavailableError("away")

    world.kube.on_change = break_down
    async with running(lease.hold()) as (held,):
        await world.clocks["a"].advance(9.5)
        assert lease.is_leader
        await world.clocks["a"].advance(3.0)
        with pytest.raises(LeaseLostError):
            held.result()
    assert lease.age_s is None


async def test_renewal_whose_answer_was_lost_is_no_loss(world):
    lease = await led(world)
    answers = iter([UnavailableError("answer lost")])

    def lose_answer(_event, _value):
        if (error := next(answers, None)) is not None:
            raise error

    world.kube.on_change = lose_answer  # called after the object has changed
    async with running(lease.hold()) as (held,):
        await world.clocks["a"].advance(20.0)
        assert not held.done()
        assert lease.is_leader


async def test_renewal_that_is_answered_too_late_is_a_loss(world):
    lease = await led(world)

    def take_long(_event, _value):
        world.clocks["a"].jump(TIMES.renew_s)

    world.kube.on_change = take_long
    world.clocks["a"].jump(1.0)
    with pytest.raises(LeaseLostError):
        await lease.renew()
    assert not lease.is_leader


async def test_release_lets_the_other_one_in_at_once(world):
    lease = await led(world)
    async with running(world.leases["b"].acquire()) as (other,):
        await world.advance(1.0)
        await lease.release()
        with pytest.raises(FencedError):
            lease.check()
        await world.advance(3.0)
        assert other.done()
    assert world.spec["holderIdentity"] == "b"


async def test_release_meets_a_renewal_that_was_still_on_its_way(world):
    lease = await led(world)
    world.kube.edit(
        LEASES, "n", "operator", lambda one: one["spec"].update(renewTime="later, by the same")
    )
    await lease.release()
    assert "holderIdentity" not in world.spec


async def test_release_leaves_the_lease_of_another_process_alone(world):
    lease = await led(world)
    world.kube.edit(LEASES, "n", "operator", lambda one: one["spec"].update(holderIdentity="b"))
    await lease.release()
    assert world.spec["holderIdentity"] == "b"
    assert not lease.is_leader


async def test_deleted_lease_ends_the_leader(world):
    lease = await led(world)
    world.kube.remove(LEASES, "n", "operator")
    async with running(lease.hold()) as (held,):
        await world.clocks["a"].advance(3.0)
        with pytest.raises(LeaseLostError):
            held.result()


async def test_acquiring_goes_on_after_failures(world):
    world.kube.fail(UnavailableError("away"), verb="get")
    async with running(world.leases["a"].acquire()) as (task,):
        await world.clocks["a"].advance(3.0)
        assert task.done()
    assert world.leases["a"].is_leader


async def test_release_without_a_lease_writes_nothing(world):
    await world.leases["a"].release()
    assert world.kube.writes == []


def test_leader_must_give_up_before_it_is_replaced():
    with pytest.raises(AssertionError):
        LeaseTimes(duration_s=10.0, renew_s=10.0, retry_s=2.0)
