"""Parse a `StreamPipeline` object of the API server."""

from typing import Any

from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.pipeline import PipelineMode, PipelineSpec, PipelineType, Runtime
from liftbridge_operator.pipelines.render import digest
from liftbridge_operator.pipelines.subject import Pipeline

_ARCHIVED = (PipelineType.ARCHIVE, PipelineType.REPLAY, PipelineType.COMPACT)


class UnreadableError(ValueError):
    """The specification cannot be read: it may be of another CRD version."""


def pipeline_of(body: Object) -> Pipeline:
    """Parse an object into a pipeline.

    Raises:
        UnreadableError: Its specification cannot be read.
    """
    metadata: dict[str, Any] = body["metadata"]
    given: dict[str, Any] = body.get("spec", {})
    spec, unread = PipelineSpec.read_spec(given)
    if spec is None:
        raise UnreadableError(unread)
    if not _is_whole(spec):
        raise UnreadableError("it breaks the rules of its definition")
    return Pipeline(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        spec=spec,
        asked=digest({name: value for name, value in given.items() if name != "suspend"}),
    )


def _is_whole(spec: PipelineSpec) -> bool:
    """Return whether dependent fields are set together, as the rules of the CRD require."""
    pairs = (
        (spec.type is PipelineType.REPLAY, spec.sink),
        (spec.type is PipelineType.CUSTOM, spec.script),
        (spec.mode is PipelineMode.SCHEDULED, spec.schedule),
        (spec.runtime is Runtime.EXECUTORS, spec.executors),
    )
    has_streams = spec.type is PipelineType.CUSTOM or bool(spec.source.streams)
    has_archive = spec.type not in _ARCHIVED or spec.archive is not None
    return has_streams and has_archive and all(is_due == (one is not None) for is_due, one in pairs)
