"""Joining consumer groups: `Client.consumers`."""

import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, overload

from liftbridge_client.aio.consumers.callbacks import OnPartitions
from liftbridge_client.aio.consumers.consumer import Consumer
from liftbridge_client.aio.consumers.member import Commits
from liftbridge_client.codecs import Codec
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.membership import Membership
from liftbridge_client.errors import UsageError
from liftbridge_client.model import Start, Value

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

COMMIT_INTERVAL: Final = timedelta(seconds=1)
BATCH_MESSAGES: Final = 500
BUFFER_MESSAGES: Final = 10_000
BUFFER_BYTES: Final = 16 * 1024 * 1024


@checked_calls
class Consumers:
    """Join consumer groups; returned by `Client.consumers`."""

    def __init__(self, client: "Session") -> None:
        self._client = client

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
    ) -> Consumer[bytes]: ...

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
    ) -> Consumer[Value]: ...

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
    ) -> Consumer[Value]:
        """Create a member of an incremental consumer group, to enter with `async with`.

        The group divides the partitions of its streams among its members. The member's zone is that
        of the client (`connect(zone=...)`).

        Args:
            group: Name of the group, with which its positions are stored.
            streams: Names of streams, which need not exist yet, and patterns such as `returns.*`.
            codec: Decodes values; without one, values are bytes.
            name: Name of the member, which no other process of the group uses; if empty, one with
                the name of this machine.
            instance_id: Name that the member keeps when it restarts, such as that of its pod:
                within a session it then continues with its partitions. Empty for none.
            start: Where to begin in a partition without a stored position; `None` is the first
                message. Not a cursor.
            commits: Who stores positions: the consumer, of batches that the application has
                finished; or the application, by `Consumer.commit`.
            commit_interval: Time between two automatic commits.
            on_assigned: Called with partitions before their first batch.
            on_revoked: Called with partitions after their last batch, before they go to another
                member, unless this takes longer than the session; also with those that were lost,
                when they may have gone already. Both are called between two batches.
            batch_messages: Messages of a batch, at most.
            buffer_messages: Messages that wait for the application; while there are more, nothing
                is read.
            buffer_bytes: Bytes of such messages, about.

        Raises:
            UsageError: No stream is named, or `start` is a cursor.
        """
        if not streams:
            raise UsageError("streams []: must name a stream or a pattern")
        if start is not None and start.kind == "cursor":
            raise UsageError("start: must not be a cursor; a group has positions of its own")
        name = name or f"{socket.gethostname()[:200]}-{secrets.token_hex(4)}"
        membership = Membership(
            group, name, streams, instance_id=instance_id, zone=self._client.zone
        )
        return Consumer(
            self._client,
            membership,
            codec=codec,
            start=start or Start.earliest(),
            commits=commits,
            commit_seconds=commit_interval.total_seconds(),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            batch_messages=batch_messages,
            buffer_messages=buffer_messages,
            buffer_bytes=buffer_bytes,
        )
