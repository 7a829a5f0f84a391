"""What the operator asks the brokers of one cluster about streams, and whom it tells of events.

Every call ends within a bound of the adapter. A change that ends with `SilentError` may have been
done; each is such that the next look shows whether it was.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from liftbridge_operator.catalogue.names import EventReason
from liftbridge_operator.kube.port import Object
from liftbridge_operator.runtime.reconciler import Key
from liftbridge_operator.streams.observation import ObservedStream
from liftbridge_operator.streams.settings import Value


class BrokersError(Exception):
    """The brokers did not do what was asked for."""


class SilentError(BrokersError):
    """Nobody answered, or nobody who could: no leader of the metadata, a restart, a time-out."""


class RefusedError(BrokersError):
    """The brokers say why they will not, and would say so again."""


class ChangedError(BrokersError):
    """The stream is not as it was seen: created, deleted or marked by somebody else since."""


class StreamBrokers(Protocol):
    """The brokers of one cluster.

    Every call may raise `SilentError`; changes also `RefusedError` and `ChangedError`.
    """

    async def streams(self) -> Mapping[str, ObservedStream]:
        """All streams by name, but those of the brokers themselves, as a majority knows them."""
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
            name: Of the stream.
            subject: NATS subject it attaches to.
            group: Queue group of its subscriptions; empty for none.
            partitions: How many.
            factor: Replicas of each; -1 for all brokers.
            settings: By the names of `settings.Settings`.

        Returns:
            Its id.
        """
        ...

    async def mark(self, name: str, stream_id: int, *, expected: str, owner: str) -> None:
        """Say who manages a stream, if it is the one that is meant and its mark is as expected."""
        ...

    async def alter(self, name: str, settings: Mapping[str, Value], *, factor: int) -> None:
        """Change settings, and the number of replicas unless `factor` is 0."""
        ...

    async def set_readonly(self, name: str, *, is_readonly: bool) -> None:
        """Refuse publishes to all partitions, or accept them again."""
        ...

    async def count_messages(self, stream: ObservedStream) -> int | None:
        """Messages in a stream, as its leaders tell; None when not all of them do."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a stream with its messages."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class StreamEvents(Protocol):
    """Tells of something that happened to a resource."""

    async def tell(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an event of the catalogue; one that cannot be written is dropped.

        Args:
            resource: The `Stream` it is about.
            reason: Which event.
            values: What its text has in braces.
        """
        ...


class StreamBoard(Protocol):
    """Is told of the conditions of resources, for metrics."""

    def tell(self, key: Key, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that is gone."""
        ...
