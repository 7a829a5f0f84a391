"""Passes run side by side for several keys and one after another for one; no failure stops them."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest
from structlog.testing import capture_logs

from liftbridge_operator.kube.errors import FencedError, NotFoundError, UnavailableError
from liftbridge_operator.kube.kinds import CLUSTERS, STREAMS
from liftbridge_operator.process.dispatcher import Dispatcher
from liftbridge_operator.process.metrics import Metrics
from liftbridge_operator.process.queue import WorkQueue
from liftbridge_operator.process.reconciler import Key, RefusedError, RequeueAfter
from liftbridge_testkit.kube.clock import ManualClock

A, B, C = (Key(CLUSTERS, "n", name) for name in "abc")


class Scripted:
    """A reconciler that does what it is told to, pass after pass."""

    def __init__(self):
        self.passes = []
        self.answers = {}
        self.gates = {}
        self.running = set()

    async def reconcile(self, key):
        assert key not in self.running
        self.running.add(key)
        self.passes.append(key)
        try:
            if key in self.gates:
                await self.gates[key].wait()
            answers = self.answers.get(key)
            answer = answers.pop(0) if answers else None
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.running.discard(key)


class World:
    def __init__(self, workers=2):
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.work = Scripted()
        self.deadline = None
        self.dispatcher = Dispatcher(
            CLUSTERS,
            self.work,
            queue=WorkQueue(Random(1), keys_max=3),
            clock=self.clock,
            metrics=self.metrics,
            workers=workers,
            deadline=self.keep_deadline,
        )

    def keep_deadline(self, seconds):
        self.deadline = asyncio.timeout(None)
        self.seconds = seconds
        return self.deadline

    def counted(self, result):
        labels = {"kind": "LiftbridgeCluster", "result": result}
        name = "liftbridge_operator_passes_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0


@asynccontextmanager
async def running(world):
    task = asyncio.get_running_loop().create_task(world.dispatcher.run())
    try:
        yield task
    finally:
        world.dispatcher.stop()
        for gate in world.work.gates.values():
            gate.set()
        await task


@pytest.fixture
def world():
    return World()


async def test_request_makes_a_pass(world):
    async with running(world):
        world.dispatcher.request(A)
        await world.clock.advance()
    assert world.work.passes == [A]
    assert world.counted("done") == 1


async def test_requests_during_a_pass_make_one_more(world):
    world.work.gates[A] = asyncio.Event()
    async with running(world):
        world.dispatcher.request(A)
        await world.clock.advance(1.0)
        for _ in range(5):
            world.dispatcher.request(A)
        await world.clock.advance(1.0)
        assert world.work.passes == [A]
        world.work.gates[A].set()
        await world.clock.advance(1.0)
    assert world.work.passes == [A, A]


async def test_slow_pass_holds_up_no_other_key(world):
    world.work.gates[A] = asyncio.Event()
    async with running(world):
        for key in (A, B, C):
            world.dispatcher.request(key)
        await world.clock.advance()
        assert world.work.passes == [A, B, C]


async def test_pass_comes_again_when_it_wished_to(world):
    world.work.answers[A] = [RequeueAfter(5.0)]
    async with running(world):
        world.dispatcher.request(A)
        await world.clock.advance(4.9)
        assert world.work.passes == [A]
        await world.clock.advance(0.2)
    assert world.work.passes == [A, A]
    assert (world.counted("again"), world.counted("done")) == (1, 1)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (UnavailableError("away"), "refused"),
        (NotFoundError("no kind"), "refused"),
        (RefusedError("no broker answers"), "refused"),
        (TimeoutError(), "timed_out"),
        (ValueError("a mistake"), "failed"),
    ],
)
async def test_failed_pass_is_tried_again_and_others_go_on(world, error, result):
    world.work.answers[A] = [error]
    with capture_logs() as logs:
        async with running(world):
            world.dispatcher.request(A)
            world.dispatcher.request(B)
            await world.clock.advance(0.1)
            assert world.work.passes == [A, B]
            await world.clock.advance(1.0)
    assert world.work.passes == [A, B, A]
    assert (world.counted(result), world.counted("done")) == (1, 2)
    assert [line["key"] for line in logs] == [str(A)]


async def test_fenced_pass_is_not_tried_again(world):
    world.work.answers[A] = [FencedError("lost")]
    async with running(world):
        world.dispatcher.request(A)
        await world.clock.advance(120.0)
    assert world.work.passes == [A]


async def test_pass_that_hangs_is_cut_off(world):
    world.work.gates[A] = asyncio.Event()
    async with running(world):
        world.dispatcher.request(A)
        await world.clock.advance()
        assert world.seconds == 60.0
        world.deadline.reschedule(asyncio.get_running_loop().time())
        await world.clock.advance()
        await asyncio.to_thread(lambda: None)
        await world.clock.advance()
    assert world.counted("timed_out") == 1


async def test_stop_finishes_what_has_begun_and_begins_nothing(world):
    world.work.gates[A] = asyncio.Event()
    async with running(world) as task:
        world.dispatcher.request(A)
        await world.clock.advance()
        world.dispatcher.request(B, 1.0)
        world.dispatcher.stop()
        await world.clock.advance(5.0)
        assert not task.done()
        world.work.gates[A].set()
        await world.clock.advance()
        assert task.done()
    assert world.work.passes == [A]


async def test_what_has_no_room_is_counted(world):
    for name in "abcd":
        world.dispatcher.request(Key(CLUSTERS, "n", name))
    labels = {"kind": "LiftbridgeCluster"}
    name = "liftbridge_operator_queue_dropped_total"
    assert world.metrics.registry.get_sample_value(name, labels) == 1


async def test_key_of_another_kind_is_a_mistake(world):
    with pytest.raises(AssertionError):
        world.dispatcher.request(Key(STREAMS, "n", "s"))
