"""Life of a member: heartbeats, what they give and revoke, and commits, in tasks of their own.

The application takes batches meanwhile, at its own pace (`consumer`); heartbeats go on.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from liftbridge_client import methods
from liftbridge_client.aio.consumers.callbacks import Callbacks
from liftbridge_client.aio.consumers.coordination import Coordination
from liftbridge_client.aio.consumers.patience import Patience
from liftbridge_client.aio.consumers.positions import Position, store_positions
from liftbridge_client.core.membership import Change, Claim, Membership
from liftbridge_client.errors import (
    CallTimeoutError,
    FencedError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    ServerError,
)
from liftbridge_client.events import CallRetried, MembershipLost

if TYPE_CHECKING:
    from liftbridge_client.aio.consumers.reading import Reading
    from liftbridge_client.aio.session import Session
    from liftbridge_client.core.deliveries import Deliveries

Commits = Literal["automatic", "explicit"]
"""Who stores positions: the consumer from time to time, or the application by `commit`."""

BEAT_SECONDS_MIN: Final = 0.05
"""Least time between two heartbeats, whatever happens."""

EAGER_PART: Final = 5
"""Part of the interval after which a member asks again that waits for partitions of others."""


class Member:
    """Tasks of a member that has joined.

    Attributes:
        failure: What ended the tasks, `None` while they run.
    """

    def __init__(
        self,
        client: "Session",
        membership: Membership,
        deliveries: "Deliveries",
        reading: "Reading",
        callbacks: Callbacks,
        hurry: asyncio.Event,
        *,
        commits: Commits,
        commit_seconds: float,
    ) -> None:
        """Start nothing yet; the parts are shared with the application's side.

        Setting `hurry` sends the next heartbeat soon.
        """
        self._client = client
        self._membership = membership
        self._deliveries = deliveries
        self._reading = reading
        self._callbacks = callbacks
        self._commits = commits
        self._commit_seconds = commit_seconds
        self._coordination = Coordination(client, membership)
        self._readers: dict[Claim, asyncio.Task[None]] = {}
        self._hurry = hurry
        self._finished = asyncio.Event()
        self._fence: asyncio.TimerHandle | None = None
        self._beat_at = 0.0
        self.failure: BaseException | None = None

    async def join(self) -> Change:
        """Join the group, with retries; return what is given at once.

        Raises:
            LiftbridgeError: No broker could be asked within the retry time, or the group refused.
        """
        async for attempt in self._client.attempts(methods.HEARTBEAT.path):
            with attempt:
                answer, self._beat_at = await self._coordination.join()
                return self._membership.on_answer(answer, self._beat_at)
        raise AssertionError("the loop above returns or raises")

    async def live(self, given: Change) -> None:
        """Read, report and commit until cancelled, or until an error that does not pass."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._apply(tasks, given)
                tasks.create_task(self._send_heartbeats(tasks))
                if self._commits == "automatic":
                    tasks.create_task(self._commit_at_intervals())
        except* Exception as errors:  # noqa: BLE001 - raised where the application asks for a batch
            self.failure = _first(errors)
        finally:
            if self._fence is not None:
                self._fence.cancel()
            self._callbacks.wake()

    # -- heartbeats ---------------------------------------------------------------------------

    async def _send_heartbeats(self, tasks: asyncio.TaskGroup) -> None:
        patience = Patience(self._client.call_seconds)
        membership, attempt = self._membership, 1
        wait: float | None = None
        while True:
            await self._rest(wait)
            self._beat_at = asyncio.get_running_loop().time()
            joins = not membership.member_epoch
            try:
                call = self._coordination.join() if joins else self._coordination.beat()
                answer, sent_at = await call
            except (FencedError, NotFoundError) as error:
                await self._on_unknown(error)
                wait = 0.0
            except LiftbridgeError as error:
                wait = patience.weigh(error)
                attempt += 1
                self._client.hub.emit(CallRetried(methods.HEARTBEAT.path, attempt, error))
                if not joins:
                    await self._coordination.look()
            else:
                patience.succeeded()
                wait, attempt = None, 1
                self._apply(tasks, membership.on_answer(answer, sent_at))

    async def _rest(self, wait: float | None) -> None:
        """Wait until the next heartbeat is due: after a pause, after an interval, or earlier."""
        loop, interval = asyncio.get_running_loop(), self._membership.interval_seconds
        if wait is None:
            part = EAGER_PART if self._membership.pending_count else 1
            wait = max(self._beat_at + interval / part - loop.time(), 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._hurry.wait()
        self._hurry.clear()
        await asyncio.sleep(max(self._beat_at + BEAT_SECONDS_MIN - loop.time(), 0.0))

    async def _on_unknown(self, cause: LiftbridgeError) -> None:
        """Stop reading at once; join again, unless another process took the member's place.

        Raises:
            FencedError: Another process did.
        """
        membership = self._membership
        ended = membership.fence()
        self._end(ended, cause)
        if await self._coordination.is_replaced():
            membership.on_unknown()
            raise FencedError(
                f"another process joined group {membership.group} as {membership.name}"
                + (f" or instance {membership.instance_id}" if membership.instance_id else "")
            ) from cause
        membership.on_unknown()

    def _apply(self, tasks: asyncio.TaskGroup, change: Change) -> None:
        loop = asyncio.get_running_loop()
        if self._fence is not None:
            self._fence.cancel()
        self._fence = loop.call_at(self._membership.valid_until, self.check_session)
        if change.revoked:
            self._stop_reading(change.revoked)
            tasks.create_task(self._give_up(change.revoked))
        for claim in change.given:
            self._readers[claim] = tasks.create_task(self._reading.read(claim))
        self._callbacks.given(change.given)

    # -- the end of claims --------------------------------------------------------------------

    def check_session(self) -> None:
        """Fence this member if its session may be over: others may have its partitions."""
        membership = self._membership
        if asyncio.get_running_loop().time() < membership.valid_until or not membership.claims:
            return
        seconds = membership.session_seconds
        text = f"no coordinator of group {membership.group} answered for a session of {seconds:g} s"
        self._end(membership.fence(), CallTimeoutError(text))

    def _end(self, claims: Iterable[Claim], cause: LiftbridgeError) -> None:
        """Forget claims that ended without notice."""
        ended = list(claims)
        if not ended:
            return
        self._stop_reading(ended)
        self._deliveries.lose(ended)
        self._pulse()
        self._callbacks.revoked(ended)
        mine = self._membership
        self._client.hub.emit(MembershipLost(mine.group, mine.name, len(ended), cause))

    def _stop_reading(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._deliveries.drop(claim)
            reader = self._readers.pop(claim, None)
            if reader is not None:
                reader.cancel()
        self._reading.go_on()

    async def _give_up(self, claims: Iterable[Claim]) -> None:
        """Release claims after last batch, `on_revoked` and commit, or after a session."""
        claims = list(claims)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._membership.session_seconds):
                while self._deliveries.in_hand in claims:
                    await self._finished.wait()
                await self._callbacks.revoked(claims).wait()
                await self._store_last(claims)
        self._membership.let_go(claims)
        self._deliveries.lose(claims)
        self._hurry.set()

    async def _store_last(self, claims: Iterable[Claim]) -> None:
        """Store what is finished; without success, it is delivered again elsewhere."""
        async with self._reading.commits:
            if self._commits == "automatic":
                with suppress(RetriableError, ServerError, FencedError, NotFoundError):
                    await self._store(claims)

    # -- commits ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Note that the application has finished its batch."""
        self._deliveries.finish()
        self._pulse()

    def _pulse(self) -> None:
        self._finished.set()
        self._finished = asyncio.Event()

    async def commit(self) -> None:
        """Store the positions after everything that the application has.

        Raises:
            FencedError: Some of it went to another member before.
            LiftbridgeError: A position could not be stored.
        """
        async with self._reading.commits:
            self.finish()
            try:
                await self._store(None)
            except NotFoundError as error:
                text = f"positions are not stored, what was read is delivered again: {error}"
                raise FencedError(text, server_text=error.server_text) from error
        self._deliveries.check_lost()

    async def _commit_at_intervals(self) -> None:
        patience = Patience(self._client.call_seconds, FencedError, NotFoundError)
        while True:
            await asyncio.sleep(self._commit_seconds)
            try:
                async with self._reading.commits:
                    await self._store(None)
            except LiftbridgeError as error:
                await asyncio.sleep(patience.weigh(error))
            else:
                patience.succeeded()

    async def _store(self, claims: Iterable[Claim] | None) -> None:
        """Store positions; the caller holds the lock of commits."""
        positions = self._deliveries.to_commit(claims)
        if not positions:
            return
        requested = {
            claim.partition: Position(
                stream=claim.partition.stream,
                partition=claim.partition.partition,
                offset=offset,
                stream_id=claim.stream_id,
            )
            for claim, offset in positions.items()
        }
        stored, error = await store_positions(self._client, self._membership, requested)
        done = frozenset(stored)
        self._deliveries.on_committed(
            {claim: offset for claim, offset in positions.items() if claim.partition in done}
        )
        if isinstance(error, FencedError | NotFoundError):
            self._hurry.set()
        if error is not None:
            raise error

    # -- the end of the member ----------------------------------------------------------------

    async def leave(self) -> None:
        """Tell the application and store positions within a session, then leave the group.

        The tasks have ended, and with them the heartbeats.
        """
        membership = self._membership
        claims = membership.claims
        try:
            if asyncio.get_running_loop().time() < membership.valid_until:
                with suppress(TimeoutError):
                    async with asyncio.timeout(membership.session_seconds):
                        self._callbacks.revoked(claims)
                        await self._callbacks.run()
                        await self._store_at_end()
        finally:
            self._deliveries.lose(claims)
            await self._coordination.leave()
            membership.on_unknown()

    async def _store_at_end(self) -> None:
        if self._commits == "automatic":
            # What ended the tasks tells more than another refusal.
            with suppress(*(() if self.failure is None else (LiftbridgeError,))):
                async with self._reading.commits:
                    await self._store(None)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
