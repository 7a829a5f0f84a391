"""What the operator asks the brokers of a cluster about archives, and whom it tells of events.

Every call ends within a bound of the adapter.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from liftbridge_operator.catalogue.names import EventReason
from liftbridge_operator.kube.port import Object
from liftbridge_operator.pipelines.positions import Positions
from liftbridge_operator.runtime.reconciler import Key


class SilentError(Exception):
    """Nobody answered, or nobody who could."""


class UnknownStreamError(Exception):
    """There is no such stream; the text is its name."""


class CursorError(Exception):
    """Nobody tells the cursor; the text says why."""


class PipelineBrokers(Protocol):
    """The brokers of one cluster."""

    @property
    def answered(self) -> str:
        """Address of a broker that has answered; of any before one has."""
        ...

    async def positions(self, stream: str, cursor: str) -> Positions:
        """How far the archive of each partition of a stream has come.

        Args:
            stream: Name of the stream.
            cursor: Has the first offset that is not archived.

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
    """Tells of something that happened to a resource."""

    async def tell(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an event of the catalogue; one that cannot be written is dropped."""
        ...


class PipelineBoard(Protocol):
    """Is told of the conditions of resources, for metrics."""

    def tell(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that is gone."""
        ...
