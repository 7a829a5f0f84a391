"""One deadline for a call with everything in it: connecting, every try, back-off, other brokers.

A public call sets it, and whatever it awaits sees what is left. It travels in a context variable,
so that it needs no argument at every function in between, and so also to the tasks of a call; what
outlives the call begins without one (`started_anew`).
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import timedelta
from time import monotonic
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from liftbridge_client.errors import UsageError

_Self = TypeVar("_Self")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

_END: Final[ContextVar[float]] = ContextVar("liftbridge_deadline", default=math.inf)


def seconds_left() -> float:
    """Time until the deadline, infinite without one; negative when it is over."""
    return _END.get() - monotonic()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """All that is awaited inside has so much time, or less where a deadline stands already."""
    token = _END.set(min(_END.get(), monotonic() + seconds))
    try:
        yield
    finally:
        _END.reset(token)


def try_seconds(timeout: timedelta) -> float:
    """Seconds of a try.

    Raises:
        UsageError: There are none, so that every call would end before it begins.
    """
    if not timeout:
        raise UsageError("timeout 0 s: must be more than 0 s; use timedelta(seconds=5)")
    return timeout.total_seconds()


def one_deadline(
    seconds_of: Callable[[Any], float],
) -> Callable[
    [Callable[Concatenate[_Self, _Arguments], Awaitable[_Result]]],
    Callable[Concatenate[_Self, _Arguments], Coroutine[Any, Any, _Result]],
]:
    """Give every call of an asynchronous method one deadline.

    Args:
        seconds_of: How long a call of an object may take.
    """

    def decorated(
        method: Callable[Concatenate[_Self, _Arguments], Awaitable[_Result]],
    ) -> Callable[Concatenate[_Self, _Arguments], Coroutine[Any, Any, _Result]]:
        @functools.wraps(method)
        async def call(
            self: _Self, /, *arguments: _Arguments.args, **named: _Arguments.kwargs
        ) -> _Result:
            with within(seconds_of(self)):
                return await method(self, *arguments, **named)

        return call

    return decorated


def started_anew(work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
    """A task without the deadline of the call that begins it."""
    context = copy_context()
    context.run(_END.set, math.inf)
    return asyncio.get_running_loop().create_task(work, context=context)
