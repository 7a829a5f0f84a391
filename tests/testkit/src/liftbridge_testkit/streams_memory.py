"""In-memory brokers behind the port of the Stream reconciler, and a manual clock.

brokers = MemoryStreams()
brokers.put("orders", partitions=2)       # as somebody else
brokers.is_silent = True                  # nobody answers
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from liftbridge_operator.kube.errors import FencedError
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.observation import (
    ObservedPartition,
    ObservedStream,
    Resource,
)
from liftbridge_operator.streams.port import ChangedError, RefusedError, SilentError
from liftbridge_operator.streams.settings import Settings, Value

BROKERS: Final = ("c-0", "c-1", "c-2")
DEFAULTS: Final[Settings] = {
    "retention_max_bytes": 0,
    "retention_max_messages": 0,
    "retention_max_age": 604_800_000,
    "cleaner_interval": 300_000,
    "segment_max_bytes": 1 << 28,
    "segment_max_age": 0,
    "compact_enabled": False,
    "compact_max_goroutines": 10,
    "tombstone_retention": 86_400_000,
    "auto_pause_time": 0,
    "auto_pause_disable_if_subscribers": False,
    "min_isr": 2,
    "optimistic_concurrency_control": False,
    "encryption": False,
    "fsync_policy": "interval",
    "unclean_mode": "balanced",
    "retention_cursor": "",
    "retention_cursor_max_bytes": 0,
    "ack_reply": False,
}


def stream(name: str = "orders", **changes: Any) -> ObservedStream:
    """Return a stream of three replicas with everything in sync."""
    count = changes.pop("partition_count", 1)
    factor = changes.pop("factor", 3)
    settings = {**DEFAULTS, **changes.pop("settings", {})}
    readonly = changes.pop("readonly", False)
    made = ObservedStream(
        stream_id=7,
        name=name,
        subject=name,
        group="",
        factor=factor,
        partition_count=count,
        owner="",
        created_ns=1,
        settings=settings,
        partitions=tuple(
            ObservedPartition(
                number=number,
                leader=BROKERS[0],
                replicas=BROKERS[:factor],
                in_sync=factor,
                min_isr=settings["min_isr"],
                is_readonly=readonly,
                is_moving=False,
            )
            for number in range(count)
        ),
    )
    return made._replace(**changes)


class MemoryStreams:
    """Implement `StreamBrokers` in memory.

    Attributes:
        held: Streams by name.
        messages: Messages by name of the stream; `None` when not all leaders answer.
        calls: Requested changes, in order.
        looks: Number of requests for all streams.
        is_silent: Whether no broker answers.
        refusal: Refusal of every change; empty for none.
        busy, busiest: Changes under way, now and at most.
    """

    def __init__(self) -> None:
        self.held: dict[str, ObservedStream] = {}
        self.messages: dict[str, int | None] = {}
        self.calls: list[tuple[str, str]] = []
        self.looks = 0
        self.is_silent = False
        self.is_closed = False
        self.refusal = ""
        self.busy = self.busiest = 0
        self._ids = 100

    def put(self, name: str, **changes: Any) -> ObservedStream:
        """Create a stream as another client, and return it."""
        self._ids += 1
        self.held[name] = stream(name, stream_id=self._ids, **changes)
        return self.held[name]

    def change(self, name: str, **changes: Any) -> None:
        """Change a stream as another client."""
        self.held[name] = self.held[name]._replace(**changes)

    async def streams(self) -> Mapping[str, ObservedStream]:
        """Implement `StreamBrokers.streams`."""
        self.looks += 1
        if self.is_silent:
            raise SilentError("nobody answers")
        return dict(self.held)

    async def _asked(self, what: str, name: str) -> None:
        self.calls.append((what, name))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        if self.is_silent:
            raise SilentError("nobody answers")
        if self.refusal:
            raise RefusedError(self.refusal)
        if what != "create" and name not in self.held:
            raise ChangedError(f"no stream {name}")

    async def create(
        self,
        name: str,
        *,
        subject: str,
        group: str,
        partitions: int,
        factor: int,
        settings: Mapping[str, Value],
    ) -> int:
        """Implement `StreamBrokers.create`."""
        await self._asked("create", name)
        if name in self.held:
            raise ChangedError(f"stream {name} exists")
        made = self.put(
            name,
            subject=subject,
            group=group,
            partition_count=partitions,
            factor=factor if factor > 0 else len(BROKERS),
            settings=dict(settings),
        )
        return made.stream_id

    async def mark(self, name: str, stream_id: int, *, expected: str, owner: str) -> None:
        """Implement `StreamBrokers.mark`."""
        await self._asked("mark", name)
        now = self.held[name]
        if now.stream_id != stream_id or now.owner not in (expected, owner):
            raise ChangedError(f"stream {name} is {now.stream_id} of {now.owner}")
        self.change(name, owner=owner)

    async def alter(self, name: str, settings: Mapping[str, Value], *, factor: int) -> None:
        """Implement `StreamBrokers.alter`."""
        await self._asked("alter", name)
        now = self.held[name]
        self.change(name, settings={**now.settings, **settings}, factor=factor or now.factor)

    async def set_readonly(self, name: str, *, is_readonly: bool) -> None:
        """Implement `StreamBrokers.set_readonly`."""
        await self._asked("set_readonly", name)
        parts = tuple(
            partition._replace(is_readonly=is_readonly) for partition in self.held[name].partitions
        )
        self.change(name, partitions=parts)

    async def count_messages(self, stream: ObservedStream) -> int | None:
        """Implement `StreamBrokers.count_messages`."""
        return self.messages.get(stream.name, 0)

    async def delete(self, name: str) -> None:
        """Implement `StreamBrokers.delete`."""
        await self._asked("delete", name)
        del self.held[name]

    async def close(self) -> None:
        """Implement `StreamBrokers.close`."""
        self.is_closed = True


class ManualClock:
    """See `process.clock.Clock`; time passes in `pass_time`.

    Attributes:
        set_back: Time by which the time of day was set back.
    """

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.set_back = timedelta()
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        """Implement `Clock.now`."""
        return self.seconds

    def wall(self) -> datetime:
        """Implement `Clock.wall`."""
        passed = timedelta(seconds=self.seconds) - self.set_back
        return datetime(2026, 11, 21, 12, tzinfo=UTC) + passed

    async def sleep(self, seconds: float) -> None:
        """Implement `Clock.sleep`."""
        await self.wait(asyncio.Event(), seconds)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Implement `Clock.wait`."""
        if seconds is not None:
            self._sleepers.append((self.seconds + seconds, event))
        await event.wait()

    async def pass_time(self, seconds: float) -> None:
        """Advance the time in steps of half a second, and run everything that is due."""
        for _ in range(round(seconds * 2)):
            self.seconds += 0.5
            due = [event for at, event in self._sleepers if at <= self.seconds]
            self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self.seconds]
            for event in due:
                event.set()
            for _ in range(10):
                await asyncio.sleep(0)


class OpenFence:
    """Implement `kube.port.Fence`; `is_closed` is set when another process may lead."""

    def __init__(self) -> None:
        self.is_closed = False

    def check(self, namespace: str) -> None:
        """Implement `Fence.check`."""
        del namespace  # all are this release's
        if self.is_closed:
            raise FencedError("somebody else may lead")


class SeenBoard:
    """Implement `streams.port.StreamBoard`.

    Attributes:
        reasons: Reason of the condition Ready, by name of the resource.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def set_conditions(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Implement `StreamBoard.tell`."""
        ready = next(condition for condition in conditions if condition["type"] == "Ready")
        self.reasons[key.name] = ready["reason"]

    def forget(self, key: Key) -> None:
        """Implement `StreamBoard.forget`."""
        self.reasons.pop(key.name, None)


class HeardEvents:
    """Implement `StreamEvents`.

    Attributes:
        told: Events by name of the resource, in order.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, EventReason]] = []

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Implement `StreamEvents.tell`."""
        del values
        self.told.append((resource["metadata"]["name"], reason))


class AskedPasses:
    """See `process.reconciler.Requests`.

    Attributes:
        keys: Resources to reconcile.
    """

    def __init__(self) -> None:
        self.keys: set[Key] = set()

    def request(self, key: Key, after_s: float = 0.0) -> None:
        """Implement `Requests.request`."""
        del after_s
        self.keys.add(key)


def resource(*, spec: Mapping[str, Any] | None = None, **changes: Any) -> Resource:
    """Return a resource of stream `orders` that was reconciled once."""
    given = {
        "clusterRef": {"name": "c"},
        "subject": "orders",
        "replicationFactor": 3,
        **(spec or {}),
    }
    made = Resource(
        namespace="shop",
        name="orders",
        uid="uid-1",
        generation=1,
        created="2026-11-21T10:00:00Z",
        spec=StreamSpec.model_validate(given),
        observed_generation=1,
    )
    return changed(made, **changes)
