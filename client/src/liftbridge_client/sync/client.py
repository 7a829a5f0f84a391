"""The blocking client."""

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, overload

from liftbridge_client.aio.client import Client, connect
from liftbridge_client.aio.session import ClientStats
from liftbridge_client.model import Ack, AckPolicy, Metadata, TlsFiles
from liftbridge_client.sync.portal import Portal
from liftbridge_client.sync.reading import SyncEvents
from liftbridge_client.sync.stream import SyncStreams


def connect_sync(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
    zone: str = "",
) -> "SyncClient":
    """Create a blocking client, to enter with `with`; see `connect`."""
    return SyncClient(connect(servers, tls=tls, timeout=timeout, retry_time=retry_time, zone=zone))


class SyncClient:
    """A blocking client of a cluster; see `Client`. A thread runs its event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._portal = Portal()

    def __enter__(self) -> Self:
        """Start the thread and connect; see `Client`."""
        self._portal.open()
        try:
            self._portal.run(self._client.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, cancel running calls and end the thread; may be called twice."""
        if self._portal.is_open:
            try:
                self._portal.run(self._client.aclose())
            finally:
                self._portal.close()

    @property
    def streams(self) -> SyncStreams:
        """Create, find and delete streams; see `Client.streams`."""
        return SyncStreams(self._portal, self._client.streams)

    @property
    def stats(self) -> ClientStats:
        """Counters of this client; see `Client.stats`."""
        return self._client.stats

    @property
    def has_data(self) -> bool:
        """Return whether the server has this project's calls; see `Client.has_data`."""
        return self._client.has_data

    @has_data.setter
    def has_data(self, has_data: bool) -> None:
        self._client.has_data = has_data

    def metadata(self) -> Metadata:
        """Fetch brokers and streams; see `Client.metadata`."""
        return self._portal.run(self._client.metadata())

    def events(self, *, slow_after: timedelta = timedelta(seconds=1)) -> SyncEvents:
        """Return events of this client; iterate in a separate thread. See `Client.events`."""

        async def listen() -> SyncEvents:
            return SyncEvents(self._portal, self._client.events(slow_after=slow_after))

        return self._portal.run(listen())

    @overload
    def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: Literal["leader", "all"] = "leader",
    ) -> Ack: ...

    @overload
    def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: Literal["none"],
    ) -> None: ...

    def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: AckPolicy = "leader",
    ) -> Ack | None:
        """Publish to a NATS subject; see `Client.publish_to_subject`."""
        return self._portal.run(
            self._client.publish_to_subject(
                subject, value, key=key, headers=headers, ack_policy=ack_policy
            )
        )
