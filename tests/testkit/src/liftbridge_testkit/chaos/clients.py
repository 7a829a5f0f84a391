"""Plain gRPC that continues over every fault: it finds the leader again and notes what it learned.

As a program without our client would do it, always with acks of all replicas. Programs with our
client are in `liftbridge_testkit.steady`.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.load import api
from liftbridge_testkit.steady import (
    ERROR_LENGTH_MAX,
    NOT_STORED,
    RETRY_SECONDS,
    VALUE_BYTES,
    SteadyWorker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftbridge_testkit.checker import History, PublisherHistory

WINDOW: Final = 64
PATIENCE_SECONDS: Final = 2.0
"""Time for which a plain client waits for the next answer before it looks for another leader."""

# Refusals of a single message which state that nothing was stored.
_REFUSED: Final = frozenset(
    {
        api_pb2.PublishAsyncError.BAD_REQUEST,
        api_pb2.PublishAsyncError.NOT_FOUND,
        api_pb2.PublishAsyncError.READONLY,
        api_pb2.PublishAsyncError.INCORRECT_OFFSET,
    }
)


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
            leader: Returns the address of the leader, empty if unknown.
            stream: Stream to publish to.
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
                    self.note_error(error)
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
            self.note_answer()
            return True
        error = answer.asyncError
        self.errors[error.message[:ERROR_LENGTH_MAX]] += 1
        if error.code in _REFUSED or NOT_STORED in error.message:
            history.refused(int(answer.correlationId))
        return False
