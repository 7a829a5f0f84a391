"""Publishing calls are held back together: what waits for NATS costs nothing for each of them."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call, CallPort
from liftbridge_testkit.lines import Lines

if TYPE_CHECKING:
    from liftbridge_broker.node.node import Node
    from liftbridge_broker.ports.clock import Clock

CALLS = 2_000


@dataclass
class Port:
    """Notes which streams are read."""

    paused: set[int] = field(default_factory=set)

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        (self.paused.discard if is_reading else self.paused.add)(stream_id)


class World:
    """A congested node and calls that publish to it."""

    def __init__(self, count: int) -> None:
        options = SimpleNamespace(namespace="liftbridge-default")
        self.node = SimpleNamespace(is_congested=True, context=SimpleNamespace(options=options))
        self.port = Port()
        port = cast("CallPort", self.port)
        self.calls = [Call(port, one, method="", peer="", deadline=None) for one in range(count)]
        self.clock = SimpleNamespace(now=lambda: 0)
        context = Context(cast("Node", self.node), cast("Clock", self.clock), 1, 1, 1)
        self.brake = context.brake
        for call in self.calls:
            self.brake.apply(call)


async def test_looking_whether_to_go_on_costs_the_same_for_any_number_of_calls() -> None:
    world, lines = World(CALLS), Lines()
    assert len(world.port.paused) == CALLS
    with lines:
        world.brake._look()
    assert lines.most <= CALLS // 10
    world.node.is_congested = False
    world.brake._look()
    assert world.port.paused == set()


async def test_calls_go_on_by_themselves() -> None:
    world = World(3)
    world.brake._look()
    assert len(world.port.paused) == 3
    world.node.is_congested = False
    async with asyncio.timeout(10):
        while world.port.paused:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    world.node.is_congested = True
    world.brake.apply(world.calls[0])
    assert world.port.paused == {0}


async def test_calls_that_have_ended_are_not_kept() -> None:
    world = World(0)
    port = cast("CallPort", world.port)
    for one in range(CALLS):
        call = Call(port, one, method="", peer="", deadline=None)
        world.brake.apply(call)
        call.cancel()
    assert len(world.brake._held) <= 100
