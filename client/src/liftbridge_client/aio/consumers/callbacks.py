"""Callbacks of the application for given and revoked partitions.

They run one after another, between two batches: while one runs, the application has no batch. A
partition that is revoked before the application heard that it was given is never mentioned.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.core.membership import Claim

OnPartitions = Callable[[Sequence[PartitionName]], Awaitable[None] | None]
"""Called with partitions in the order of their names; may be a coroutine function."""


class Callbacks:
    """Calls that are due, in order; at most one for each claim."""

    def __init__(
        self,
        on_assigned: OnPartitions | None,
        on_revoked: OnPartitions | None,
        wake: Callable[[], None],
    ) -> None:
        """Start without calls.

        Args:
            on_assigned: Called with partitions before their first batch.
            on_revoked: Called with partitions after their last batch.
            wake: Makes the application's iteration call `run`.
        """
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self.wake = wake
        self._given: dict[Claim, None] = {}
        self._told: set[Claim] = set()
        self._revoked: deque[tuple[Sequence[Claim], asyncio.Event]] = deque()

    def given(self, claims: Iterable[Claim]) -> None:
        """Queue a call for claims that begin."""
        self._given.update(dict.fromkeys(claims))
        self.wake()

    def revoked(self, claims: Iterable[Claim]) -> asyncio.Event:
        """Queue a call for claims that end; return the event that is set after it."""
        ended = list(claims)
        for claim in ended:
            self._given.pop(claim, None)
        told = [claim for claim in ended if claim in self._told]
        self._told.difference_update(told)
        done = asyncio.Event()
        if told and self._on_revoked is not None:
            self._revoked.append((told, done))
            self.wake()
        else:
            done.set()
        return done

    async def run(self) -> None:
        """Make the calls that are due; what they raise is the application's."""
        while self._revoked or self._given:
            if self._revoked:
                claims, done = self._revoked.popleft()
                try:
                    await _call(self._on_revoked, claims)
                finally:
                    done.set()
                continue
            given, self._given = list(self._given), {}
            self._told.update(given)
            await _call(self._on_assigned, given)


async def _call(callback: OnPartitions | None, claims: Iterable[Claim]) -> None:
    if callback is not None:
        outcome = callback(tuple(sorted(claim.partition for claim in claims)))
        if outcome is not None:
            await outcome
