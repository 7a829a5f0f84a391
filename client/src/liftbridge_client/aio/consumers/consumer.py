"""Consumers: the application's side of a member of a consumer group."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.aio.bounds import fetch_bounds
from liftbridge_client.aio.consumers.callbacks import Callbacks, OnPartitions
from liftbridge_client.aio.consumers.member import Commits, Member
from liftbridge_client.aio.consumers.reading import Reading
from liftbridge_client.codecs import Codec
from liftbridge_client.core.deadlines import started_anew, within
from liftbridge_client.core.deliveries import Deliveries
from liftbridge_client.core.membership import Membership
from liftbridge_client.errors import ClosedError, UsageError
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import Start, Value

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session


LINGER_SECONDS: Final = 0.002
"""Time that messages wait for more of their batch: they arrive one by one, and to wake the
application for each takes as long as to read it."""


class Consumer(Generic[Value]):
    """A member of a consumer group, made by `Consumers.join`; iterate over batches once entered.

    Each batch is of one partition. Asking for the next one says that the batch is finished.
    """

    def __init__(
        self,
        client: "Session",
        membership: Membership,
        *,
        codec: Codec[Value] | None,
        start: Start,
        commits: Commits,
        commit_seconds: float,
        on_assigned: OnPartitions | None,
        on_revoked: OnPartitions | None,
        batch_messages: int,
        buffer_messages: int,
        buffer_bytes: int,
    ) -> None:
        self._client = client
        self._membership = membership
        self._codec = codec
        self._commits = commits
        self._batch_messages = batch_messages
        self._news = asyncio.Event()
        hurry = asyncio.Event()
        self._deliveries = Deliveries(buffer_messages, buffer_bytes)
        self._callbacks = Callbacks(on_assigned, on_revoked, self._news.set)
        self._reading = Reading(
            client,
            membership,
            self._deliveries,
            start,
            on_messages=self._on_messages,
            on_doubt=hurry.set,
        )
        self._member = Member(
            client,
            membership,
            self._deliveries,
            self._reading,
            self._callbacks,
            hurry,
            commits=commits,
            commit_seconds=commit_seconds,
        )
        self._life: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._is_closed = False

    def _on_messages(self) -> None:
        """Wake the application for a whole batch, or after a moment."""
        if self._deliveries.count >= self._batch_messages:
            self._news.set()
        elif self._linger is None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(LINGER_SECONDS, self._on_lingered)

    def _on_lingered(self) -> None:
        self._linger = None
        self._news.set()

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises:
            PermissionDeniedError: The client may not join the group, or not read a stream.
            FailedPreconditionError: The group is classic.
            RefusedError: A name is invalid, or a limit of groups is reached.
            RetriableError: No broker could add the member within the retry time.
            UsageError: The consumer was entered before.
        """
        if self._life is not None or self._is_closed:
            raise UsageError("the consumer was entered before: make another one with `join`")
        with within(self._client.call_seconds):
            given = await self._member.join()
        self._life = started_anew(self._member.live(given))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
            return
        with suppress(Exception):  # the application's own error tells more
            await self.aclose()

    async def aclose(self) -> None:
        """Leave the group: `on_revoked` is called, and with automatic commits positions are stored.

        A batch that the application did not finish is delivered again, to another member. Once the
        client is closed the member can do neither, and the group removes it after a session.
        """
        was_closed, self._is_closed = self._is_closed, True
        self._news.set()
        if self._life is None or was_closed:
            return
        self._life.cancel()
        await asyncio.wait([self._life])
        if self._linger is not None:
            self._linger.cancel()
        try:
            with suppress(ClosedError):
                await self._member.leave()  # `on_revoked` may still commit
        finally:
            self._life = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch[Value]:
        """Return the next batch, after the former one is finished.

        Raises:
            PermissionDeniedError: The client may no longer read a stream, or is no longer allowed
                in the group.
            FencedError: Another process joined under the same name or instance.
            LiftbridgeError: Another error that does not pass.
        """
        if self._life is None and not self._is_closed:
            raise ClosedError("the consumer is not open: use it inside `async with ...join(...)`")
        self._member.finish()
        if self._commits == "automatic":
            self._deliveries.forgive_lost()
        while not self._is_closed:
            self._news.clear()
            if self._member.failure is not None:
                raise self._member.failure
            await self._callbacks.run()
            self._member.check_session()
            is_due = self._linger is None or self._deliveries.count >= self._batch_messages
            taken = self._deliveries.take(self._batch_messages) if is_due else None
            if taken is not None:
                claim, messages = taken
                self._reading.go_on()
                end = messages[-1].offset + 1
                return MessageBatch(*claim.partition, end, messages, self._codec)
            await self._news.wait()
        raise StopAsyncIteration

    @property
    def name(self) -> str:
        """Name of the member."""
        return self._membership.name

    @property
    def assignment(self) -> Sequence[PartitionName]:
        """Partitions that it reads now, in the order of their names."""
        return tuple(one.partition for one in self._membership.claims if not one.is_ending)

    async def commit(self) -> None:
        """Store the positions after all batches that were returned, also the latest.

        Raises:
            FencedError: Partitions went to another member before their positions were stored; what
                was read there since the last commit is delivered again.
            LiftbridgeError: A position could not be stored.
        """
        if self._life is None:
            raise ClosedError("the consumer is not open: commit inside `async with ...join(...)`")
        with within(self._client.call_seconds):
            await self._member.commit()

    async def lag(self) -> Mapping[PartitionName, int]:
        """Count the messages that the application has not finished, in each partition it reads.

        From the position to the high watermark, by offsets: messages that compaction removed count
        as well. Partitions whose position is being looked up are left out.
        """
        positions = {
            claim.partition: claim.begun_at if claim.finished is None else claim.finished + 1
            for claim in self._membership.claims
            if not claim.is_ending and claim.begun_at is not None
        }
        numbers: dict[str, list[int]] = {}
        for stream, number in positions:
            numbers.setdefault(stream, []).append(number)
        lags: dict[PartitionName, int] = {}
        with within(self._client.call_seconds):
            for stream, some in numbers.items():
                for bounds in await fetch_bounds(self._client, stream, some):
                    name = PartitionName(stream, bounds.partition)
                    position = positions[name]
                    assert position is not None
                    lags[name] = max(bounds.high_watermark - position, 0)
        return lags
