"""Compute the conditions of a pipeline from the observation: pure and total."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import PipelineConditionType, Reason
from liftbridge_operator.model.pipeline import PipelineMode, PipelineSpec, PipelineType
from liftbridge_operator.pipelines.observation import Ended, Run, Workload, last_ended
from liftbridge_operator.pipelines.positions import Positions, behind

MISSING: Final = 5
"""Exit code of `liftbridge spark`: records are missing."""

Type = PipelineConditionType


Claims = Mapping[PipelineConditionType, Claim]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an archive.

    Attributes:
        positions: Positions of all partitions; None when unknown.
        is_caught_up: See `positions.judge`.
        unknown: Cause of unknown positions.
    """

    positions: Positions | None = None
    is_caught_up: bool = False
    unknown: Claim | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Observation of a pass.

    Attributes:
        spec: None when it cannot be read.
        obstacle: Problem that blocked the apply of objects; None when all are as rendered.
        workload: None while there is none.
        runs: Pods, including those of earlier runs.
        is_recovered: Whether the present pod has run for `RECOVERED_MS` since the last failure.
    """

    spec: PipelineSpec | None
    obstacle: Claim | None
    workload: Workload | None
    runs: tuple[Run, ...]
    progress: Progress
    is_recovered: bool = False


def conditions(seen: Seen) -> Claims:
    """Compute all conditions."""
    failed = failure_of(seen)
    return {
        Type.READY: _ready(seen, failed),
        Type.PROGRESSING: _progressing(seen),
        Type.DEGRADED: _degraded(seen, failed),
        Type.CAUGHT_UP: _caught_up(seen),
        Type.DATA_LOSS: _data_loss(failed),
    }


def failure_of(seen: Seen) -> Ended | None:
    """Return the failure of the last run; None when it did not fail, or has recovered."""
    workload = seen.workload
    if workload is not None and workload.is_complete:
        return None
    ended = last_ended(seen.runs)
    if ended is not None and ended.exit_code and not seen.is_recovered:
        return ended
    if workload is not None and workload.is_failed:
        return Ended("", -1, "its pods are gone; see the events of the Job")
    return None


def _ready(seen: Seen, failed: Ended | None) -> Claim:
    if seen.obstacle is not None:
        return seen.obstacle
    spec, workload = seen.spec, seen.workload
    assert spec is not None, "what cannot be read is an obstacle"
    assert workload is not None, "what is not there was made, or could not be"
    if spec.suspend and not workload.is_complete:
        return Claim(Reason.SUSPENDED)
    if failed is not None:
        return _run_failed(failed)
    return _at_work(spec, workload, seen.runs)


def _at_work(spec: PipelineSpec, workload: Workload, runs: tuple[Run, ...]) -> Claim:
    """Return the claim of a healthy job."""
    named = {"workload": workload.name}
    match spec.mode:
        case PipelineMode.CONTINUOUS:
            is_up = workload.is_current and workload.active
            return Claim(Reason.RUNNING if is_up else Reason.STARTING, named)
        case PipelineMode.SCHEDULED:
            assert spec.schedule is not None, "one without is refused as it is read"
            return Claim(Reason.SCHEDULED, {"cron": spec.schedule.cron})
        case PipelineMode.ONCE:
            if workload.is_complete:
                return Claim(Reason.COMPLETE)
            is_up = any(run.began for run in runs)
            return Claim(Reason.RUN_UNDER_WAY if is_up else Reason.STARTING, named)


def _run_failed(failed: Ended) -> Claim:
    detail = failed.message or "its log is empty"
    return Claim(Reason.RUN_FAILED, {"code": failed.exit_code, "detail": detail})


def _progressing(seen: Seen) -> Claim:
    if seen.obstacle is not None:
        return Claim(Reason.BLOCKED)
    spec, workload = seen.spec, seen.workload
    assert spec is not None, "what cannot be read is an obstacle"
    assert workload is not None, "what is not there was made, or could not be"
    named = {"workload": workload.name}
    if spec.mode is PipelineMode.ONCE and (workload.is_complete or workload.is_failed):
        return Claim(Reason.COMPLETE)
    if spec.suspend and not (spec.mode is PipelineMode.SCHEDULED and workload.active):
        return Claim(Reason.SUSPENDED)
    if spec.mode is PipelineMode.CONTINUOUS:
        is_up = workload.is_current and workload.active
        return Claim(Reason.RECONCILED if is_up else Reason.STARTING, named)
    if spec.mode is PipelineMode.SCHEDULED and not workload.active:
        return Claim(Reason.RECONCILED, named)
    is_up = any(run.began for run in seen.runs)
    return Claim(Reason.RUN_UNDER_WAY if is_up else Reason.STARTING, named)


def _degraded(seen: Seen, failed: Ended | None) -> Claim:
    stuck = next((run for run in seen.runs if run.stuck), None)
    if stuck is not None:
        return Claim(Reason.POD_STUCK, {"pod": stuck.pod, "detail": stuck.stuck})
    return _run_failed(failed) if failed is not None else Claim(Reason.NONE)


def _caught_up(seen: Seen) -> Claim:
    if seen.spec is None or seen.spec.type is not PipelineType.ARCHIVE:
        return Claim(Reason.NOT_MEASURED)
    progress = seen.progress
    if progress.positions is None:
        assert progress.unknown is not None, "what is not known is not for a reason"
        return progress.unknown
    if seen.spec.mode is not PipelineMode.CONTINUOUS or seen.spec.suspend:
        # Between two runs an archive falls behind by design.
        return Claim(Reason.NOT_MEASURED)
    if progress.is_caught_up:
        return Claim(Reason.CAUGHT_UP, {"partitions": len(progress.positions)})
    return Claim(Reason.BEHIND, {"partitions": len(behind(progress.positions))})


def _data_loss(failed: Ended | None) -> Claim:
    if failed is not None and failed.exit_code == MISSING:
        return Claim(Reason.RECORDS_MISSING, {"detail": failed.message or "see its log"})
    return Claim(Reason.NONE)
