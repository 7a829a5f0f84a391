"""The Stream reconciler between an API server and brokers, both in memory.

async with running() as world:
    world.cluster()
    world.stream()
    await world.settle(3)
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from liftbridge_operator.kube.kinds import STREAMS
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.feed import StreamFeed
from liftbridge_operator.streams.reconciler import StreamReconciler
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.streams_memory import (
    AskedPasses,
    HeardEvents,
    ManualClock,
    MemoryStreams,
    OpenFence,
    SeenBoard,
)

PASSES_MAX: Final = 30


class World:
    """The stream part of an operator, with its surroundings."""

    def __init__(self, *, is_namespaced: bool = False) -> None:
        """Create a world without events."""
        self.kube, self.brokers, self.clock = MemoryKube(), MemoryStreams(), ManualClock()
        self.events, self.asked = HeardEvents(), AskedPasses()
        self.fence, self.board = OpenFence(), SeenBoard()
        self.due: dict[Key, float] = {}
        self.connected = 0

        async def connect(body: Object) -> MemoryStreams:
            assert body["kind"] == "LiftbridgeCluster"
            self.connected += 1
            return self.brokers

        self.feed = StreamFeed(self.kube, connect, self.asked, self.clock)
        self.reconciler = StreamReconciler(
            self.kube,
            self.feed,
            self.events,
            self.clock,
            fence=self.fence,
            board=self.board,
            is_namespaced=is_namespaced,
        )
        self.kube.on_change = self._changed
        for name in ("shop", "elsewhere"):
            self.kube.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def _changed(self, _event: str, body: Object) -> None:
        if body["kind"] == "Stream":
            self.asked.request(
                Key(STREAMS, body["metadata"]["namespace"], body["metadata"]["name"])
            )

    def cluster(self, **spec: Any) -> Object:
        """Create the cluster as a user, and return it."""
        return self.kube.put(
            {
                "apiVersion": "liftbridge.io/v1alpha1",
                "kind": "LiftbridgeCluster",
                "metadata": {"name": "c", "namespace": "shop"},
                "spec": spec,
            }
        )

    def stream(self, name: str = "orders", namespace: str = "shop", **spec: Any) -> Object:
        """Create a resource as a user, and return it."""
        ref = {"name": "c", "namespace": "shop"}
        return self.kube.put(
            {
                "apiVersion": "liftbridge.io/v1alpha1",
                "kind": "Stream",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterRef": ref, "subject": name, "replicationFactor": 3, **spec},
            }
        )

    async def settle(self, seconds: float = 0.0) -> None:
        """Advance the time, and run requested passes."""
        for _ in range(max(round(seconds), 1)):
            if seconds:
                await self.clock.pass_time(1)
            for key in [one for one, due in self.due.items() if due <= self.clock.now()]:
                self.asked.request(key)
            for _ in range(PASSES_MAX):
                keys, self.asked.keys = self.asked.keys, set()
                if not keys:
                    break
                for key in sorted(keys, key=str):
                    again = await self.reconciler.reconcile(key)
                    self.due.pop(key, None)
                    if again is not None and again.seconds == 0:
                        self.asked.request(key)
                    elif again is not None:
                        self.due[key] = self.clock.now() + again.seconds
            else:
                raise AssertionError("passes follow passes without an end")

    async def body(self, name: str = "orders", namespace: str = "shop") -> Object:
        """Return a resource as stored."""
        return await self.kube.get(STREAMS, namespace, name)

    async def reason(
        self, name: str = "orders", namespace: str = "shop", kind: str = "Ready"
    ) -> str:
        """Return the reason of a condition; empty for none."""
        body = await self.body(name, namespace)
        told = {one["type"]: one["reason"] for one in body["status"]["conditions"]}
        return str(told.get(kind, ""))

    async def delete(self, name: str = "orders", namespace: str = "shop") -> None:
        """Delete a resource as a user."""
        body = await self.body(name, namespace)
        await self.kube.delete(STREAMS, namespace, name, preconditions=Preconditions.of(body))

    async def confirm(self, value: str, name: str = "orders") -> None:
        """Confirm a deletion as a user."""

        def annotate(body: Object) -> None:
            body["metadata"]["annotations"] = {"liftbridge.io/confirm-delete": value}

        self.kube.edit(STREAMS, "shop", name, annotate)

    def written(self) -> list[str]:
        """Return the verbs of the writes to resources."""
        return [write.verb for write in self.kube.writes if write.kind == STREAMS]


@asynccontextmanager
async def running(*, is_namespaced: bool = False) -> AsyncIterator[World]:
    """Yield a world whose clusters are reconciled."""
    world = World(is_namespaced=is_namespaced)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(world.feed.run())
        yield world
        looking.cancel()
