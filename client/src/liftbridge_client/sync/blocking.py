"""Blocking methods made from asynchronous ones, with the same parameters and the same types."""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from liftbridge_client.aio.admin.client import AdminClient
from liftbridge_client.aio.client import Client
from liftbridge_client.sync.portal import Portal

_Original = TypeVar("_Original")
_Client = TypeVar("_Client", bound=Client | AdminClient)
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Blocking(Generic[_Original]):
    """Blocking form of an object of the asynchronous client, which runs on the portal's thread."""

    def __init__(self, portal: Portal, original: _Original) -> None:
        self._portal = portal
        self._original = original

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self._portal.run(coroutine)

    def _iterate(self, items: AsyncGenerator[_Result, None]) -> Iterator[_Result]:
        return self._portal.iterate(items)


class BlockingClient(Blocking[_Client]):
    """Blocking form of a client; a thread runs its event loop while the client is open."""

    def __init__(self, client: _Client) -> None:
        super().__init__(Portal(), client)

    def __enter__(self) -> Self:
        """Start the thread and connect."""
        self._portal.open()
        try:
            self._run(self._original.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; may be called twice."""
        if self._portal.is_open:
            try:
                self._run(self._original.aclose())
            finally:
                self._portal.close()


def blocking(
    method: Callable[Concatenate[_Original, _Parameters], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Blocking[_Original], _Parameters], _Result]:
    """Make a method that waits for the result of an asynchronous one."""

    @functools.wraps(method)
    def call(
        self: Blocking[_Original], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        return self._run(method(self._original, *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[_Original, _Parameters], AsyncGenerator[_Result, None]],
) -> Callable[Concatenate[Blocking[_Original], _Parameters], Iterator[_Result]]:
    """Make a method that iterates over the items of an asynchronous one."""

    @functools.wraps(method)
    def call(
        self: Blocking[_Original], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Iterator[_Result]:
        return self._iterate(method(self._original, *args, **kwargs))

    return call
