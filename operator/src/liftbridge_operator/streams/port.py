"""Ports of the stream reconciler: brokers of one cluster, Events, and condition metrics.

Every call ends within a bound of the adapter. A change that ends with `SilentError` may have been
done; the next poll shows whether it was.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.observation import ObservedStream
from liftbridge_operator.streams.settings import Value


class BrokersError(Exception):
    """The brokers did not do what was requested."""


class SilentError(BrokersError):
    """No broker that could answer did: no metadata leader, a restart, a time-out."""


class RefusedError(BrokersError):
    """The brokers refused the request, and would refuse a retry."""


class ChangedError(BrokersError):
    """The stream has changed since the poll: created, deleted, or marked by another owner."""


class StreamBrokers(Protocol):
    """The brokers of one cluster.

    Every call may raise `SilentError`; changes also `RefusedError` and `ChangedError`.
    """

    async def streams(self) -> Mapping[str, ObservedStream]:
        """Return all streams by name, without internal ones, confirmed by a majority."""
        ...

    async def create(
        self,
        name: str,
        *,
        subject: str,
        group: str,
        partitions: int,
        factor: int,
        settings: Mapping[str, Value],
    ) -> int:
        """Create a stream.

        Args:
            name: Name of the stream.
            subject: NATS subject it attaches to.
            group: Queue group of its subscriptions; empty for none.
            partitions: Number of partitions.
            factor: Replicas of each; -1 for all brokers.
            settings: Values by name; see `settings.Settings`.

        Returns:
            Its id.
        """
        ...

    async def mark(self, name: str, stream_id: int, *, expected: str, owner: str) -> None:
        """Set the owner of a stream, if its id and its present owner are as expected."""
        ...

    async def alter(self, name: str, settings: Mapping[str, Value], *, factor: int) -> None:
        """Change settings, and the number of replicas unless `factor` is 0."""
        ...

    async def set_readonly(self, name: str, *, is_readonly: bool) -> None:
        """Refuse publishes to all partitions, or accept them again."""
        ...

    async def count_messages(self, stream: ObservedStream) -> int | None:
        """Count messages in a stream at its leaders; None when not all of them answer."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a stream with its messages."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class StreamEvents(Protocol):
    """Writes Kubernetes Events of a resource."""

    async def record(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an Event of the catalogue, and drop it if that fails.

        Args:
            resource: The `Stream` resource.
            reason: Reason of the Event.
            values: Values of the placeholders in its text.
        """
        ...


class StreamBoard(Protocol):
    """Keeps the conditions of resources, for metrics."""

    def set_conditions(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that was deleted."""
        ...
