"""Clients that go on over every fault: they find the leader again and note what they learned.

Three ways to publish, all with acks of all replicas: batches and single messages of our own client,
which does the finding itself, and plain gRPC as a program without our client would do it. Readers
resume behind what they got.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_client import (
    Ack,
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
from liftbridge_proto import api_pb2
from liftbridge_testkit.checker import Stored
from liftbridge_testkit.load import Worker, api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftbridge_testkit.checker import History, PublisherHistory

VALUE_BYTES: Final = 128
BATCH_COUNT: Final = 50
WINDOW: Final = 64
PATIENCE_SECONDS: Final = 2.0
"""How long a plain client waits for the next answer before it looks for another leader."""

RETRY_SECONDS: Final = 0.1
ERROR_LENGTH_MAX: Final = 160
# What our own client waits: short, so that a fault costs an error and not the whole run.
_TIMEOUT: Final = timedelta(seconds=3)
_RETRY_TIME: Final = timedelta(seconds=5)
_NOT_STORED: Final = "not appended"

# Refusals of a single message that say for sure that nothing was stored.
_REFUSED: Final = frozenset(
    {
        api_pb2.PublishAsyncError.BAD_REQUEST,
        api_pb2.PublishAsyncError.NOT_FOUND,
        api_pb2.PublishAsyncError.READONLY,
        api_pb2.PublishAsyncError.INCORRECT_OFFSET,
    }
)


class SteadyWorker(Worker):
    """A worker that knows when it last got an answer.

    Attributes:
        longest_pause_seconds: Longest time between two answers, the last fault included.
        errors: What it was told instead of acks, by text, without numbers.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.longest_pause_seconds = 0.0
        self.errors: Counter[str] = Counter()
        self._answered_at = monotonic()

    def abandon(self) -> None:
        """Ask it to end and do not wait, as when the run failed."""
        self._stopping.set()

    def _note_error(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
        self.errors[re.sub(r"\d+", "#", text)] += 1

    def _note_answer(self, count: int = 1) -> None:
        now = monotonic()
        self.longest_pause_seconds = max(self.longest_pause_seconds, now - self._answered_at)
        self._answered_at = now
        self._succeeded(count)


class OwnClientPublisher(SteadyWorker):
    """Publishes by our own client: whole batches, or one message after the other."""

    def __init__(
        self,
        history: PublisherHistory,
        addresses: Sequence[str],
        stream: str,
        *,
        batch_count: int = BATCH_COUNT,
        idempotent: bool = False,
        pause_seconds: float = 0.0,
    ) -> None:
        """Describe it; `start` begins.

        Args:
            history: Gets what it learns.
            addresses: All brokers.
            stream: Where it publishes.
            batch_count: Messages of a batch; 1 publishes single ones.
            idempotent: Whether it may send again what may be stored already.
            pause_seconds: Rest between two batches.
        """
        super().__init__(f"own-publisher-{stream}-{history.publisher}")
        self._history = history
        self._servers = ",".join(addresses)
        self._stream = stream
        self._batch_count = batch_count
        self._idempotent = idempotent
        self._pause_seconds = pause_seconds

    def run(self) -> None:
        """Run an event loop of its own."""
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._session()
            except ClosedError:
                pass  # the reason is noted already
            except LiftbridgeError as error:
                self._note_error(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _session(self) -> None:
        client = connect(self._servers, timeout=_TIMEOUT, retry_time=_RETRY_TIME)
        async with client as lb:
            publisher = lb.streams.get(self._stream).publisher(
                ack_policy="all", idempotent=self._idempotent
            )
            async with publisher:
                while not self._stopping.is_set():
                    await self._batch(publisher)
                    await asyncio.sleep(self._pause_seconds)

    async def _batch(self, publisher: Publisher[bytes]) -> None:
        invoked = [self._history.invoke(VALUE_BYTES) for _ in range(self._batch_count)]
        results = await publisher.publish_batch([value for _, value in invoked])
        acked = 0
        is_lost = False
        for (sequence, _), result in zip(invoked, results, strict=True):
            if isinstance(result, Ack):
                self._history.acked(sequence, result.offset)
                acked += 1
                continue
            self._note_error(result)
            if is_refusal(result):
                self._history.refused(sequence)
            is_lost = True
        if acked:
            self._note_answer(acked)
        if is_lost:
            # A sequence is broken, or somebody else leads: begin anew, as a new process would.
            raise ClosedError("begins anew")


def is_refusal(error: BaseException) -> bool:
    """Whether an error of our client says for sure that the message is not stored."""
    if isinstance(error, OutcomeUnknownError | FullError | ClosedError):
        return False
    return isinstance(error, RefusedError) or _NOT_STORED in str(error)


class PlainPublisher(SteadyWorker):
    """Publishes by `PublishAsync` of plain gRPC to whoever leads, call after call."""

    def __init__(
        self,
        history: History,
        leader: Callable[[], str],
        stream: str,
    ) -> None:
        """Describe it; `start` begins.

        Args:
            history: Every call is a publisher of its own there: what an abandoned call had sent
                may come after the first message of the next one.
            leader: Tells the address of who leads, empty for nobody known.
            stream: Where it publishes.
        """
        super().__init__(f"plain-publisher-{stream}")
        self._history = history
        self._leader = leader
        self._stream = stream

    def run(self) -> None:
        """Call after call until stopped."""
        while not self._stopping.is_set():
            if address := self._leader():
                try:
                    self._call(address)
                except grpc.RpcError as error:
                    self._note_error(error)
            self._stopping.wait(RETRY_SECONDS)

    def _call(self, address: str) -> None:
        history = self._history.new_publisher()
        window = threading.Semaphore(WINDOW)
        is_over = threading.Event()
        heard = monotonic()

        def requests() -> Iterator[api_pb2.PublishRequest]:
            while not self._stopping.is_set() and not is_over.is_set():
                if not window.acquire(timeout=RETRY_SECONDS):
                    if monotonic() - heard > PATIENCE_SECONDS:
                        answers.cancel()
                        return
                    continue
                sequence, value = history.invoke(VALUE_BYTES)
                yield api_pb2.PublishRequest(
                    stream=self._stream,
                    value=value,
                    correlationId=str(sequence),
                    ackPolicy=api_pb2.ALL,
                    expectedOffset=-1,
                )

        with grpc.insecure_channel(address) as channel:
            answers = api(channel).PublishAsync(requests(), timeout=60.0)
            try:
                for answer in answers:
                    heard = monotonic()
                    window.release()
                    if not self._take(history, answer):
                        answers.cancel()
                        return  # not the leader any more, or not enough replicas
            finally:
                is_over.set()

    def _take(self, history: PublisherHistory, answer: api_pb2.PublishResponse) -> bool:
        if not answer.HasField("asyncError"):
            history.acked(int(answer.ack.correlationId), answer.ack.offset)
            self._note_answer()
            return True
        error = answer.asyncError
        self.errors[error.message[:ERROR_LENGTH_MAX]] += 1
        if error.code in _REFUSED or _NOT_STORED in error.message:
            history.refused(int(answer.correlationId))
        return False


class SteadyReader(SteadyWorker):
    """Reads by our own client, and after each break again behind what it got."""

    def __init__(
        self,
        history: History,
        addresses: Sequence[str],
        stream: str,
        *,
        reads_replica: bool = False,
    ) -> None:
        """Describe it; `start` begins. `reads_replica` lets it read at followers too."""
        super().__init__(f"reader-{stream}-{'replica' if reads_replica else 'leader'}")
        self._delivered = history.new_subscription()
        self._servers = ",".join(addresses)
        self._stream = stream
        self._reads_replica = reads_replica

    def run(self) -> None:
        """Run an event loop of its own."""
        asyncio.run(self._read())

    async def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._session()
            except LiftbridgeError as error:
                self._note_error(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _session(self) -> None:
        client = connect(self._servers, timeout=_TIMEOUT, retry_time=_RETRY_TIME)
        async with client as lb:
            start = Start.at(self._delivered[-1].offset + 1 if self._delivered else 0)
            subscription = lb.streams.get(self._stream).subscribe(
                start=start, read_replica=self._reads_replica, resume=True
            )
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._deliver(subscription))
                while not self._stopping.is_set() and not reading.done():
                    await asyncio.wait([reading], timeout=RETRY_SECONDS)
                reading.cancel()

    async def _deliver(self, subscription: Subscription[bytes]) -> None:
        try:
            async for message in subscription:
                self._delivered.append(Stored(message.offset, message.value))
                self._note_answer()
        except LiftbridgeError as error:
            self._note_error(error)
