"""The thread whose event loop runs the asyncio client."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from liftbridge_client.core.forks import Opener
from liftbridge_client.errors import ClosedError, UsageError

_Result = TypeVar("_Result")

CLOSED = "the client is not open: use it inside `with connect_sync(...)`"


class Portal:
    """Runs coroutines on the event loop's thread, for any calling thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opener = Opener()

    @property
    def is_open(self) -> bool:
        """Return whether the thread runs in this process."""
        return self._loop is not None and not self._opener.is_other

    def open(self) -> None:
        """Start the thread.

        Raises:
            UsageError: The thread already runs.
        """
        if self.is_open:
            raise UsageError("the client is already open: create another one with `connect_sync`")
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="liftbridge", daemon=True)
        self._thread.start()
        self._loop = loop
        self._opener.open()

    def close(self) -> None:
        """End the thread; pending calls raise `ClosedError`."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine and wait for it.

        Raises:
            ClosedError: The client was not entered, is closed, or was closed during the call.
            UsageError: Called on the event loop's thread, for example by a callback of a future,
                which would deadlock; or called in a process that did not open the client.
        """
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise ClosedError(CLOSED)
        if self._opener.is_other:
            coroutine.close()
            self._opener.check()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError(
                "a callback of a future must not call the client: it would block its event loop"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("the client was closed during the call") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that closes an object of the client; no-op once the client is closed."""
        if not self.is_open:
            coroutine.close()
            return
        with suppress(ClosedError):
            self.run(coroutine)

    def iterate(self, items: AsyncGenerator[_Result, None]) -> Iterator[_Result]:
        """Iterate over an asynchronous generator, and close it at the end."""
        try:
            yield from self.drain(items)
        finally:
            # The garbage collector may run this on the loop's thread; then the loop closes the
            # generator.
            with suppress(UsageError):
                self.run(_close(items))

    def drain(self, items: AsyncIterator[_Result]) -> Iterator[_Result]:
        """Iterate over an asynchronous iterator."""
        while True:
            try:
                item = self.run(_next(items))
            except _EndError:
                return
            yield item

    def future_of(self, make: Coroutine[Any, Any, "asyncio.Future[_Result]"]) -> Future[_Result]:
        """Run a coroutine that returns an asyncio future; return a `concurrent.futures` one for it.

        Raises:
            ClosedError: As for `run`.
        """
        theirs: Future[_Result] = Future()

        def copy(ours: "asyncio.Future[_Result]") -> None:
            if ours.cancelled():
                theirs.set_exception(ClosedError("the client was closed before the ack arrived"))
            elif (error := ours.exception()) is not None:
                theirs.set_exception(error)
            else:
                theirs.set_result(ours.result())

        async def start() -> None:
            (await make).add_done_callback(copy)

        theirs.set_running_or_notify_cancel()  # not cancellable: the message may already be sent
        try:
            self.run(start())
        except BaseException:
            make.close()  # it may not have started
            raise
        return theirs


async def _next(items: AsyncIterator[_Result]) -> _Result:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _EndError from None


class _EndError(Exception):
    """The iterator is exhausted; `StopAsyncIteration` cannot leave a coroutine."""


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _cancel_all() -> None:
    """Cancel the tasks that still run on the loop, and close its generators."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
