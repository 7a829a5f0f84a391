"""Write Events of the catalogue to the API server; repetitions increase a count.

Events inform users and are no input of decisions, so an Event that cannot be written is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Final

from liftbridge_operator.kube.errors import KubeError, NotFoundError
from liftbridge_operator.kube.kinds import EVENTS
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import EventReason

CONTROLLER: Final = "liftbridge.io/operator"
REMEMBERED_MAX: Final = 2_000
"""Maximum number of remembered Events; the least recently written are forgotten first."""

REPEAT_S: Final = 60.0
"""Time in which repetitions are only counted; the next one after it writes the count."""

_NAME_CHARACTERS_MAX: Final = 200


@dataclass(slots=True)
class _WrittenEvent:
    """An Event that was written.

    Attributes:
        name: Name of the Event.
        uid: UID of the Event.
        count: Number of occurrences.
        written_s: When the count was last written.
    """

    name: str
    uid: str
    count: int
    written_s: float


class Events:
    """Writes Events of resources."""

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
        """Start without any written Event.

        Args:
            kube: The API server.
            instance: Identity of this process.
            now: Monotonic seconds.
            wall: Time of day, in UTC.
            rng: Generates names.
            on_result: Called for each Event: `written`, `repeated` or `failed`.
        """
        self._kube = kube
        self._instance = instance
        self._now = now
        self._wall = wall
        self._rng = rng
        self._on_result = on_result
        self._written: OrderedDict[tuple[str, str, str], _WrittenEvent] = OrderedDict()

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an Event of the catalogue, or count a repetition.

        Args:
            resource: The resource, as read.
            reason: Reason of the Event.
            values: Values of the placeholders in its text.
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
        event = self._written.get(key)
        if event is not None:
            self._written.move_to_end(key)
            event.count += 1
            if self._now() - event.written_s < REPEAT_S or await self._count_up(event, resource):
                return "repeated"
        made = await self._kube.create(self._event(key, resource, kind))
        metadata = made["metadata"]
        self._written[key] = _WrittenEvent(metadata["name"], metadata["uid"], 1, self._now())
        while len(self._written) > REMEMBERED_MAX:
            self._written.popitem(last=False)
        return "written"

    async def _count_up(self, event: _WrittenEvent, resource: Object) -> bool:
        """Write the number of occurrences; return False when the Event has expired."""
        series = {"count": event.count, "lastObservedTime": micro_time(self._wall())}
        try:
            await self._kube.patch(
                EVENTS,
                resource["metadata"]["namespace"],
                event.name,
                {"series": series},
                preconditions=Preconditions(event.uid),
            )
        except NotFoundError:
            return False
        event.written_s = self._now()
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
    """Format a time in Kubernetes' form with microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
