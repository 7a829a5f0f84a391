"""Publish and read with our own client, and continue after every fault, as a program should.

One attempt is a coroutine (`Publishing`, `Reading`), so that a few can run in separate threads
(`OwnClientPublisher`, `SteadyReader`) or many in one. Outcomes go to a history. A lost answer stays
unknown there, which `checker.check` handles.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from liftbridge_client import (
    Ack,
    Client,
    ClosedError,
    FullError,
    LiftbridgeError,
    OutcomeUnknownError,
    Publisher,
    RefusedError,
    Start,
    Subscription,
    connect,
)
from liftbridge_testkit.checker import Stored
from liftbridge_testkit.load import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftbridge_client import TlsFiles
    from liftbridge_testkit.checker import History

VALUE_BYTES: Final = 128
BATCH_COUNT: Final = 50
RETRY_SECONDS: Final = 0.1
ERROR_LENGTH_MAX: Final = 160
NOT_STORED: Final = "not appended"
"""Beginning of a broker's error for a message that is certainly not stored."""

# Timeouts of our own client: short, so that a fault costs one error and not the whole run.
_TIMEOUT: Final = timedelta(seconds=3)
_RETRY_TIME: Final = timedelta(seconds=5)


class PublisherNotes(Protocol):
    """Records the messages of one publisher, and their outcomes."""

    def invoke(self, size: int) -> tuple[int, bytes]:
        """Return the next message, before it is sent: its sequence and value."""
        ...

    def acked(self, sequence: int, offset: int) -> None:
        """Note that a message was acknowledged."""
        ...

    def refused(self, sequence: int) -> None:
        """Note that a message is certainly not stored."""
        ...

    def unknown(self, sequence: int) -> None:
        """Note that the outcome of a message stays unknown."""
        ...


class Listener(Protocol):
    """Receives counts of successes and failures."""

    def note_answer(self, count: int = 1) -> None:
        """Note that this number of messages was acknowledged or received."""
        ...

    def note_error(self, error: BaseException) -> None:
        """Note an error instead of an answer."""
        ...


def client_of(servers: str, tls: TlsFiles | None = None) -> Client:
    """Return a client with the timeouts of this module, not entered."""
    return connect(servers, tls=tls, timeout=_TIMEOUT, retry_time=_RETRY_TIME)


def is_refusal(error: BaseException) -> bool:
    """Return whether an error of our client states that the message is not stored."""
    if isinstance(error, OutcomeUnknownError | FullError | ClosedError):
        return False
    return isinstance(error, RefusedError) or NOT_STORED in str(error)


class Publishing:
    """Publishes with acks of all replicas, in batches or one message at a time."""

    def __init__(
        self,
        history: PublisherNotes,
        listener: Listener,
        stream: str,
        *,
        partition: int | None = None,
        batch_count: int = BATCH_COUNT,
        idempotent: bool = False,
        pause_seconds: float = 0.0,
        interval_seconds: float = 0.0,
    ) -> None:
        """Describe it.

        Args:
            history: Receives the outcomes.
            listener: Receives answers and errors.
            stream: Stream to publish to.
            partition: Partition to publish to; by default the client chooses.
            batch_count: Messages of a batch; 1 publishes single ones.
            idempotent: Whether it may resend messages that may already be stored.
            pause_seconds: Pause between two batches.
            interval_seconds: Minimum time from the start of one batch to that of the next.
        """
        self._history = history
        self._listener = listener
        self._stream = stream
        self._partition = partition
        self._batch_count = batch_count
        self._idempotent = idempotent
        self._pause_seconds = pause_seconds
        self._interval_seconds = interval_seconds

    async def run(self, client: Client, is_over: Callable[[], bool]) -> None:
        """Publish until the end of the run; raise when it must restart.

        Raises:
            LiftbridgeError: It ended early; the history has the messages in flight.
        """
        publisher = client.streams.get(self._stream).publisher(
            ack_policy="all", idempotent=self._idempotent
        )
        async with publisher:
            while not is_over():
                began = monotonic()
                await self._batch(publisher)
                spent = monotonic() - began
                await asyncio.sleep(max(self._pause_seconds, self._interval_seconds - spent))

    async def keep_on(self, client: Client, is_over: Callable[[], bool]) -> None:
        """Publish with a new client after each error, until the end of the run."""
        while not is_over():
            try:
                await self.run(client, is_over)
            except LiftbridgeError as error:
                self.note_end(error)
                await asyncio.sleep(RETRY_SECONDS)

    def note_end(self, error: LiftbridgeError) -> None:
        """Report the reason for the end of `run` to the listener, unless reported already."""
        if not isinstance(error, ClosedError):
            self._listener.note_error(error)

    async def _batch(self, publisher: Publisher[bytes]) -> None:
        invoked = [self._history.invoke(VALUE_BYTES) for _ in range(self._batch_count)]
        values = [value for _, value in invoked]
        results = await publisher.publish_batch(values, partition=self._partition)
        acked = 0
        is_lost = False
        for (sequence, _), result in zip(invoked, results, strict=True):
            if isinstance(result, Ack):
                self._history.acked(sequence, result.offset)
                acked += 1
                continue
            self._listener.note_error(result)
            if is_refusal(result):
                self._history.refused(sequence)
            else:
                self._history.unknown(sequence)
            is_lost = True
        if acked:
            self._listener.note_answer(acked)
        if is_lost:
            # A sequence is broken, or another publisher is active: restart, as a new process would.
            raise ClosedError("begins anew")


class Reading:
    """Reads one partition, and after each break continues after the last message."""

    def __init__(
        self,
        deliver: Callable[[Stored], object],
        listener: Listener,
        stream: str,
        *,
        partition: int = 0,
        reads_replica: bool = False,
    ) -> None:
        """Describe it.

        Args:
            deliver: Receives every message.
            listener: Receives messages and errors.
            stream: Stream to read.
            partition: Partition to read.
            reads_replica: Whether it also reads from followers.
        """
        self._deliver = deliver
        self._listener = listener
        self._stream = stream
        self._partition = partition
        self._reads_replica = reads_replica
        self.next_offset = 0

    async def run(self, client: Client, is_over: Callable[[], bool]) -> None:
        """Read until the end of the run, or until the subscription ends."""
        subscription = client.streams.get(self._stream).subscribe(
            partition=self._partition,
            start=Start.at(self.next_offset),
            read_replica=self._reads_replica,
            resume=True,
        )
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._take(subscription))
            while not is_over() and not reading.done():
                await asyncio.wait([reading], timeout=RETRY_SECONDS)
            reading.cancel()

    async def keep_on(self, client: Client, is_over: Callable[[], bool]) -> None:
        """Read with a new client after each error, until the end of the run."""
        while not is_over():
            await self.run(client, is_over)
            await asyncio.sleep(RETRY_SECONDS)

    async def _take(self, subscription: Subscription[bytes]) -> None:
        try:
            async for message in subscription:
                self._deliver(Stored(message.offset, message.value))
                self.next_offset = message.offset + 1
                self._listener.note_answer()
        except LiftbridgeError as error:
            self._listener.note_error(error)


class SteadyWorker(Worker):
    """A worker that records the time of its last answer.

    Attributes:
        longest_pause_seconds: Longest time between two answers, including the last fault.
        errors: Counts of errors received instead of acks, by text without numbers.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.longest_pause_seconds = 0.0
        self.errors: Counter[str] = Counter()
        self._answered_at = monotonic()

    def abandon(self) -> None:
        """Request its end without waiting, for example after a failed run."""
        self._stopping.set()

    def note_error(self, error: BaseException) -> None:
        """Count an error."""
        self.errors[plain(error)] += 1

    def note_answer(self, count: int = 1) -> None:
        """Count answers, and measure the pause before them."""
        now = monotonic()
        self.longest_pause_seconds = max(self.longest_pause_seconds, now - self._answered_at)
        self._answered_at = now
        self._succeeded(count)


def plain(error: BaseException) -> str:
    """Return the text of an error without numbers, to count equal errors."""
    text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
    return re.sub(r"\d+", "#", text)


class OwnClientPublisher(SteadyWorker):
    """`Publishing` in a thread, with a separate client, recreated at each restart."""

    def __init__(
        self,
        history: PublisherNotes,
        addresses: Sequence[str],
        stream: str,
        *,
        batch_count: int = BATCH_COUNT,
        idempotent: bool = False,
        pause_seconds: float = 0.0,
    ) -> None:
        """Describe it; `start` begins. `addresses` are all brokers; see `Publishing`."""
        super().__init__(f"own-publisher-{stream}-{'batches' if batch_count > 1 else 'single'}")
        self._servers = ",".join(addresses)
        self._publishing = Publishing(
            history,
            self,
            stream,
            batch_count=batch_count,
            idempotent=idempotent,
            pause_seconds=pause_seconds,
        )

    def run(self) -> None:
        """Run a separate event loop."""
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        while not self._stopping.is_set():
            try:
                async with client_of(self._servers) as client:
                    await self._publishing.run(client, self._stopping.is_set)
            except LiftbridgeError as error:
                self._publishing.note_end(error)
            await asyncio.sleep(RETRY_SECONDS)


class SteadyReader(SteadyWorker):
    """`Reading` in a thread, with a separate client, recreated after each break."""

    def __init__(
        self,
        history: History,
        addresses: Sequence[str],
        stream: str,
        *,
        reads_replica: bool = False,
    ) -> None:
        """Describe it; `start` begins. `addresses` are all brokers; see `Reading`."""
        super().__init__(f"reader-{stream}-{'replica' if reads_replica else 'leader'}")
        self._servers = ",".join(addresses)
        deliver = history.new_subscription().append
        self._reading = Reading(deliver, self, stream, reads_replica=reads_replica)

    def run(self) -> None:
        """Run a separate event loop."""
        asyncio.run(self._read())

    async def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                async with client_of(self._servers) as client:
                    await self._reading.run(client, self._stopping.is_set)
            except LiftbridgeError as error:
                self.note_error(error)
            await asyncio.sleep(RETRY_SECONDS)
