"""Archives in memory behind the port of the pipeline reconciler, and pipelines as manifests.

brokers = MemoryArchives()
brokers.put("orders", 0, high_watermark=10, archived=4)
brokers.trouble = SilentError("nobody")     # the next questions are answered so
"""

from typing import TYPE_CHECKING, Any, Final

from liftbridge_operator.kube.kinds import PIPELINES
from liftbridge_operator.kube.port import Object
from liftbridge_operator.pipelines.port import UnknownStreamError
from liftbridge_operator.pipelines.positions import Place, Position, Positions

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A `StreamPipeline` that archives a stream without end; a change of None takes a field out."""
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
        asked: Streams and cursors that were asked for, in order.
        answered: See `PipelineBrokers`.
        is_closed: Whether nobody uses it any more.
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
        """Say how far the archive of a partition has come."""
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
