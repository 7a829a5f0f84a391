"""Blocking members of consumer groups."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, cast, overload

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.aio.consumers.callbacks import OnPartitions
from liftbridge_client.aio.consumers.consumer import Consumer
from liftbridge_client.aio.consumers.consumers import (
    BATCH_MESSAGES,
    BUFFER_BYTES,
    BUFFER_MESSAGES,
    COMMIT_INTERVAL,
    Consumers,
)
from liftbridge_client.aio.consumers.member import Commits
from liftbridge_client.codecs import Codec
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import Start, Value
from liftbridge_client.sync.blocking import Blocking, blocking


class SyncConsumer(Blocking[Consumer[Value]]):
    """Blocking member of a consumer group, entered with `with`; see `Consumer`.

    Heartbeats go on while the application works on a batch.
    """

    def __enter__(self) -> Self:
        """Join the group; see `Consumer`."""
        self._run(self._original.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.end(self._original.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageBatch[Value]:
        """Return the next batch, after the former one is finished."""
        return next(self._portal.drain(self._original))

    @property
    def name(self) -> str:
        """Name of the member; see `Consumer.name`."""
        return self._original.name

    @property
    def assignment(self) -> Sequence[PartitionName]:
        """Partitions that it reads now; see `Consumer.assignment`."""
        return self._original.assignment

    commit = blocking(Consumer.commit)
    lag = blocking(Consumer.lag)

    def close(self) -> None:
        """Leave the group; see `Consumer.aclose`."""
        self._portal.end(self._original.aclose())


class SyncConsumers(Blocking[Consumers]):
    """Join consumer groups; see `Consumers`. Returned by `SyncClient.consumers`."""

    @overload
    def join(
        self,
        group: str,
        streams: Sequence[str],
        *,
        codec: None = None,
        name: str = "",
        instance_id: str = "",
        start: Start | None = None,
        commits: Commits = "automatic",
        commit_interval: timedelta = COMMIT_INTERVAL,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        batch_messages: int = BATCH_MESSAGES,
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> SyncConsumer[bytes]: ...

    @overload
    def join(
        self,
        group: str,
        streams: Sequence[str],
        *,
        codec: Codec[Value],
        name: str = "",
        instance_id: str = "",
        start: Start | None = None,
        commits: Commits = "automatic",
        commit_interval: timedelta = COMMIT_INTERVAL,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        batch_messages: int = BATCH_MESSAGES,
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> SyncConsumer[Value]: ...

    def join(
        self,
        group: str,
        streams: Sequence[str],
        *,
        codec: Codec[Value] | None = None,
        name: str = "",
        instance_id: str = "",
        start: Start | None = None,
        commits: Commits = "automatic",
        commit_interval: timedelta = COMMIT_INTERVAL,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        batch_messages: int = BATCH_MESSAGES,
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> SyncConsumer[Value]:
        """Create a member of a group, to enter with `with`; see `Consumers.join`.

        Callbacks run in a thread, where they may call this client; the iteration waits for them.
        """
        made = self._original.join(
            group,
            streams,
            codec=cast("Codec[Value]", codec),
            name=name,
            instance_id=instance_id,
            start=start,
            commits=commits,
            commit_interval=commit_interval,
            on_assigned=_in_thread(on_assigned),
            on_revoked=_in_thread(on_revoked),
            batch_messages=batch_messages,
            buffer_messages=buffer_messages,
            buffer_bytes=buffer_bytes,
        )
        return SyncConsumer(self._portal, made)


def _in_thread(callback: OnPartitions | None) -> OnPartitions | None:
    """Make a callback leave the event loop free; what is no callback stays, to be refused."""
    if not callable(callback):
        return callback

    async def call(partitions: Sequence[PartitionName]) -> None:
        outcome = await asyncio.to_thread(callback, partitions)
        if outcome is not None:
            await outcome

    return call
