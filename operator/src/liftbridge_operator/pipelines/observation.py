"""Observation of a pipeline: its workload and its pods, as values.

Nothing here raises for contents of an object: missing or malformed fields are read as absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from liftbridge_operator.kube.kinds import DEPLOYMENTS, JOBS
from liftbridge_operator.pipelines import names

Json = Mapping[str, Any]

MESSAGE_CHARACTERS_MAX: Final = 400
STUCK: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons for which a container waits until a user acts."""


class Ended(NamedTuple):
    """A completed run.

    Attributes:
        ended: Time of its end, as the API server writes it; empty when unknown.
        exit_code: Exit code of `liftbridge spark`; -1 when unknown.
        message: End of its log, when it failed.
    """

    ended: str
    exit_code: int
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    """A pod of the pipeline.

    Attributes:
        began: When its container started; empty while it does not run.
        ended: Last termination of its container.
        stuck: Cause that keeps it from starting; empty for none.
    """

    pod: str
    began: str
    ended: Ended | None
    stuck: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Object that runs the job.

    Attributes:
        name: Display name: kind and name.
        is_current: Whether its controller has seen the present specification.
        active: Number of active pods, or of active Jobs of a schedule.
        is_complete: Whether a single run has completed.
        is_failed: Whether a single run has failed permanently.
    """

    name: str
    is_current: bool
    active: int
    is_complete: bool = False
    is_failed: bool = False


def workload_of(body: Json) -> Workload:
    """Parse a workload object."""
    metadata, status = body["metadata"], body.get("status") or {}
    name = f"{body['kind']}/{metadata['name']}"
    if body["kind"] == DEPLOYMENTS.kind:
        is_current = status.get("observedGeneration", 0) >= metadata.get("generation", 1)
        ready = status.get("updatedReplicas", 0) and status.get("readyReplicas", 0)
        return Workload(name, bool(is_current), int(ready))
    if body["kind"] == JOBS.kind:
        done = {
            condition.get("type")
            for condition in status.get("conditions") or ()
            if condition.get("status") == "True"
        }
        return Workload(
            name,
            is_current=True,
            active=int(status.get("active") or 0),
            is_complete="Complete" in done,
            is_failed="Failed" in done,
        )
    return Workload(name, is_current=True, active=len(status.get("active") or ()))


def run_of(body: Json) -> Run:
    """Parse a pod into a run."""
    status = body.get("status") or {}
    container: Json = next(
        (
            reported
            for reported in status.get("containerStatuses") or ()
            if reported.get("name") == names.CONTAINER
        ),
        {},
    )
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    waiting = state.get("waiting") or {}
    stuck = _shown(waiting) if waiting.get("reason") in STUCK else _unscheduled(status)
    return Run(
        str(body["metadata"]["name"]),
        str((state.get("running") or {}).get("startedAt") or ""),
        _ended(ended) if ended else None,
        stuck,
    )


def _unscheduled(status: Json) -> str:
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            return _shown(condition)
    return ""


def _shown(found: Json) -> str:
    words = [str(found.get(name) or "") for name in ("reason", "message")]
    return shortened(": ".join(filter(None, words)))


def _ended(found: Json) -> Ended:
    message = str(found.get("message") or found.get("reason") or "")
    code = found.get("exitCode")
    return Ended(
        str(found.get("finishedAt") or ""),
        code if isinstance(code, int) else -1,
        shortened(message) if code else "",
    )


def shortened(text: str) -> str:
    """Join a text to one line and keep its end: the last line of a log matters most."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARACTERS_MAX else f"… {line[-MESSAGE_CHARACTERS_MAX:]}"


def last_ended(runs: Iterable[Run]) -> Ended | None:
    """Return the run that ended last."""
    found = (run.ended for run in runs if run.ended is not None)
    return max(found, key=lambda one: one.ended, default=None)
