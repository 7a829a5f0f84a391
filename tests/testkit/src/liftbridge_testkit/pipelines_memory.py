"""Archives in memory behind the port of the pipeline reconciler, and pipelines as manifests.

brokers = MemoryArchives() brokers.put("orders", 0, high_watermark=10, archived=4) brokers.trouble =
SilentError("nobody") # the next requests get this error

world = PipelineWorld()                     # an operator over them
world.put(mode="Once")
await world.look()
assert world.workloads() == [("Job", "p-pipeline-1a2b3c4d")]
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from liftbridge_operator.kube.kinds import (
    CLUSTERS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    PIPELINES,
)
from liftbridge_operator.kube.port import Object
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.port import PipelineBrokers, UnknownStreamError
from liftbridge_operator.pipelines.positions import Place, Position, Positions
from liftbridge_operator.pipelines.reconciler import PipelineReconciler
from liftbridge_operator.pipelines.subject import Means
from liftbridge_operator.process.reconciler import Key, RequeueAfter
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.streams_memory import HeardEvents, ManualClock, SeenBoard

KEY: Final = Key(PIPELINES, "shop", "p")
MEANS: Final = Means("liftbridge-spark:1", "executors")

CLUSTER: Final[dict[str, Any]] = {
    "version": "0.1.0",
    "nats": {"embedded": {}},
    "storage": {"data": {"size": "1Gi"}},
}
ARCHIVE: Final[dict[str, Any]] = {
    "type": "Archive",
    "clusterRef": {"name": "c"},
    "source": {"streams": ["orders"]},
    "archive": {"root": "s3://bucket/archive"},
    "mode": "Continuous",
}


def pipeline(name: str = "p", namespace: str = "shop", **changes: Any) -> Object:
    """Return a `StreamPipeline` that archives a stream continuously.

    A change of None removes a field.
    """
    spec = {key: value for key, value in (ARCHIVE | changes).items() if value is not None}
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": PIPELINES.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


class MemoryArchives:
    """See `pipelines.port.PipelineBrokers`.

    Attributes:
        trouble: Raised instead of an answer; None for none.
        before_answer: Called before each answer.
        asked: Requested streams and cursors, in order.
        answered: See `PipelineBrokers`.
        is_closed: Whether it is no longer used.
    """

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.before_answer: Callable[[], None] = lambda: None
        self.asked: list[tuple[str, str]] = []
        self.answered = ""
        self.is_closed = False
        self._positions: dict[Place, Position] = {}

    def put(
        self, stream: str, partition: int, *, high_watermark: int, archived: int, log_start: int = 0
    ) -> None:
        """Set the progress of the archive of a partition."""
        position = Position(log_start, high_watermark, archived)
        self._positions[Place(stream, partition)] = position

    async def positions(self, stream: str, cursor: str) -> Positions:
        """See `PipelineBrokers`."""
        self.asked.append((stream, cursor))
        self.before_answer()
        if self.trouble is not None:
            raise self.trouble
        found = {place: one for place, one in self._positions.items() if place.stream == stream}
        if not found:
            raise UnknownStreamError(stream)
        return found

    async def close(self) -> None:
        """See `PipelineBrokers`."""
        self.is_closed = True


class PipelineWorld:
    """An operator, an API server and brokers.

    Attributes:
        connections: First address of each connection that was made.
    """

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.brokers = MemoryArchives()
        self.connections: list[str] = []
        self.clock = ManualClock()
        self.events = HeardEvents()
        self.board = SeenBoard()
        self.put_cluster()
        self.brokers.put("orders", 0, high_watermark=10, archived=9)
        self.reconciler = self.operator()

    def operator(
        self,
        means: Means = MEANS,
        connect: Callable[[Object, str], Awaitable[PipelineBrokers]] | None = None,
        **given: Any,
    ) -> PipelineReconciler:
        """Create an operator process without memory."""
        connect = connect or self.connect
        return PipelineReconciler(
            self.kube, connect, self.events, self.clock, board=self.board, means=means, **given
        )

    async def connect(self, _body: Object, first: str) -> MemoryArchives:
        """Reach the brokers."""
        self.connections.append(first)
        return self.brokers

    def put_cluster(self, namespace: str = "shop", **spec: Any) -> None:
        """Create the cluster, as a user."""
        metadata = {"name": "c", "namespace": namespace}
        named = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "metadata": metadata}
        self.kube.put({**named, "spec": CLUSTER | spec})

    def put(self, **changes: Any) -> None:
        """Write the pipeline with another specification, as a user."""
        wanted = pipeline(**changes)
        if self.kube.look(PIPELINES, "shop", "p") is None:
            self.kube.put(wanted)
        else:
            self.kube.edit(*KEY, lambda live: live.update(spec=wanted["spec"]))

    async def look(self, times: int = 1) -> RequeueAfter | None:
        """Run passes."""
        again = None
        for _ in range(times):
            again = await self.reconciler.reconcile(KEY)
        return again

    def up(self) -> None:
        """Act as the controllers: give the Deployment a running pod."""

        def ready(live: Object) -> None:
            generation = live["metadata"]["generation"]
            live["status"] = {
                "observedGeneration": generation,
                "updatedReplicas": 1,
                "readyReplicas": 1,
            }

        self.kube.edit(DEPLOYMENTS, "shop", "p-pipeline", ready)

    def put_pod(
        self,
        name: str = "p-pipeline-x",
        *,
        exit_code: int | None = None,
        is_running: bool = False,
        message: str = "",
    ) -> None:
        """Write a pod that runs or has ended."""
        now = (self.clock.wall()).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"exitCode": exit_code, "finishedAt": now, "message": message}
        state = {"running": {"startedAt": now}} if is_running else {}
        last = {"terminated": ended} if exit_code is not None else {}
        status = {"name": "spark", "state": state, "lastState": last}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "shop", "labels": names.labels("p")},
                "status": {"containerStatuses": [status]},
            }
        )

    @property
    def status(self) -> dict[str, Any]:
        """Return the status of the pipeline."""
        found = self.kube.look(*KEY)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def reason(self, kind: str) -> str:
        """Return the reason of a condition."""
        return str(self._condition(kind)["reason"])

    def message(self, kind: str) -> str:
        """Return the text of a condition."""
        return str(self._condition(kind)["message"])

    def _condition(self, kind: str) -> Object:
        found: Object = next(one for one in self.status["conditions"] if one["type"] == kind)
        return found

    def workloads(self) -> list[tuple[str, str]]:
        """Return kind and name of all objects that run the job."""
        return [
            (kind.kind, name)
            for kind in (DEPLOYMENTS, JOBS, CRON_JOBS)
            for name in self.kube.names_of(kind)
        ]
