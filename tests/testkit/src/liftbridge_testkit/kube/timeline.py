"""History of the objects of a story, and queries about it.

The watcher appends observations (`Seen`). All functions compute from the whole list, so that their
tests need no cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftbridge_testkit.kube.gaps import Span
from liftbridge_testkit.kube.kstatus import kstatus, stale_claims

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SKEW_SECONDS: Final = 3.0
"""Time by which two watches may differ for simultaneous events."""

OBSERVATION_SECONDS: Final = 8.0
"""Maximum age of a report of the operator, which drops reports older than five seconds."""

POD, SET, CLUSTER, STREAM = "Pod", "StatefulSet", "LiftbridgeCluster", "Stream"


class Seen(NamedTuple):
    """One state of an object.

    Attributes:
        at: Time of the observation, in seconds since 1970.
        kind: Kind of the object.
        name: Its name.
        body: Result of `reduced`; None if the object is gone.
    """

    at: float
    kind: str
    name: str
    body: Mapping[str, Any] | None


class Isr(NamedTuple):
    """Replicas in sync at one moment, reported by a broker.

    Attributes:
        at: Time in seconds since 1970.
        sizes: Size of each reported partition.
        leaderless: Partitions without a leader.
    """

    at: float
    sizes: Mapping[str, int]
    leaderless: tuple[str, ...]


@dataclass(slots=True)
class Timeline:
    """All observations of a story.

    Attributes:
        cluster: Name of the LiftbridgeCluster, and of its StatefulSet.
        seen: States of objects, in order.
        isr: Replicas in sync in order, only changes.
        marks: Intervals that the story named.
    """

    cluster: str
    seen: list[Seen] = field(default_factory=list)
    isr: list[Isr] = field(default_factory=list)
    marks: list[Span] = field(default_factory=list)

    def of(self, kind: str, name: str = "") -> Iterator[Seen]:
        """Return the states of one kind, or of one object."""
        return (one for one in self.seen if one.kind == kind and name in {"", one.name})

    def wanted(self, at: float) -> int:
        """Return the number of pods that the StatefulSet wanted at a moment.

        0 before it existed.
        """
        found = 0
        for one in self.of(SET, self.cluster):
            if one.at > at:
                break
            found = one.body["spec"]["replicas"] if one.body is not None else 0
        return found


def reduced(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded fields of an object, as needed by the queries."""
    metadata, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    kept: dict[str, Any] = {
        "metadata": {
            key: metadata[key]
            for key in ("uid", "generation", "deletionTimestamp")
            if key in metadata
        }
    }
    match body["kind"]:
        case "Pod":
            kept |= _pod(spec, status)
        case "StatefulSet":
            kept["spec"] = {"replicas": spec.get("replicas", 1)}
        case _:
            kept["spec"] = {
                key: spec[key] for key in ("replicas", "image", "suspend", "paused") if key in spec
            }
            kept["status"] = {
                key: status[key] for key in (*_STATUS, "conditions") if status.get(key) is not None
            }
    return kept


_STATUS: Final = (
    "observedGeneration",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "revision",
    "metadataLeader",
    "partitions",
    "plan",
    "disruption",
    "waits",
)


def _pod(spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    ready = [one for one in status.get("conditions", ()) if one["type"] == "Ready"]
    sidecars = status.get("initContainerStatuses", ())
    containers = (*status.get("containerStatuses", ()), *sidecars)
    return {
        "node": spec.get("nodeName", ""),
        "ip": status.get("podIP", ""),
        "images": {one["name"]: one["image"] for one in spec.get("containers", ())},
        "phase": status.get("phase", ""),
        "ready": bool(ready) and ready[0]["status"] == "True",
        "restarts": {container["name"]: container["restartCount"] for container in containers},
    }


def is_up(one: Seen) -> bool:
    """Return whether a pod serves, according to the API server."""
    body = one.body
    return body is not None and body["ready"] and "deletionTimestamp" not in body["metadata"]


class Down(NamedTuple):
    """A time in which a broker was not ready after it had been ready.

    Attributes:
        pod: Pod of the broker.
        begin: Time at which it was seen to stop.
        end: Time at which it was ready again; infinite if never.
    """

    pod: str
    begin: float
    end: float


def downs(timeline: Timeline) -> list[Down]:
    """Return the downtimes of brokers, in order of their beginnings.

    A broker counts from its first readiness until the set no longer wants its pod.
    """
    found: list[Down] = []
    up: dict[str, bool] = {}
    for one in timeline.of(POD):
        stem, _, number = one.name.rpartition("-")
        if stem != timeline.cluster or not number.isdigit():
            continue
        serves, served = is_up(one), up.get(one.name)
        if serves and served is False:
            last = max(n for n, each in enumerate(found) if each.pod == one.name)
            found[last] = found[last]._replace(end=one.at)
        if served and not serves:
            if timeline.wanted(one.at + SKEW_SECONDS) <= int(number):
                del up[one.name]  # it left permanently
                continue
            found.append(Down(one.name, one.at, float("inf")))
        if serves or served is not None:
            up[one.name] = serves
    return found


def most_down(found: Sequence[Down], begin: float = 0.0, end: float = float("inf")) -> list[str]:
    """Return the largest set of brokers that were down at the same time within an interval."""
    most: list[str] = []
    for moment in [begin, *(one.begin for one in found if begin <= one.begin <= end)]:
        at_once = sorted({one.pod for one in found if one.begin <= moment < one.end})
        if len(at_once) > len(most):
            most = at_once
    return most


def restart_spans(found: Sequence[Down], begin: float, end: float) -> list[Span]:
    """Return the intervals of a roll, one for each restart within it.

    Leaders move away before a broker stops and back after its restart. So each interval reaches
    from the end of the previous restart to its own end, and the last to the end of the roll.
    """
    within = sorted(
        (one for one in found if begin <= one.begin <= end), key=lambda one: (one.end, one.begin)
    )
    spans = []
    start = begin
    for number, one in enumerate(within):
        stop = end if number == len(within) - 1 else min(one.end, end)
        spans.append(Span(one.pod, start, max(start, stop)))
        start = max(start, stop)
    return spans


class Planned(NamedTuple):
    """Plan that the cluster published before it acted.

    Attributes:
        at: Time at which it was first seen; infinite without a plan.
        steps: Actions with their objects.
    """

    at: float
    steps: frozenset[tuple[str, str]]


def planned(timeline: Timeline, mark: str) -> Planned:
    """Return the first plan with steps that was published within a marked interval."""
    (span,) = [one for one in timeline.marks if one.name == mark]
    for one in timeline.of(CLUSTER, timeline.cluster):
        if one.body is None or not span.begin <= one.at <= span.end:
            continue
        plan = one.body["status"].get("plan") or {}
        if plan.get("steps") and plan["generation"] == one.body["metadata"]["generation"]:
            return Planned(one.at, frozenset((s["action"], s["object"]) for s in plan["steps"]))
    return Planned(float("inf"), frozenset())


def isr_below(timeline: Timeline, least: int, spans: Iterable[Span]) -> list[str]:
    """Return partitions that had fewer in-sync replicas than this within one of the intervals."""
    found = []
    for span in spans:
        for one in timeline.isr:
            if not span.begin <= one.at <= span.end:
                continue
            found += [
                f"{span.name}: {name} had {size} in sync at {one.at:.1f}"
                for name, size in sorted(one.sizes.items())
                if size < least
            ]
    return found


def stale_statuses(timeline: Timeline) -> list[str]:
    """Return states of clusters and streams that tools would consider done too early."""
    found = []
    for one in timeline.seen:
        if one.kind in {CLUSTER, STREAM} and one.body is not None:
            found += [f"{one.kind} {one.name}, {text}" for text in stale_claims(one.body)]
    return found


def untrue_statuses(timeline: Timeline) -> list[str]:
    """Return times at which the cluster became Current while its pods did not match its spec."""
    found = []
    before: Mapping[str, Any] | None = None
    for one in timeline.of(CLUSTER, timeline.cluster):
        body = one.body
        if body is None:
            before = None
            continue
        became = kstatus(body) == "Current" and (before is None or kstatus(before) != "Current")
        before = body
        if not became or _was_so(timeline, body["spec"], one.at):
            continue
        found.append(f"generation {body['metadata']['generation']} was Current at {one.at:.1f}")
    return found


def _was_so(timeline: Timeline, spec: Mapping[str, Any], at: float) -> bool:
    """Return whether shortly before, all wanted pods were ready, with this image."""
    begin, end = at - OBSERVATION_SECONDS, at + SKEW_SECONDS
    pods: dict[str, Seen] = {}
    wanted = 0 if spec.get("suspend") else spec["replicas"]
    for one in [*timeline.of(POD), Seen(end, POD, "", None)]:
        if one.at > end:
            break
        if one.at >= begin and _fits(pods.values(), wanted, spec.get("image")):
            return True
        if one.body is None:
            pods.pop(one.name, None)
        elif one.name.startswith(f"{timeline.cluster}-"):
            pods[one.name] = one
    return _fits(pods.values(), wanted, spec.get("image"))


def _fits(pods: Iterable[Seen], wanted: int, image: str | None) -> bool:
    present = [pod for pod in pods if pod.body is not None]
    return len(present) == wanted and all(
        is_up(one) and image in {None, one.body["images"].get("broker")}
        for one in present
        if one.body is not None
    )


def unexplained_waits(timeline: Timeline, seconds_max: float = 60.0) -> list[str]:
    """Return times in which the cluster was not ready for long and its status had no wait.

    A time counts as long as the same status remains: a changed status shows progress.
    """
    found = []
    states = [one for one in timeline.of(CLUSTER, timeline.cluster) if one.body is not None]
    for one, later in pairwise(states):
        body = one.body
        assert body is not None
        is_silent = kstatus(body) == "InProgress" and not body["status"].get("waits")
        if is_silent and later.at - one.at > seconds_max:
            found.append(f"nothing was told for {later.at - one.at:.0f} s from {one.at:.1f} on")
    return found


def container_restarts(timeline: Timeline) -> dict[str, int]:
    """Return the number of restarts by pod and container; only containers that restarted."""
    counts: dict[str, int] = {}
    for one in timeline.of(POD):
        for name, count in (one.body or {}).get("restarts", {}).items():
            key = f"{one.name}/{name}"
            counts[key] = max(counts.get(key, 0), count)
    return {name: count for name, count in counts.items() if count}


def reasons(timeline: Timeline, condition: str) -> list[tuple[str, str]]:
    """Return statuses and reasons of a condition of the cluster, in order, without repetitions."""
    told: list[tuple[str, str]] = []
    for one in timeline.of(CLUSTER, timeline.cluster):
        for each in (one.body or {}).get("status", {}).get("conditions", ()):
            pair = (each["status"], each["reason"])
            if each["type"] == condition and told[-1:] != [pair]:
                told.append(pair)
    return told
