"""Reading of one partition by a member, from the group's position, for as long as it may."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from liftbridge_client.aio.consumers.patience import WAIT_MAX_SECONDS, Patience
from liftbridge_client.aio.consumers.positions import fetch_begin
from liftbridge_client.aio.subscription import Subscription
from liftbridge_client.core.deliveries import Deliveries
from liftbridge_client.core.membership import Claim, Membership
from liftbridge_client.errors import (
    FailedPreconditionError,
    FencedError,
    LiftbridgeError,
    NotFoundError,
    TruncatedError,
)
from liftbridge_client.events import SubscriptionTruncated
from liftbridge_client.model import Start, Stop
from liftbridge_proto import api_pb2

if TYPE_CHECKING:
    from liftbridge_client.admin_model import PartitionName
    from liftbridge_client.aio.session import Session

BEGINNING_MAX: Final = 50
"""Partitions of a member whose positions are looked up at the same time."""


class Reading:
    """Readers of a member: each moves messages of one partition into the deliveries."""

    def __init__(
        self,
        client: "Session",
        membership: Membership,
        deliveries: Deliveries,
        start: Start,
        *,
        on_messages: Callable[[], None],
        on_doubt: Callable[[], None],
    ) -> None:
        """Start without readers.

        Args:
            client: Session for the calls.
            membership: Who reads.
            deliveries: Gets the messages.
            start: Where to begin without a stored position.
            on_messages: Called when there are messages to deliver.
            on_doubt: Called when a broker says that the partition is not the member's, or gone.
        """
        self._client = client
        self._membership = membership
        self._deliveries = deliveries
        self._start = start
        self._on_messages = on_messages
        self._on_doubt = on_doubt
        self._stream_ids: dict[PartitionName, int] = {}
        self._beginning = asyncio.Semaphore(BEGINNING_MAX)
        self._has_room = asyncio.Event()
        self.commits = asyncio.Lock()

    def go_on(self) -> None:
        """Let readers that wait for room go on."""
        self._has_room.set()

    async def read(self, claim: Claim) -> None:
        """Read a partition until cancelled.

        Raises:
            LiftbridgeError: An error that does not pass, such as a missing permission.
        """
        patience = Patience(
            self._client.call_seconds, FencedError, NotFoundError, FailedPreconditionError
        )
        subscription: Subscription[bytes] | None = None
        while True:
            wait = WAIT_MAX_SECONDS  # a read-only partition ended
            try:
                if subscription is None:
                    subscription = await self._subscription(claim)
                await self._move(subscription, claim, patience)
            except TruncatedError as error:
                self._rewind(claim, error)
                subscription = None
                continue
            except LiftbridgeError as error:
                wait = patience.weigh(error)
                if isinstance(error, FencedError | NotFoundError):
                    subscription = None
                    self._doubt(claim, error)
            await asyncio.sleep(wait)

    async def _subscription(self, claim: Claim) -> Subscription[bytes]:
        if claim.next_offset is None:
            async with self._beginning:
                async with self.commits:
                    pass  # a commit of a former claim may still be on its way
                begin = await fetch_begin(
                    self._client,
                    self._membership.group,
                    claim.partition,
                    self._start,
                    self._stream_ids.get(claim.partition, 0),
                )
            self._stream_ids[claim.partition] = claim.stream_id = begin.stream_id
            self._deliveries.begin(claim, begin.next_offset, begin.stored)
        assert claim.next_offset is not None
        return Subscription(
            self._client,
            *claim.partition,
            start=Start.at(claim.next_offset),
            stop=Stop.never(),
            resume=False,
            reverse=False,
            read_replica=False,
            codec=None,
            consumer=api_pb2.Consumer(
                groupId=self._membership.group,
                consumerId=self._membership.name,
                groupEpoch=self._membership.member_epoch,
            ),
            stream_id=claim.stream_id,
        )

    async def _move(
        self, subscription: Subscription[bytes], claim: Claim, patience: Patience
    ) -> None:
        """Move messages as they arrive; while there is no room, nothing is read."""
        deliveries = self._deliveries
        async with aclosing(subscription.batches()) as batches:
            async for batch in batches:
                patience.succeeded()
                for message in batch:
                    deliveries.put(claim, message)
                self._on_messages()
                while not deliveries.has_room:
                    self._has_room.clear()
                    await self._has_room.wait()

    def _doubt(self, claim: Claim, error: LiftbridgeError) -> None:
        """Forget what waits to be delivered: it is others' now, or of a deleted stream."""
        if isinstance(error, NotFoundError):
            self._deliveries.begin_anew(claim)
        else:
            self._deliveries.drop(claim)
        self._on_doubt()

    def _rewind(self, claim: Claim, error: TruncatedError) -> None:
        """Go back to where an unclean election cut the log."""
        where = *claim.partition, error.offset, error.next_offset
        self._client.hub.emit(SubscriptionTruncated(*where))
        self._deliveries.rewind(claim, error.offset)
