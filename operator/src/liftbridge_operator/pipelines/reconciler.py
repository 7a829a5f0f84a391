"""One pass over one `StreamPipeline`: observe, apply the objects, ask the brokers, report.

A pass writes nothing when nothing changed. It only reads from brokers, at bounded intervals: each
written status causes another pass by its watch event, and records keep arriving.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from liftbridge_operator.cluster.acting.whole import Kept
from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.cluster.planning.clock import Moments
from liftbridge_operator.kube.errors import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CLUSTERS, PIPELINES
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import EventReason, PipelineConditionType, Reason
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.pipeline import PipelineMode, PipelineType
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.apply import (
    Applied,
    Applier,
    HinderedError,
    about,
    apply_all,
    kinds_of,
    pods_of,
)
from liftbridge_operator.pipelines.commands import interval_seconds
from liftbridge_operator.pipelines.conditions import Progress, Seen, failure_of
from liftbridge_operator.pipelines.observation import (
    Run,
    Workload,
    last_ended,
    run_of,
    workload_of,
)
from liftbridge_operator.pipelines.port import (
    CursorError,
    PipelineBoard,
    PipelineBrokers,
    PipelineEvents,
    SilentError,
    UnknownStreamError,
)
from liftbridge_operator.pipelines.positions import Mark, Place, Position, judge
from liftbridge_operator.pipelines.render import render
from liftbridge_operator.pipelines.resources import UnreadableError, pipeline_of
from liftbridge_operator.pipelines.status import is_same, status_of
from liftbridge_operator.pipelines.subject import Means, Pipeline, UnreachableError, reach_of
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.reconciler import Key, RequeueAfter

LOOK_SECONDS: Final = 30.0
"""Interval of passes over an active pipeline."""

LOAD_SHARE: Final = 10.0
"""Minimum pause between passes, as a multiple of the duration of the last pass."""

FRESH_SECONDS: Final = 0.9 * LOOK_SECONDS
"""Minimum time between two requests to the brokers; passes caused by events in between reuse the
last answer. It is less than `LOOK_SECONDS`, so that each regular pass asks."""

ASK_SECONDS: Final = 20.0
"""Bound of requests to brokers within a pass; less than that of a pass, so that it can report."""

CONNECTED_SECONDS: Final = 300.0
"""Age at which connections are reopened, with the present certificates and brokers."""

RECOVERED_MS: Final = 300_000
"""Time that a pod has to run after a failure to count as recovered."""


class _Connection(NamedTuple):
    """Connection to the brokers of a cluster."""

    brokers: PipelineBrokers
    uid: str
    generation: int
    since_s: float


class _Asked(NamedTuple):
    """Cached answer of the brokers.

    Attributes:
        about: Cache key: generations of pipeline and cluster, and whether the run is done.
        until_s: Time until which the answer is valid.
    """

    about: tuple[object, ...]
    until_s: float
    progress: Progress


class PipelineReconciler:
    """See `process.reconciler.Reconciler`."""

    def __init__(
        self,
        kube: Kube,
        connect: Callable[[Object, str], Awaitable[PipelineBrokers]],
        events: PipelineEvents,
        clock: Clock,
        *,
        board: PipelineBoard,
        means: Means,
        deadline: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        """Start with an empty memory.

        Args:
            kube: The API server.
            connect: Connects to the brokers of a cluster resource, and asks the broker at the given
                address first; raises `SilentError`.
            events: Writes Kubernetes Events.
            clock: Time.
            board: Receives conditions.
            means: Image and role that the operator provides.
            deadline: Bounds a wait by seconds.
        """
        self._kube = kube
        self._connect = connect
        self._events = events
        self._clock = clock
        self._board = board
        self._means = means
        self._deadline = deadline
        self._connections: dict[Key, _Connection] = {}
        self._marks: dict[Key, Mark] = {}
        self._asked: dict[Key, _Asked] = {}
        self._kept = defaultdict[Key, dict[str, Kept]](dict)
        self._ahead: dict[Key, dict[int, int]] = {}
        self._missed: set[Key] = set()

    async def close(self) -> None:
        """Close the connections to all brokers."""
        for key in list(self._connections):
            await self._disconnect(key)

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """See `Reconciler`."""
        began = self._clock.now()
        try:
            body = await self._kube.get(PIPELINES, key.namespace, key.name)
        except NotFoundError:
            await self._forget(key)
            return None
        if body["metadata"].get("deletionTimestamp"):
            return None  # the garbage collector deletes what it owns
        seen, drift = await self._looked(key, body)
        written = await self._write_status(key, body, seen)
        for name, fields in drift:
            values = {"object": name, "fields": fields}
            await self._events.record(written, EventReason.DRIFT_REPAIRED, values)
        await self._record_failure(body, written, seen)
        if _is_at_rest(seen):
            return None
        return RequeueAfter(max(LOOK_SECONDS, (self._clock.now() - began) * LOAD_SHARE))

    async def _forget(self, key: Key) -> None:
        self._marks.pop(key, None)
        self._asked.pop(key, None)
        self._kept.pop(key, None)
        self._ahead.pop(key, None)
        self._missed.discard(key)
        self._board.forget(key)
        await self._disconnect(key)

    # -- observe ------------------------------------------------------------------------------

    async def _looked(self, key: Key, body: Object) -> tuple[Seen, list[tuple[str, str]]]:
        """Run `_look`; report an unanswered request if it is the second one in a row.

        While the API server is unavailable, that report cannot be written either.
        """
        try:
            found = await self._look(key, body)
        except UnavailableError as error:
            if key not in self._missed:
                self._missed.add(key)
                raise
            pipeline = pipeline_of(body)
            claim = Claim(Reason.REFUSED, {"object": "a request", "detail": error.message})
            unknown = Progress(unknown=_unreachable(pipeline, error.message))
            return Seen(pipeline.spec, claim, None, (), unknown), []
        self._missed.discard(key)
        return found

    async def _look(self, key: Key, body: Object) -> tuple[Seen, list[tuple[str, str]]]:
        """Apply all objects; return the observation and the reverted drift."""
        nothing = Seen(None, None, None, (), Progress())
        try:
            pipeline = pipeline_of(body)
        except UnreadableError as error:
            return replace(nothing, obstacle=_invalid(str(error))), []
        found = await self._cluster(pipeline)
        if isinstance(found, Claim):
            unknown = Progress(unknown=_unreachable(pipeline, "it is not there"))
            runs, _ = await self._runs(pipeline)
            return Seen(pipeline.spec, found, None, runs, unknown), []
        brought = await self._apply(key, pipeline, found, body)
        runs, unlisted = await self._runs(pipeline)
        obstacle = brought.obstacle or unlisted
        workload = workload_of(brought.workload) if brought.workload is not None else None
        progress = await self._progress(key, pipeline, found, body, workload)
        is_recovered = _is_recovered(runs, self._moments(key))
        seen = Seen(pipeline.spec, obstacle, workload, runs, progress, is_recovered)
        return seen, brought.drift

    async def _cluster(self, pipeline: Pipeline) -> Object | Claim:
        """Read the resource of the cluster, or return the reason against its use."""
        ref = pipeline.spec.cluster_ref
        namespace = ref.namespace or pipeline.namespace
        shown = f"{namespace}/{ref.name}"
        try:
            with about(f"{CLUSTERS.kind} {shown}"):
                body = await self._kube.get(CLUSTERS, namespace, ref.name)
        except HinderedError as hindered:
            if not isinstance(hindered.__cause__, NotFoundError | ForbiddenError):
                return hindered.claim
            return Claim(Reason.CLUSTER_NOT_FOUND, {"cluster": shown})
        allowed = (body.get("spec", {}).get("streams") or {}).get("allowedNamespaces") or ()
        if namespace != pipeline.namespace and not {"*", pipeline.namespace} & set(allowed):
            values = {"cluster": shown, "namespace": pipeline.namespace}
            return Claim(Reason.NOT_ALLOWED, values)
        return body

    async def _apply(self, key: Key, pipeline: Pipeline, cluster: Object, body: Object) -> Applied:
        try:
            spec = ClusterSpec.model_validate(cluster.get("spec", {}))
            wanted = render(pipeline, reach_of(pipeline, spec), self._means)
        except ValidationError:
            name = cluster["metadata"]["name"]
            return Applied(obstacle=_invalid(f"cluster {name} cannot be read"))
        except UnreachableError as error:
            return Applied(obstacle=_invalid(str(error)))
        applier = Applier(
            self._kube,
            kinds_of(self._means),
            self._kept[key],
            int(self._clock.now() * 1_000),  # only this process remembers it
            _former(body),
        )
        return await apply_all(applier, wanted, pipeline.uid)

    async def _runs(self, pipeline: Pipeline) -> tuple[tuple[Run, ...], Claim | None]:
        """Return the runs of a pipeline, or why they are unknown."""
        try:
            pods = await pods_of(self._kube, pipeline.namespace, pipeline.name)
        except HinderedError as hindered:
            return (), hindered.claim
        return tuple(run_of(pod) for pod in pods), None

    def _moments(self, key: Key) -> Moments:
        """Return the corrector of times that the API server and kubelets wrote for a pipeline."""
        moments = Moments(self._now_ms(), self._ahead.get(key, {}))
        self._ahead[key] = moments.ahead
        return moments

    def _now_ms(self) -> int:
        """Return the time of day, Unix milliseconds."""
        return int(self._clock.wall().timestamp() * 1_000)

    # -- ask ----------------------------------------------------------------------------------

    async def _progress(
        self,
        key: Key,
        pipeline: Pipeline,
        cluster: Object,
        body: Object,
        workload: Workload | None,
    ) -> Progress:
        """Return the progress of the archive, from the brokers or a recent answer."""
        if pipeline.spec.type is not PipelineType.ARCHIVE:
            return Progress()
        metadata = cluster["metadata"]
        about = (
            (pipeline.uid, pipeline.generation),
            (metadata["uid"], metadata.get("generation", 0)),
            # A completed run gets no further pass: its final progress is requested at its end.
            workload is not None and (workload.is_complete or workload.is_failed),
        )
        began = self._clock.now()
        known = self._asked.get(key)
        if known is not None and known.about == about and began < known.until_s:
            return known.progress
        progress = await self._ask(key, pipeline, cluster, body)
        took = self._clock.now() - began
        until_s = began + max(FRESH_SECONDS, took * LOAD_SHARE)
        self._asked[key] = _Asked(about, until_s, progress)
        return progress

    async def _ask(self, key: Key, pipeline: Pipeline, cluster: Object, body: Object) -> Progress:
        cursor = names.cursor(pipeline.namespace, pipeline.name)
        found: dict[Place, Position] = {}
        try:
            async with self._deadline(ASK_SECONDS):
                brokers = await self._reached(key, cluster)
                for stream in pipeline.spec.source.streams:
                    found |= await brokers.positions(stream, cursor)
        except TimeoutError:
            # The connection stays: it remembers brokers that do not answer.
            detail = f"the brokers did not report everything within {ASK_SECONDS:.0f} s"
            return Progress(unknown=_unreachable(pipeline, detail))
        except UnknownStreamError as error:
            return Progress(unknown=Claim(Reason.NOT_FOUND, {"stream": str(error)}))
        except CursorError as error:
            values = {"cursor": cursor, "detail": str(error)}
            return Progress(unknown=Claim(Reason.CURSOR_UNKNOWN, values))
        except (SilentError, KubeError) as error:
            # The brokers may have other addresses now, or require another certificate.
            await self._disconnect(key)
            return Progress(unknown=_unreachable(pipeline, str(error)))
        mark = self._marks.get(key)
        if mark is None and _was_caught_up(body):
            # A former process reported so; its marks are lost.
            now_s = self._clock.now()
            marks = {place: one.high_watermark for place, one in found.items()}
            mark = Mark(now_s, marks, is_caught_up=True)
        mark = judge(found, mark, self._clock.now(), interval_seconds(pipeline))
        self._marks[key] = mark
        return Progress(found, mark.is_caught_up)

    async def _reached(self, key: Key, cluster: Object) -> PipelineBrokers:
        metadata = cluster["metadata"]
        known = self._connections.get(key)
        now_s = self._clock.now()
        if known is not None:
            is_same_cluster = (known.uid, known.generation) == (
                metadata["uid"],
                metadata.get("generation", 0),
            )
            if is_same_cluster and now_s - known.since_s < CONNECTED_SECONDS:
                return known.brokers
            await self._disconnect(key)
        # A broker that did not answer the last time would cost another time-out.
        brokers = await self._connect(cluster, "" if known is None else known.brokers.answered)
        self._connections[key] = _Connection(
            brokers, metadata["uid"], metadata.get("generation", 0), now_s
        )
        return brokers

    async def _disconnect(self, key: Key) -> None:
        known = self._connections.pop(key, None)
        if known is not None:
            await known.brokers.close()

    # -- report -------------------------------------------------------------------------------

    async def _write_status(self, key: Key, body: Object, seen: Seen) -> Object:
        """Write the status if it changes; return the resource afterwards."""
        before: Mapping[str, Any] = body.get("status") or {}
        metadata = body["metadata"]
        status = status_of(
            seen,
            key.namespace,
            key.name,
            before=before,
            generation=metadata.get("generation", 1),
            now_ms=self._now_ms(),
        )
        self._board.set_conditions(key, status["conditions"])
        if is_same(status, before):
            return body
        return await self._kube.apply_status(
            {
                "apiVersion": PIPELINES.api_version,
                "kind": PIPELINES.kind,
                "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
                "status": status,
            }
        )

    async def _record_failure(self, body: Object, resource: Object, seen: Seen) -> None:
        """Write an Event for a failed run that was not reported before."""
        failed = failure_of(seen)
        before = (body.get("status") or {}).get("lastRun") or {}
        if failed is None or (before.get("ended", ""), before.get("exitCode")) == failed[:2]:
            return
        if not failed.ended and _has_reported_failure(body):
            return  # the pods that would distinguish two failures no longer exist
        values = {"code": failed.exit_code, "detail": failed.message or "its log is empty"}
        await self._events.record(resource, EventReason.RUN_FAILED, values)


def _invalid(detail: str) -> Claim:
    return Claim(Reason.INVALID_SPEC, {"detail": detail})


def _unreachable(pipeline: Pipeline, detail: str) -> Claim:
    values = {"cluster": pipeline.spec.cluster_ref.name, "detail": detail}
    return Claim(Reason.CLUSTER_UNREACHABLE, values)


def _was_caught_up(body: Object) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    kind = PipelineConditionType.CAUGHT_UP.value
    return any(
        (condition["type"], condition["status"]) == (kind, "True") for condition in conditions
    )


def _has_reported_failure(body: Object) -> bool:
    reported = (body.get("status") or {}).get("conditions") or ()
    ready = (PipelineConditionType.READY.value, "False", Reason.RUN_FAILED.value)
    return any((one["type"], one["status"], one["reason"]) == ready for one in reported)


def _former(body: Object) -> str | None:
    """Return the last reported workload; None once this specification was fully applied."""
    status: Mapping[str, Any] = body.get("status") or {}
    is_same = status.get("observedGeneration") == body["metadata"].get("generation", 1)
    blocked = (PipelineConditionType.PROGRESSING.value, Reason.BLOCKED.value)
    is_blocked = blocked in {
        (condition["type"], condition["reason"]) for condition in status.get("conditions") or ()
    }
    return None if is_same and not is_blocked else str(status.get("workload") or "")


def _is_recovered(runs: tuple[Run, ...], moments: Moments) -> bool:
    """Return whether a pod started after the last failure has run for `RECOVERED_MS`."""
    ended = last_ended(runs)
    return ended is not None and any(
        run.began > ended.ended and moments.age_ms(moment_ms(run.began)) >= RECOVERED_MS
        for run in runs
    )


def _is_at_rest(seen: Seen) -> bool:
    """Return whether watches and the resync suffice, without periodic passes."""
    spec, workload = seen.spec, seen.workload
    if spec is None:
        return True
    if seen.obstacle is not None:
        return False
    is_done = workload is not None and (workload.is_complete or workload.is_failed)
    return spec.mode is PipelineMode.ONCE and is_done
