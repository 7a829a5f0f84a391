"""Build the whole status of a `StreamPipeline` from the observation; stable without change."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from liftbridge_operator.cluster.observing.times import moment_text, since_text
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import PipelineConditionType
from liftbridge_operator.model.pipeline import PIPELINE_KIND, PipelineStatus, PipelineType
from liftbridge_operator.pipelines import names, positions
from liftbridge_operator.pipelines.conditions import Seen, conditions
from liftbridge_operator.pipelines.observation import last_ended

_KEPT: Final = ("lag", "partitions", "others")


def status_of(
    seen: Seen,
    namespace: str,
    name: str,
    *,
    before: Mapping[str, Any],
    generation: int,
    now_ms: int,
) -> dict[str, Any]:
    """Build the whole status in its manifest form.

    Args:
        seen: The observation.
        namespace: Namespace of the pipeline.
        name: Name of the pipeline.
        before: The present status.
        generation: Observed `metadata.generation`.
        now_ms: Unix milliseconds.
    """
    now = moment_text(now_ms)
    status: dict[str, Any] = {"observedGeneration": generation}
    workload = seen.workload
    if workload is not None:
        status["workload"] = workload.name
    elif "workload" in before:
        status["workload"] = before["workload"]
    if seen.spec is not None and seen.spec.type is PipelineType.ARCHIVE:
        status["cursor"] = names.cursor(namespace, name)
        found = seen.progress.positions
        if found is None:  # old positions stay, and the condition reports that
            status |= {key: before[key] for key in _KEPT if key in before}
        else:
            status |= positions.status_of(found, before, now)
    ended = last_ended(seen.runs)
    if ended is not None:
        status["lastRun"] = {
            "exitCode": ended.exit_code,
            "message": ended.message,
            **({"ended": ended.ended} if ended.ended else {}),
        }
    elif "lastRun" in before:
        status["lastRun"] = before["lastRun"]
    known = {condition["type"]: condition for condition in before.get("conditions") or ()}
    status["conditions"] = [
        _condition(kind, claim, known.get(kind.value), generation, now_ms)
        for kind, claim in conditions(seen).items()
    ]
    return status


def _condition(
    kind: PipelineConditionType,
    claim: Claim,
    before: Mapping[str, Any] | None,
    generation: int,
    now_ms: int,
) -> dict[str, Any]:
    spec = load_catalogue().condition(PIPELINE_KIND, kind).reasons[claim.reason]
    since = moment_text(now_ms)
    if before is not None and before["status"] == spec.status:
        since = since_text(before["lastTransitionTime"], now_ms)
    return {
        "type": kind.value,
        "status": spec.status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": spec.reason,
        "message": spec.text.fill(claim.values),
    }


def is_same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two statuses are equal, after defaults of the API server."""
    try:
        return PipelineStatus.model_validate(status) == PipelineStatus.model_validate(before)
    except ValidationError:
        return False
