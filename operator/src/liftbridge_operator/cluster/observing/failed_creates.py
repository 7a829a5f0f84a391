"""Causes for which the StatefulSet controller fails to create pods.

Only its `FailedCreate` Events contain them, no condition does. They are read only for pods that
have been missing for a pass. A failed read does not fail the pass: the cause then names the error.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from liftbridge_operator.cluster.observing.objects import Json, metadata_of, uid_of
from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.cluster.planning.decision import Wait
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.kinds import EVENTS
from liftbridge_operator.kube.port import Kube, Object

REASON: Final = "FailedCreate"
READ_S: Final = 5.0
"""Time-out of the list; Events may have separate storage, which may be unavailable alone."""

BEFORE_MS: Final = 120_000
"""Time by which Events may precede the first wait for a pod: clocks differ, and the controller
tries at once. An older Event may concern a pod that was created since."""

TEXT_MAX: Final = 500
_FAILED: Final = " failed error: "


async def causes_of(
    kube: Kube, brokers: Json, missing: Sequence[str], waits: Sequence[Wait]
) -> tuple[tuple[str, str], ...]:
    """Return missing pods, each with its cause, or with the reason for which that is unknown.

    Args:
        kube: The API server.
        brokers: The StatefulSet.
        missing: Names of its missing pods.
        waits: Waits of the pass before, with their start times.
    """
    since = _since(waits)
    waited = [one for one in missing if one in since]
    if not waited:
        return ()
    namespace, uid = str(metadata_of(brokers)["namespace"]), uid_of(brokers)
    fields = f"regarding.uid={uid},reason={REASON}"
    try:
        async with asyncio.timeout(READ_S):
            listed = await kube.list_all(EVENTS, namespace, fields=fields)
    except TimeoutError:
        return tuple((one, _unread(brokers, "no answer")) for one in waited)
    except KubeError as error:
        return tuple((one, _unread(brokers, error.message)) for one in waited)
    found = ((one, _cause(listed.items, one, since[one] - BEFORE_MS)) for one in waited)
    return tuple((pod, cause) for pod, cause in found if cause)


def _since(waits: Sequence[Wait]) -> Mapping[str, int]:
    """Return the earliest start of any wait for each object."""
    starts: dict[str, int] = {}
    for wait in waits:
        starts[wait.object] = min(wait.since_ms, starts.get(wait.object, wait.since_ms))
    return starts


def _cause(events: Sequence[Object], pod: str, from_ms: int) -> str:
    """Return the text of the newest Event about a pod, else of the newest about another pod."""
    new = sorted((event for event in events if _moment_ms(event) >= from_ms), key=_moment_ms)
    notes = [str(one.get("note") or "") for one in new]
    own = [note for note in notes if f"Pod {pod} in " in note]
    if own:
        return _cut(own[-1].partition(_FAILED)[2] or own[-1])
    return _cut(notes[-1]) if notes else ""


def _moment_ms(event: Json) -> int:
    """Return the last occurrence of an Event, in its old or new form."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"))
    return max(moment_ms(time) for time in (*times, event.get("eventTime")))


def _unread(brokers: Json, why: str) -> str:
    where = f"`kubectl describe statefulset {metadata_of(brokers)['name']}` shows the cause"
    return f"{where}, since its events cannot be read: {_cut(why)}"


def _cut(text: str) -> str:
    return text[:TEXT_MAX].strip().rstrip(".")
