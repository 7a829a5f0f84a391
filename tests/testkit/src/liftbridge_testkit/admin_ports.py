"""Admin ports of brokers in memory, on loopback, while the time of their world continues."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from liftbridge_broker.server.admin import make_admin
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.cluster_world import ClusterWorld

_PACE_SECONDS: Final = 0.002
_STEP_MILLISECONDS: Final = 10


@asynccontextmanager
async def admin_ports(
    world: ClusterWorld, *, is_still: Callable[[], bool] = lambda: False
) -> AsyncIterator[dict[str, str]]:
    """Open the port of every broker that is alive; addresses by the broker's name.

    Args:
        world: The brokers.
        is_still: Whether time stands still at present.
    """
    names = [one.broker for one in world.alive]
    servers = [make_admin(admin_of(world, int(name[1:])).context) for name in names]
    ports = [await server.start("127.0.0.1", 0) for server in servers]
    loop = asyncio.get_running_loop()
    pace: list[asyncio.TimerHandle] = []

    def go_on() -> None:
        if not is_still():
            world.run(_STEP_MILLISECONDS)
        pace[:] = [loop.call_later(_PACE_SECONDS, go_on)]

    go_on()
    try:
        yield {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    finally:
        pace[0].cancel()
        for server in servers:
            await server.close()
