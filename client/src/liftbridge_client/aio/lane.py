"""Publishing to one partition: batches in order, each answered once.

A lane owns one call to the leader of its partition and two tasks while it has work: one writes,
one reads. When the call breaks, an idempotent lane opens another and resends unanswered batches
with the same sequences, so that nothing is stored twice; any other lane reports to its callers that
the outcome is unknown.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from google.protobuf.message import Message as ProtoMessage

from liftbridge_client import methods
from liftbridge_client.aio.identity import PublisherIdentity
from liftbridge_client.aio.items import Item
from liftbridge_client.core.codec import ack_of, policy_of
from liftbridge_client.core.deadlines import started_anew, within
from liftbridge_client.core.refusals import async_error, batch_error
from liftbridge_client.errors import (
    CallTimeoutError,
    ClosedError,
    FailedPreconditionError,
    LiftbridgeError,
    OutcomeUnknownError,
    RetriableError,
    SequenceError,
    TooLargeError,
)
from liftbridge_client.events import PublisherReconnects, SlowAcks
from liftbridge_client.model import Ack, AckPolicy
from liftbridge_client.transport import Duplex
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

_Request = TypeVar("_Request", bound=ProtoMessage)
_Response = TypeVar("_Response", bound=ProtoMessage)

READ_AFTER_WRITE_SECONDS: Final = 0.2
"""Seconds to wait for the reader after a write failed."""

LOOK_SECONDS_MIN: Final = 0.05
"""Shortest interval at which a lane checks for late acks."""

LEADER_DOUBT_SECONDS: Final = 1.0
"""Silence after which a lane checks whether another broker leads; a hung broker sends no error."""

CLOSED: Final = "the publisher, or its client, was closed before the ack arrived"

BATCH_COUNT_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 256 * 1024
WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0


class LaneOwner(Protocol):
    """Interface of a publisher that its lanes use."""

    client: "Session"
    stream_name: str
    ack_policy: AckPolicy
    identity: PublisherIdentity | None
    takes_single: bool

    def on_settled(self, item: Item) -> None:
        """Handle the outcome of an item."""
        ...


class _RenumberedError(Exception):
    """The waiting items have new sequences."""


class _RenewedError(Exception):
    """All sent items are answered, and the next call has newer credentials."""


class Lane:
    """Queue of items for one partition, sent in order.

    Args:
        owner: The publisher.
        partition: Number of the partition.
        next_sequence: Sequence of the first message.
        has_own_numbers: Whether messages keep their sequences even after an earlier one is refused.
            Only the first may skip sequences; a later one fails, since the refused one leaves a
            gap.
    """

    def __init__(
        self,
        owner: LaneOwner,
        partition: int,
        next_sequence: int,
        *,
        has_own_numbers: bool = False,
    ) -> None:
        self._owner = owner
        self._partition = partition
        self._next_sequence = next_sequence
        self._has_own_numbers = has_own_numbers
        self._may_skip = has_own_numbers
        self._waiting: deque[Item] = deque()
        self._unanswered: dict[int, Item] = {}
        self._next_id = 0
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._progress_at = 0.0
        self._leader_epoch = 0
        self._address = ""
        self._proof: object = None
        self._is_leaving = False

    def put(self, item: Item) -> None:
        """Queue an item."""
        loop = asyncio.get_running_loop()
        if not self._waiting and not self._unanswered:
            self._progress_at = loop.time()  # an idle lane was not waiting for acks
        item.sequence = self._next_sequence
        item.may_skip, self._may_skip = self._may_skip, False
        self._next_sequence += len(item.values)
        self._waiting.append(item)
        self._has_work.set()
        if self._task is None or self._task.done():
            self._task = started_anew(self._run())

    async def aclose(self) -> None:
        """Stop; items without an outcome fail."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._fail_all(ClosedError(CLOSED))

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send while there is work; any error fails all items, so that no caller waits for ever."""
        try:
            await self._keep_calling()
        except asyncio.CancelledError:  # by `aclose`, or the client closed the call
            self._fail_all(ClosedError(CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - every caller gets it, with its cause
            failed = LiftbridgeError(
                f"the client failed while sending: {type(error).__name__}: {error}"
            )
            failed.__cause__ = error
            self._fail_all(failed)

    async def _keep_calling(self) -> None:
        """Keep a call open while there is work; give up after the client's retry time."""
        loop = asyncio.get_running_loop()
        wait = WAIT_FIRST_SECONDS
        while True:
            before = self._progress_at
            try:
                await self._session()
            except _RenumberedError:
                unanswered, self._unanswered = self._unanswered, {}
                self._waiting.extendleft(reversed(unanswered.values()))
                continue
            except _RenewedError:
                if not self._waiting:
                    return
                continue
            except LiftbridgeError as error:
                if self._progress_at > before:
                    wait = WAIT_FIRST_SECONDS
                # The next publisher must not call the same broker again, even if the callers close
                # this publisher as soon as they get the error.
                self._doubt_leader()
                if not self._keep_after(error, loop.time()):
                    await self._refresh()
                    if not self._waiting:
                        return
                self._emit_reconnect(error)
            self._owner.client.stats.retries += 1
            await asyncio.sleep(min(wait, self._seconds_left()))
            wait = min(2 * wait, WAIT_MAX_SECONDS)
            await self._refresh()

    def _emit_reconnect(self, cause: LiftbridgeError) -> None:
        self._owner.client.hub.emit(
            PublisherReconnects(
                self._owner.stream_name, self._partition, self._waiting_count(), cause
            )
        )

    def _waiting_count(self) -> int:
        return sum(len(i.values) for i in (*self._unanswered.values(), *self._waiting))

    def _doubt_leader(self) -> None:
        self._owner.client.doubt_leader(self._owner.stream_name, self._partition)

    async def _refresh(self) -> None:
        with contextlib.suppress(LiftbridgeError), within(self._seconds_left()):
            await self._owner.client.refresh()

    def _seconds_left(self) -> float:
        """Return the seconds after which the waiting items fail."""
        until = self._progress_at + self._owner.client.call_seconds
        return max(until - asyncio.get_running_loop().time(), 0.0)

    def _keep_after(self, error: LiftbridgeError, now: float) -> bool:
        """Decide on each item after a call broke; return whether the lane continues."""
        elapsed = now - self._progress_at
        if not self._waiting and not self._unanswered:
            return False
        if isinstance(error, TooLargeError) and self._unanswered:
            self._drop_largest(error)
        elif not error.retriable and not isinstance(error, FailedPreconditionError):
            self._fail_all(error)
            return False
        if elapsed >= self._owner.client.retry_seconds:
            self._fail_all(error)
            return False
        unanswered, self._unanswered = self._unanswered, {}
        if self._owner.identity is not None:
            self._waiting.extendleft(reversed(unanswered.values()))
            return True
        unknown = OutcomeUnknownError(
            f"the connection broke before the ack: {error}", server_text=error.server_text
        )
        for item in unanswered.values():
            self._settle(item, unknown)
        return bool(self._waiting)

    async def _session(self) -> None:
        """Make one call: write items, read answers, until it breaks."""
        client = self._owner.client
        with within(self._seconds_left()):
            self._address = await client.leader_address(self._owner.stream_name, self._partition)
        self._proof, self._is_leaving = client.transport.proof(), False
        if client.has_data and not self._owner.takes_single:
            await self._batch_session(self._address)
        else:
            await self._plain_session(self._address)

    async def _next_item(self) -> Item:
        while self._is_leaving or not self._waiting:
            self._has_work.clear()
            await self._has_work.wait()
        return self._waiting.popleft()

    async def _batch_session(self, address: str) -> None:
        call = self._owner.client.transport.duplex(address, methods.PUBLISH_BATCH)

        async def write() -> None:
            await call.connected()  # items still queued until then were certainly not sent
            while True:
                item = await self._next_item()
                self._next_id += 1
                self._unanswered[self._next_id] = item
                await call.write(self._batch_request(self._next_id, item))

        await self._both(call, write(), self._read_batches(call))

    def _batch_request(self, request_id: int, item: Item) -> data_pb2.PublishBatchRequest:
        request = data_pb2.PublishBatchRequest(
            request_id=request_id,
            stream=self._owner.stream_name,
            partition=self._partition,
            ack_policy=policy_of(self._owner.ack_policy),
            values=item.values,
            keys=item.keys if any(item.keys) else (),
        )
        if any(item.headers):
            for headers in item.headers:
                request.headers.add(headers=headers or {})
        identity = self._owner.identity
        if identity is not None:
            request.publisher_id = identity.publisher_id
            request.publisher_epoch = identity.publisher_epoch
            request.first_sequence = item.sequence
            request.may_skip = item.may_skip
        item.send_count += 1
        return request

    async def _read_batches(
        self, call: Duplex[data_pb2.PublishBatchRequest, data_pb2.PublishBatchResponse]
    ) -> None:
        loop = asyncio.get_running_loop()
        while (response := await call.read()) is not None:
            item = self._unanswered.get(response.request_id)
            if item is None:
                continue
            error = batch_error(response)
            is_idempotent = self._owner.identity is not None
            if is_idempotent and error is not None and self._is_undecided(error, response):
                # By its sequences, the new leader knows whether it is stored. It keeps its place,
                # because the items behind it would leave a gap without it.
                raise RetriableError(str(error), server_text=error.server_text)
            del self._unanswered[response.request_id]
            self._progress_at = loop.time()
            if error is None:
                self._on_acked(item, response)
            elif is_idempotent:
                self._on_refused(item, error)
            elif response.error == data_pb2.PublishBatchResponse.NOT_LEADER:
                self._doubt_leader()
                self._settle(item, error)
                raise error  # it would refuse the following items, too: look up the leader
            else:
                self._settle(item, error)
        raise RetriableError("the broker closed the call")

    def _is_undecided(
        self, error: LiftbridgeError, response: data_pb2.PublishBatchResponse
    ) -> bool:
        """Return whether a retry may bring an ack.

        A former leader that does not know the new leader epoch yet lacks later acknowledged
        batches, so a batch that it refuses as out of order may be stored.
        """
        is_former = response.leader_epoch < self._leader_epoch
        return (
            error.retriable
            or isinstance(error, OutcomeUnknownError)
            or (is_former and isinstance(error, SequenceError))
        )

    def _on_acked(self, item: Item, response: data_pb2.PublishBatchResponse) -> None:
        """Resolve the futures of a stored batch."""
        self._leader_epoch = max(self._leader_epoch, response.leader_epoch)
        first = Ack(
            self._owner.stream_name,
            self._partition,
            response.base_offset,
            response.timestamp,
            response.duplicate,
            response.leader_epoch,
        )
        if response.pieces:
            pieces = [(piece.base_offset, piece.record_count) for piece in response.pieces]
            item.acked_in_pieces(first, pieces)
        else:
            item.acked(first)
        self._owner.client.stats.published += len(item.values)
        self._owner.on_settled(item)

    def _on_refused(self, item: Item, error: LiftbridgeError) -> None:
        """Fail a refused batch of an idempotent publisher: later batches take its sequences.

        The broker refuses these, too, because their sequences leave a gap, so none of them is
        stored.

        Raises:
            _RenumberedError: The call must be repeated with the new sequences.
        """
        if item.send_count > 1:
            # An earlier attempt may have stored it, so the next sequence is unknown.
            text = f"no ack was received: {error}"
            self._settle(item, OutcomeUnknownError(text, server_text=error.server_text))
            return
        self._settle(item, error)
        if isinstance(error, SequenceError) or self._has_own_numbers:
            return
        for other in self._unanswered.values():
            if other.sequence > item.sequence:
                other.send_count -= 1
        self._close_gap(item)
        raise _RenumberedError

    def _close_gap(self, item: Item) -> None:
        """Give the sequences of an item that was not stored to those behind it."""
        if self._has_own_numbers:
            return
        sequence = gone = item.sequence
        for other in (*self._unanswered.values(), *self._waiting):
            if other.sequence > gone:
                other.sequence = sequence
                sequence += len(other.values)
        self._next_sequence = sequence

    def _drop_largest(self, error: TooLargeError) -> None:
        """Fail the largest item: gRPC ended the call at a message too large to be received."""
        number, item = max(self._unanswered.items(), key=lambda entry: entry[1].size_bytes)
        del self._unanswered[number]
        self._close_gap(item)
        self._settle(item, TooLargeError(str(error), server_text=error.server_text))

    async def _plain_session(self, address: str) -> None:
        """Make the original server's call: one request and one response for each message."""
        call = self._owner.client.transport.duplex(address, methods.PUBLISH_ASYNC)

        async def write() -> None:
            await call.connected()
            while True:
                item = await self._next_item()
                self._next_id += 1
                self._unanswered[self._next_id] = item
                item.send_count += 1
                for index in range(len(item.values)):
                    await call.write(self._plain_request(self._next_id, item, index))
                if self._owner.ack_policy == "none":
                    del self._unanswered[self._next_id]
                    item.acked(Ack(self._owner.stream_name, self._partition, -1, 0))
                    self._owner.on_settled(item)

        await self._both(call, write(), self._read_plain(call))

    def _plain_request(self, number: int, item: Item, index: int) -> api_pb2.PublishRequest:
        return api_pb2.PublishRequest(
            stream=self._owner.stream_name,
            partition=self._partition,
            key=item.keys[index],
            value=item.values[index],
            headers=item.headers[index] or {},
            ackPolicy=policy_of(self._owner.ack_policy),
            correlationId=f"{number}.{index}",
            expectedOffset=-1,
        )

    async def _read_plain(
        self, call: Duplex[api_pb2.PublishRequest, api_pb2.PublishResponse]
    ) -> None:
        loop = asyncio.get_running_loop()
        while (response := await call.read()) is not None:
            self._progress_at = loop.time()
            has_error = response.HasField("asyncError")
            name = response.correlationId if has_error else response.ack.correlationId
            number, _, index = name.partition(".")
            item = self._unanswered.get(int(number)) if number.isdigit() else None
            if item is None or not index.isdigit():
                continue
            if has_error:
                item.results[int(index)] = async_error(response.asyncError)
            else:
                item.results[int(index)] = ack_of(response.ack, self._partition)
                self._owner.client.stats.published += 1
            if len(item.results) == len(item.values):
                del self._unanswered[int(number)]
                item.settle([item.results[position] for position in range(len(item.values))])
                self._owner.on_settled(item)
        raise RetriableError("the broker closed the call")

    async def _both(
        self,
        call: Duplex[_Request, _Response],
        write: Coroutine[Any, Any, None],
        read: Coroutine[Any, Any, None],
    ) -> None:
        """Write and read until either fails; raise the reader's error, which is more specific."""
        loop = asyncio.get_running_loop()
        writing, reading = loop.create_task(write), loop.create_task(read)
        try:
            await self._until_either((writing, reading))
            if not reading.done():
                await asyncio.wait((reading,), timeout=READ_AFTER_WRITE_SECONDS)
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            call.cancel()
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _until_either(self, tasks: "tuple[asyncio.Task[None], asyncio.Task[None]]") -> None:
        """Wait until a task ends.

        Raises:
            CallTimeoutError: The broker was silent for longer than the call timeout.
            RetriableError: The broker was silent, and another broker leads now.
            _RenewedError: The credentials of the client have changed. The broker would end this
                call together with the former ones, whatever is unanswered then.
        """
        loop = asyncio.get_running_loop()
        client = self._owner.client
        limit = min(client.timeout_seconds, client.call_seconds)
        told_at = looked_at = 0.0
        while True:
            slow = client.hub.slow_seconds or limit
            done, _ = await asyncio.wait(
                tasks,
                timeout=max(min(slow, limit, LEADER_DOUBT_SECONDS) / 4, LOOK_SECONDS_MIN),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                return
            self._is_leaving = self._is_leaving or client.transport.proof() != self._proof
            if self._is_leaving and not self._unanswered:
                raise _RenewedError
            is_owed = self._unanswered or self._waiting
            elapsed = loop.time() - self._progress_at if is_owed else 0.0
            if elapsed > slow and told_at != self._progress_at:
                told_at = self._progress_at
                stream, count = self._owner.stream_name, self._waiting_count()
                client.hub.emit(SlowAcks(stream, self._partition, count, elapsed))
            if elapsed > limit:
                raise CallTimeoutError(f"the broker has not answered for {limit:g} s")
            if elapsed > LEADER_DOUBT_SECONDS and loop.time() - looked_at > LEADER_DOUBT_SECONDS:
                looked_at = loop.time()
                if await self._is_replaced(limit - elapsed):
                    raise RetriableError("another broker leads now")

    async def _is_replaced(self, seconds_max: float) -> bool:
        """Fetch metadata; return whether it names another leader than the broker of this call."""
        client = self._owner.client
        try:
            async with asyncio.timeout(seconds_max):
                await client.refresh()
                leader = await client.leader_address(self._owner.stream_name, self._partition)
        except (LiftbridgeError, TimeoutError):
            return False
        return leader != self._address

    # -- outcomes -----------------------------------------------------------------------------

    def _settle(self, item: Item, error: LiftbridgeError) -> None:
        item.failed(error)
        self._owner.on_settled(item)

    def _fail_all(self, error: LiftbridgeError) -> None:
        """Fail all items: sent ones with an unknown outcome, the rest as not sent."""
        error.may_be_done = False
        unanswered, self._unanswered = self._unanswered, {}
        waiting, self._waiting = self._waiting, deque()
        for item in (*unanswered.values(), *waiting):
            if item.send_count:
                text = f"no ack was received: {error}"
                unknown = OutcomeUnknownError(text, server_text=error.server_text)
                unknown.__cause__ = error
                self._settle(item, unknown)
            else:
                self._settle(item, error)
