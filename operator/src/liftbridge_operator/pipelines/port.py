"""Ports of the pipeline reconciler: brokers of one cluster, Events, and condition metrics.

Every call ends within a bound of the adapter.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.pipelines.positions import Positions
from liftbridge_operator.process.reconciler import Key


class SilentError(Exception):
    """No broker that could answer did."""


class UnknownStreamError(Exception):
    """There is no such stream; the text is its name."""


class CursorError(Exception):
    """No broker returns the cursor; the text is the cause."""


class PipelineBrokers(Protocol):
    """The brokers of one cluster."""

    @property
    def answered(self) -> str:
        """Address of the broker that answered last; of any broker before that."""
        ...

    async def positions(self, stream: str, cursor: str) -> Positions:
        """Return the archive positions of all partitions of a stream.

        Args:
            stream: Name of the stream.
            cursor: Name of the cursor, which holds the first offset that is not archived.

        Raises:
            SilentError: A partition has no leader that answers.
            UnknownStreamError: There is no such stream.
            CursorError: The brokers keep no cursors, or those cannot be read now.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class PipelineEvents(Protocol):
    """Writes Kubernetes Events of a resource."""

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an Event of the catalogue, and drop it if that fails."""
        ...


class PipelineBoard(Protocol):
    """Keeps the conditions of resources, for metrics."""

    def set_conditions(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that was deleted."""
        ...
