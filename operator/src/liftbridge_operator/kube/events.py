"""Events of the catalogue, written to the API server; one that repeats is counted up, not piled up.

Events tell people what happened and are nothing to decide from, so that one that cannot be written
is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Final

from liftbridge_operator.catalogue.load import load_catalogue
from liftbridge_operator.catalogue.names import EventReason
from liftbridge_operator.kube.errors import KubeError, NotFoundError
from liftbridge_operator.kube.kinds import EVENTS
from liftbridge_operator.kube.port import Kube, Object, Preconditions

CONTROLLER: Final = "liftbridge.io/operator"
REMEMBERED_MAX: Final = 2_000
"""Events that are known to have been told; the ones told longest ago are forgotten first."""

REPEAT_S: Final = 60.0
"""Repetitions within this time are only counted, and written with the next one after it."""

_NAME_CHARACTERS_MAX: Final = 200


@dataclass(slots=True)
class _Told:
    """An event that was written.

    Attributes:
        name: Of the event.
        uid: Of the event.
        count: How often it happened.
        written_s: When that was written last.
    """

    name: str
    uid: str
    count: int
    written_s: float


class Events:
    """Tells what happened to a resource."""

    def __init__(
        self,
        kube: Kube,
        *,
        instance: str,
        now: Callable[[], float],
        wall: Callable[[], datetime],
        rng: Random,
        on_result: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is told yet.

        Args:
            kube: Where to.
            instance: Which process tells.
            now: Monotonic seconds.
            wall: Time of day, in UTC.
            rng: Of names.
            on_result: Told of each event: `written`, `repeated` or `failed`.
        """
        self._kube = kube
        self._instance = instance
        self._now = now
        self._wall = wall
        self._rng = rng
        self._on_result = on_result
        self._told: OrderedDict[tuple[str, str, str], _Told] = OrderedDict()

    async def tell(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an event of the catalogue.

        Args:
            resource: What it is about, as it was read.
            reason: Which event.
            values: What its text has in braces.
        """
        spec = load_catalogue().events[resource["kind"], reason.value]
        note = spec.text.fill(values)
        key = (resource["metadata"]["uid"], reason.value, note)
        try:
            outcome = await self._write(key, resource, spec.type)
        except KubeError:
            outcome = "failed"
        if self._on_result is not None:
            self._on_result(outcome)

    async def _write(self, key: tuple[str, str, str], resource: Object, kind: str) -> str:
        told = self._told.get(key)
        if told is not None:
            self._told.move_to_end(key)
            told.count += 1
            if self._now() - told.written_s < REPEAT_S or await self._count_up(told, resource):
                return "repeated"
        made = await self._kube.create(self._event(key, resource, kind))
        metadata = made["metadata"]
        self._told[key] = _Told(metadata["name"], metadata["uid"], 1, self._now())
        while len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)
        return "written"

    async def _count_up(self, told: _Told, resource: Object) -> bool:
        """Write how often it happened; False when the API server has forgotten the event."""
        series = {"count": told.count, "lastObservedTime": micro_time(self._wall())}
        try:
            await self._kube.patch(
                EVENTS,
                resource["metadata"]["namespace"],
                told.name,
                {"series": series},
                preconditions=Preconditions(told.uid),
            )
        except NotFoundError:
            return False
        told.written_s = self._now()
        return True

    def _event(self, key: tuple[str, str, str], resource: Object, kind: str) -> Object:
        metadata: Mapping[str, Any] = resource["metadata"]
        uid, reason, note = key
        name = metadata["name"][:_NAME_CHARACTERS_MAX]
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{name}.{self._rng.getrandbits(64):016x}",
                "namespace": metadata["namespace"],
            },
            "eventTime": micro_time(self._wall()),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": reason,
            "reason": reason,
            "type": kind,
            "note": note,
            "regarding": {
                "apiVersion": resource["apiVersion"],
                "kind": resource["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": uid,
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }


def micro_time(moment: datetime) -> str:
    """A moment as Kubernetes writes it with microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
