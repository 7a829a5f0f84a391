"""Cause of a pod's failure with a revision, from its status; kept after the pod is deleted."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from liftbridge_operator.cluster.observing.objects import (
    CONFIG_REASONS,
    PULL_REASONS,
    annotation_of,
    metadata_of,
    set_of,
)
from liftbridge_operator.cluster.observing.reads import Reads
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster_status import FailedRevision

Json = Mapping[str, Any]

CAUSE_MAX: Final = 256
_PULLED: Final = "ImagePullBackOff"


def failed_revision(reads: Reads, desired: str) -> FailedRevision | None:
    """Return the failure of the revision being tried, or of the reverted one; None for none.

    The reported failure stays while its kind stays: Kubernetes alternates between texts.

    Args:
        reads: Reads of the pass.
        desired: Desired revision; failures of other revisions are ignored.
    """
    if reads.set is None:
        return None
    brokers = set_of(reads.set)
    tried = {brokers.revision, brokers.bad_revision} & {desired} - {brokers.good_revision}
    kept = (reads.resource.get("status") or {}).get("failedRevision")
    before = FailedRevision.model_validate(kept) if kept else None
    if before is not None and before.revision not in tried:
        before = None
    for pod in reads.pods:
        revision, cause = annotation_of(pod, names.REVISION), _cause(pod)
        if revision in tried and cause and not _is_same(before, revision, cause):
            name = str(metadata_of(pod)["name"])
            return FailedRevision(revision=revision, pod=name, cause=cause[:CAUSE_MAX])
    return before


def _is_same(before: FailedRevision | None, revision: str, cause: str) -> bool:
    """Return whether a failure has the reported revision and kind."""
    kind = cause.partition(":")[0]
    return before is not None and (
        before.revision == revision and before.cause.partition(":")[0] == kind
    )


def _cause(pod: Json) -> str:
    """Return the kind of a failure with its detail; empty for none."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"Unschedulable: {condition.get('message') or 'no node takes the pod'}"
    return next(_of_containers(pod, status), "")


def _of_containers(pod: Json, status: Json) -> Iterator[str]:
    spec = pod.get("spec") or {}
    listed = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    images = {one.get("name"): one.get("image") for one in listed}
    for one in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        state, name = one.get("state") or {}, one.get("name")
        reason = str((state.get("waiting") or {}).get("reason") or "")
        if reason in PULL_REASONS:
            kind = _PULLED if reason == "ErrImagePull" else reason
            yield f"{kind}: image {images.get(name) or one.get('image')} of container {name}"
        elif reason in CONFIG_REASONS:
            yield f"{reason}: {state['waiting'].get('message') or f'container {name}'}"
        ended = state.get("terminated") or (one.get("lastState") or {}).get("terminated") or {}
        if reason == "CrashLoopBackOff" or (state.get("terminated") and ended.get("exitCode")):
            code = ended.get("exitCode")
            suffix = f" with exit code {code}" if code is not None else ""
            yield f"CrashLoopBackOff: container {name} ends{suffix}"
