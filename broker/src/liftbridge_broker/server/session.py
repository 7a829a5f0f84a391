"""The waits of a broker's start and stop (`node.assembly`), on the event loop."""

import asyncio
import contextlib
from collections.abc import Generator
from importlib import metadata as packages
from typing import TypeVar

from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM, internal_subject
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.node.assembly.search import Search
from liftbridge_broker.node.assembly.session import (
    LOOK_NS,
    Announcement,
    create_stream,
    register,
)
from liftbridge_broker.node.metadata.bootstrap import Beginning
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.server.limits import replicas_max

Outcome = TypeVar("Outcome")


class Waiting:
    """Lets time pass between the steps of a session and of a search."""

    def __init__(self) -> None:
        """Start without news."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Run the next step soon."""
        self._news.set()

    async def run(self, steps: Generator[None, None, Outcome]) -> Outcome:
        """Run all steps of a session; returns its outcome."""
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                outcome: Outcome = ended.value
                return outcome
            await self._news_within(LOOK_NS)
            self._news.clear()

    async def find(self, search: Search, clock: Clock) -> Beginning:
        """Search until there is an outcome; never returns if no broker is to found a cluster."""
        while (beginning := search.look()) is None:
            self._news.clear()
            deadline = search.next_deadline()
            assert deadline is not None
            await self._news_within(max(0, deadline - clock.now()))
        return beginning

    async def _news_within(self, duration_ns: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_ns / SECOND_NS):
                await self._news.wait()


def begin_session(
    core: Core, options: BrokerOptions, port: int, listeners: tuple[ListenerAddress, ...] = ()
) -> Generator[None, None, None]:
    """Start a broker session, receive from NATS, create the broker's own streams.

    Ends when the broker may lead; never without a quorum of the metadata group.

    Args:
        core: The broker.
        options: Options of the broker.
        port: Bound client port; advertised unless another is configured.
        listeners: Addresses of the further listeners.

    Raises:
        LiftbridgeError: The metadata refused.
    """
    announcement = Announcement(
        host=options.listen.advertised_host,
        port=options.listen.advertised_port or port,
        listeners=listeners,
        zone=options.clustering.zone,
        version=packages.version("liftbridge-broker"),
        started=core.clock.wall_ns(),
        replicas_max=replicas_max(options.data.directory),
    )
    yield from register(core, announcement)
    if options.cursors.partitions:
        yield from create_stream(core, _cursors(core, options))


def _cursors(core: Core, options: BrokerOptions) -> CreateStream:
    """The stream that keeps cursors."""
    cursors = options.cursors
    return CreateStream(
        name=StreamName(CURSORS_STREAM),
        subject=internal_subject(options.clustering.namespace, "cursors"),
        partitions=cursors.partitions,
        replication_factor=cursors.replication_factor,
        overrides=StreamOverrides(
            compact_enabled=True,
            auto_pause_ms=cursors.auto_pause_ns // MILLISECOND_NS,
            auto_pause_disable_if_subscribers=True,
        ),
        creation_timestamp=core.clock.wall_ns(),
        is_internal=True,
    ).with_defaults(core.node.context.options.defaults)
