"""The blocking client."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, overload

from liftbridge_client.activity import ActivityEvent
from liftbridge_client.aio.client import Client, connect
from liftbridge_client.aio.session import ClientStats
from liftbridge_client.model import Ack, AckPolicy, Start, Stop, TlsFiles, Token
from liftbridge_client.sync.blocking import BlockingClient, blocking
from liftbridge_client.sync.consumers import SyncConsumers
from liftbridge_client.sync.groups import SyncGroups
from liftbridge_client.sync.reading import SyncEvents, SyncSubscription
from liftbridge_client.sync.stream import SyncStreams


def connect_sync(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
    zone: str = "",
    token: Token | None = None,
) -> "SyncClient":
    """Create a blocking client, to enter with `with`; see `connect`."""
    return SyncClient(
        connect(servers, tls=tls, timeout=timeout, retry_time=retry_time, zone=zone, token=token)
    )


class SyncClient(BlockingClient[Client]):
    """A blocking client of a cluster; see `Client`. A thread runs its event loop."""

    @property
    def streams(self) -> SyncStreams:
        """Create, find and delete streams; see `Client.streams`."""
        return SyncStreams(self._portal, self._original.streams)

    @property
    def consumers(self) -> SyncConsumers:
        """Join consumer groups; see `Client.consumers`."""
        return SyncConsumers(self._portal, self._original.consumers)

    @property
    def groups(self) -> SyncGroups:
        """Consumer groups, for people who look after them; see `Client.groups`."""
        return SyncGroups(self._portal, self._original.groups)

    @property
    def stats(self) -> ClientStats:
        """Counters of this client; see `Client.stats`."""
        return self._original.stats

    @property
    def has_data(self) -> bool:
        """Return whether the server has this project's calls; see `Client.has_data`."""
        return self._original.has_data

    @has_data.setter
    def has_data(self, has_data: bool) -> None:
        self._original.has_data = has_data

    metadata = blocking(Client.metadata)
    who_am_i = blocking(Client.who_am_i)

    def activity(
        self, *, start: Start | None = None, stop: Stop | None = None
    ) -> SyncSubscription[ActivityEvent]:
        """Follow what changes about streams and groups, to iterate with `for`.

        See `Client.activity`.
        """
        made = self._original.activity(start=start, stop=stop)
        return SyncSubscription(self._portal, made)

    def events(self, *, slow_after: timedelta = timedelta(seconds=1)) -> SyncEvents:
        """Return events of this client; iterate in a separate thread. See `Client.events`."""

        async def listen() -> SyncEvents:
            return SyncEvents(self._portal, self._original.events(slow_after=slow_after))

        return self._run(listen())

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
        return self._run(
            self._original.publish_to_subject(
                subject, value, key=key, headers=headers, ack_policy=ack_policy
            )
        )
