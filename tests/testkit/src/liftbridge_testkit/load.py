"""Publishers and readers that load a broker and record outcomes.

They run during the faults of a test, so they survive the loss of a broker or NATS server: they end
(`GrpcPublisher`, `Follower`) or continue once the server is back (`NatsPublisher`). Messages in
flight at that time stay unknown in the history, and `checker.check` accepts that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Final

import grpc
import nats
from nats.errors import Error as NatsError

from liftbridge_proto import api_pb2, api_pb2_grpc
from liftbridge_proto.ext.v1 import data_pb2, data_pb2_grpc
from liftbridge_testkit.checker import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from liftbridge_testkit.checker import History, PublisherHistory

WAIT_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.05

# Answers that prove that nothing was stored.
_DEFINITE: Final = frozenset(
    {
        api_pb2.PublishAsyncError.BAD_REQUEST,
        api_pb2.PublishAsyncError.NOT_FOUND,
        api_pb2.PublishAsyncError.READONLY,
        api_pb2.PublishAsyncError.INCORRECT_OFFSET,
        api_pb2.PublishAsyncError.PERMISSION_DENIED,
    }
)

# Envelope of a publish: magic, version 0, header length 8, no flags, type 0 (publish).
_ENVELOPE: Final = b"\xb9\x0e\x43\xb4\x00\x08\x00\x00"


class Worker:
    """A thread with a stop request, a count of successes and an error that `join` raises."""

    def __init__(self, name: str) -> None:
        self.done_count = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, wait for the answers in flight, and end."""
        self._stopping.set()
        self.join()

    def join(self) -> None:
        """Wait for the end, also after a broken connection; raise the error of the thread."""
        self._thread.join(WAIT_SECONDS_MAX)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs"
        if self.error is not None:
            raise self.error

    def wait_for(self, count: int, seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """Wait until the worker has succeeded this often."""
        with self._progress:
            reached = self._progress.wait_for(
                lambda: self.done_count >= count or self.error is not None, seconds_max
            )
        if self.error is not None:
            raise self.error
        assert reached, f"{self._thread.name}: {self.done_count} of {count} in {seconds_max} s"

    def run(self) -> None:
        """Do the work until stopped or disconnected."""
        raise NotImplementedError

    def _succeeded(self, count: int = 1) -> None:
        with self._progress:
            self.done_count += count
            self._progress.notify_all()

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised by join()
            self.error = error
            with self._progress:
                self._progress.notify_all()


class GrpcPublisher(Worker):
    """Publishes over one PublishAsync call until stopped or until the call breaks."""

    def __init__(
        self,
        history: PublisherHistory,
        address: str,
        stream: str,
        *,
        window: int = 64,
        size: int = 64,
        policy: api_pb2.AckPolicy = api_pb2.LEADER,
    ) -> None:
        super().__init__(f"grpc-publisher-{history.publisher}")
        self._history = history
        self._address = address
        self._stream = stream
        self._window = threading.Semaphore(window)
        self._size = size
        self._policy = policy
        self._is_cut = threading.Event()

    def run(self) -> None:
        """Send on one thread of grpcio, and receive answers on this thread."""
        with grpc.insecure_channel(self._address) as channel:
            answers = api(channel).PublishAsync(self._requests())
            try:
                for answer in answers:
                    self._take(answer)
            except grpc.RpcError:
                return  # messages in flight stay unknown
            finally:
                self._is_cut.set()

    def _requests(self) -> Iterator[api_pb2.PublishRequest]:
        while not self._stopping.is_set() and not self._is_cut.is_set():
            if not self._window.acquire(timeout=_POLL_SECONDS):
                continue
            sequence, value = self._history.invoke(self._size)
            yield api_pb2.PublishRequest(
                stream=self._stream,
                value=value,
                correlationId=str(sequence),
                ackPolicy=self._policy,
                expectedOffset=-1,
            )

    def _take(self, answer: api_pb2.PublishResponse) -> None:
        if answer.HasField("asyncError"):
            if answer.asyncError.code in _DEFINITE:
                self._history.refused(int(answer.correlationId))
        else:
            self._history.acked(int(answer.ack.correlationId), answer.ack.offset)
            self._succeeded()
        self._window.release()


class NatsPublisher(Worker):
    """Publishes over plain NATS, in envelopes with an ack inbox; continues after any restart.

    A message without an ack in time stays unknown, and the window advances, because the broker may
    have been down at the time of the message. A pause after each window bounds the rate for readers
    that must keep up.
    """

    def __init__(
        self,
        history: PublisherHistory,
        nats_url: str,
        subject: str,
        *,
        window: int = 64,
        patience_seconds: float = 0.5,
        pause_seconds: float = 0.0,
    ) -> None:
        super().__init__(f"nats-publisher-{history.publisher}")
        self._history = history
        self._url = nats_url
        self._subject = subject
        self._window = window
        self._patience = patience_seconds
        self._pause = pause_seconds
        self._pending: set[int] = set()
        self._acked = asyncio.Event()

    def run(self) -> None:
        """Run an event loop in this thread."""
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        client = await nats.connect(
            self._url,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            error_cb=_ignore_error,
        )
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=self._on_ack)
        while not self._stopping.is_set():
            if not client.is_connected:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            with contextlib.suppress(NatsError):
                await self._send_window(client, inbox)
            await asyncio.sleep(self._pause)
        await client.close()

    async def _send_window(self, client: Client, inbox: str) -> None:
        self._pending.clear()
        for _ in range(self._window):
            sequence, value = self._history.invoke()
            message = api_pb2.Message(
                value=value, ackInbox=inbox, correlationId=str(sequence), offset=-1
            )
            self._pending.add(sequence)
            await client.publish(self._subject, _ENVELOPE + message.SerializeToString())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while self._pending:
                    self._acked.clear()
                    await self._acked.wait()

    async def _on_ack(self, message: Msg) -> None:
        ack = api_pb2.Ack.FromString(message.data[message.data[5] :])
        if ack.ackError == api_pb2.Ack.OK:
            sequence = int(ack.correlationId)
            self._history.acked(sequence, ack.offset)
            self._pending.discard(sequence)
            self._succeeded()
            self._acked.set()


class Follower(Worker):
    """Subscribes from an offset and records all deliveries, until stopped or disconnected."""

    def __init__(self, history: History, address: str, stream: str, *, start: int = 0) -> None:
        super().__init__("follower")
        self._delivered = history.new_subscription()
        self._address = address
        self._stream = stream
        self._start = start
        self._call: grpc.Future[object] | None = None

    def run(self) -> None:
        """Read until the call ends."""
        with grpc.insecure_channel(self._address) as channel:
            call = api(channel).Subscribe(
                api_pb2.SubscribeRequest(
                    stream=self._stream, startPosition=api_pb2.OFFSET, startOffset=self._start
                )
            )
            self._call = call
            try:
                next(call)  # the empty message that confirms the subscription
                for message in call:
                    self._delivered.append(Stored(message.offset, message.value))
                    self._succeeded()
            except grpc.RpcError:
                return  # cancelled by `stop`, or cut off

    def stop(self) -> None:
        """Cancel the call."""
        if self._call is not None:
            self._call.cancel()
        super().stop()


def api(channel: grpc.Channel) -> api_pb2_grpc.APIStub:
    """Return a stub of the public API."""
    return api_pb2_grpc.APIStub(channel)  # type: ignore[no-untyped-call] # generated


def data(channel: grpc.Channel) -> data_pb2_grpc.DataStub:
    """Return a stub of the data API."""
    return data_pb2_grpc.DataStub(channel)  # type: ignore[no-untyped-call] # generated


def create_stream(
    channel: grpc.Channel,
    name: str,
    *,
    fsync: data_pb2.FsyncPolicy = data_pb2.FSYNC_POLICY_UNSPECIFIED,
) -> None:
    """Create a stream of one partition on the subject of the same name."""
    data(channel).CreateStream(
        data_pb2.CreateStreamRequest(
            stream=api_pb2.CreateStreamRequest(name=name, subject=name),
            options=data_pb2.StreamOptions(fsync_policy=fsync),
        ),
        timeout=WAIT_SECONDS_MAX,
    )


def read_log(channel: grpc.Channel, stream: str, *, start: int = 0) -> list[Stored]:
    """Read a partition from an offset to its current end; empty for no records."""
    call = api(channel).Subscribe(
        api_pb2.SubscribeRequest(
            stream=stream,
            startPosition=api_pb2.OFFSET,
            startOffset=start,
            stopPosition=api_pb2.STOP_LATEST,
        ),
        timeout=WAIT_SECONDS_MAX * 4,
    )
    found: list[Stored] = []
    try:
        next(call)
        found.extend(Stored(message.offset, message.value) for message in call)
    except grpc.RpcError as error:
        # The end of a bounded subscription has its own error code.
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
    return found


async def _ignore_error(_error: Exception) -> None:
    """Ignore the error: tests of this module cause lost connections."""
