"""Streams: creating and finding them, and waiting for new messages."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from liftbridge_client import methods
from liftbridge_client.aio.bounds import await_news, await_streams, check_wait
from liftbridge_client.aio.stream import Stream
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.codec import (
    check_in_force,
    description_of,
    fill_settings,
    own_options,
    unlike,
)
from liftbridge_client.core.deadlines import one_deadline, within
from liftbridge_client.core.subjects import check_concrete, is_fed
from liftbridge_client.errors import AlreadyExistsError, LiftbridgeError, UnimplementedError
from liftbridge_client.model import StreamDescription, StreamInfo, StreamSettings
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

PAGE_SIZE = 1000

_deadline = one_deadline(attrgetter("_client.call_seconds"))


@checked_calls
class Streams:
    """Create, find and delete streams; returned by `Client.streams`."""

    def __init__(self, client: "Session") -> None:
        self._client = client

    @_deadline
    async def create(
        self,
        name: str,
        *,
        subject: str = "",
        partitions: int = 1,
        replication: int = 1,
        group: str = "",
        settings: StreamSettings | None = None,
        if_not_exists: bool = False,
    ) -> "Stream":
        """Create a stream; after a lost answer, an existing stream is compared with the request.

        Args:
            name: Name of the stream.
            subject: NATS subject that it is attached to; the name if empty.
            partitions: Number of partitions.
            replication: Replicas of each partition, -1 for one on every broker.
            group: NATS queue group.
            settings: Settings other than the server's defaults.
            if_not_exists: Whether an existing stream of this name that matches the request is
                accepted; needs a server of this project if there is one.

        Raises:
            AlreadyExistsError: A stream of this name exists and does not match the request.
            InvalidRequestError: A value breaks a rule of the server.
            UnimplementedError: A setting needs a server of this project. Or a broker is too old for
                a setting, and the stream was created without it.
        """
        settings = settings or StreamSettings()
        request = api_pb2.CreateStreamRequest(
            name=name,
            subject=subject or name,
            partitions=partitions,
            replicationFactor=replication,
            group=group,
        )
        fill_settings(settings, request)
        try:
            await self._create(request, settings)
        except AlreadyExistsError as error:
            # After a lost answer, the existing stream may be this call's own.
            if not (if_not_exists or error.may_be_done):
                raise
            await self._compare(request, settings)
        await self._client.refresh()
        return Stream(self._client, name)

    async def _create(self, request: api_pb2.CreateStreamRequest, settings: StreamSettings) -> None:
        options = own_options(settings)
        if options is None:
            await self._client.call(methods.CREATE_STREAM, request)
        elif self._client.has_data:
            wrapped = data_pb2.CreateStreamRequest(stream=request, options=options)
            response = await self._client.call(methods.DATA_CREATE_STREAM, wrapped)
            check_in_force(request.name, settings, response.options)
        else:
            text = "this server supports only the settings of the original Liftbridge"
            raise UnimplementedError(text)

    async def _compare(
        self, request: api_pb2.CreateStreamRequest, settings: StreamSettings
    ) -> None:
        """Refuse a stream whose reported settings differ from the request."""
        stream = await self._found(request, settings)
        others = [] if stream is None else unlike(stream, request, settings)
        if others:
            text = f"stream {request.name} already exists and differs: {', '.join(others)}"
            raise AlreadyExistsError(text)

    async def _found(
        self, request: api_pb2.CreateStreamRequest, settings: StreamSettings
    ) -> StreamDescription | None:
        """Describe a stream; settings that a server does not report are assumed to match."""
        if self._client.has_data:
            described = self.describe(request.name)
            return await anext((one async for one in described if one.name == request.name), None)
        known = (await self._client.refresh()).streams.get(request.name)
        if known is None:
            return None
        return StreamDescription(
            stream_id=0,
            name=known.name,
            subject=known.subject,
            group=request.group,
            replication_factor=request.replicationFactor,
            partitions=len(known.partitions),
            created=known.created,
            settings=settings,
            owner="",
        )

    def get(self, name: str) -> "Stream":
        """Get a stream by name, without asking a server."""
        return Stream(self._client, name)

    async def delete(self, name: str) -> None:
        """Delete a stream and its data.

        Raises:
            NotFoundError: The stream does not exist.
        """
        await Stream(self._client, name).delete()

    async def list(self, prefix: str = "", *, subject: str = "") -> Sequence[StreamInfo]:
        """List the streams in the metadata, sorted by name.

        Args:
            prefix: Only streams whose name starts with this.
            subject: Only streams that store the messages published to this NATS subject, in any of
                their partitions; empty for all.

        Raises:
            UsageError: The subject is not one that messages are published to.
        """
        if subject:
            check_concrete(subject)
        streams = (await self._client.refresh()).streams
        matching = [streams[name] for name in sorted(streams) if name.startswith(prefix)]
        return [stream for stream in matching if not subject or is_fed(stream, subject)]

    async def await_news(
        self,
        known: Mapping[str, Mapping[int, int]],
        wait: timedelta,
        *,
        read_replica: bool = False,
    ) -> frozenset[str]:
        """Wait until more is committed in one of several streams, as `Stream.bounds` with `known`.

        Each broker has one open call for all streams, or one for each stream if the broker is too
        old for that. A broker that cannot answer ends the wait; a call of `bounds` then shows why.

        Args:
            known: High watermarks that the caller knows, by stream and partition.
            wait: Limit for the wait, at most 30 s.
            read_replica: Whether to ask in-sync replicas instead of leaders.

        Returns:
            Streams whose bounds to fetch. News of other streams ends the next wait immediately.

        Raises:
            UsageError: The wait is negative or too long.
        """
        seconds = wait.total_seconds()
        check_wait(seconds)
        with within(self._client.call_seconds + seconds):
            return await self._first_news(known, seconds, read_replica=read_replica)

    async def _first_news(
        self, known: Mapping[str, Mapping[int, int]], seconds: float, *, read_replica: bool
    ) -> frozenset[str]:
        """Wait for all streams in one call, or one by one if a broker lacks that call."""
        with suppress(UnimplementedError):
            return await await_streams(self._client, known, seconds, read_replica=read_replica)

        async def watch(name: str, marks: Mapping[int, int]) -> bool:
            try:
                return await await_news(
                    self._client, name, marks, seconds, read_replica=read_replica
                )
            except LiftbridgeError:
                return True

        async with asyncio.TaskGroup() as group:
            waits = {name: group.create_task(watch(name, marks)) for name, marks in known.items()}
            if waits:
                await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
            for wait in waits.values():
                wait.cancel()
        return frozenset(
            name for name, one in waits.items() if not one.cancelled() and one.result()
        )

    async def describe(self, prefix: str = "") -> AsyncGenerator[StreamDescription, None]:
        """List streams with their settings in effect, by name; needs a server of this project."""
        token = ""
        while True:
            page = await self._client.call(
                methods.LIST_STREAMS,
                data_pb2.ListStreamsRequest(prefix=prefix, page_size=PAGE_SIZE, page_token=token),
            )
            for stream in page.streams:
                yield description_of(stream)
            token = page.next_page_token
            if not token:
                return
