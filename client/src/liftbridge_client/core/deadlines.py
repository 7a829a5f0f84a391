"""One deadline for a whole call: connecting, every attempt, back-off, other brokers.

A public call sets it, and everything that the call awaits sees the remaining time. A context
variable carries it, so that functions in between need no argument, and tasks of the call inherit
it; tasks that outlive the call start without one (`started_anew`).
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

TRY_SECONDS_MIN: Final = 0.1
"""Minimum duration of an attempt: a shorter attempt would only hide why earlier attempts failed."""

_END: Final[ContextVar[float]] = ContextVar("liftbridge_deadline", default=math.inf)


def seconds_left() -> float:
    """Return the seconds until the deadline: infinite without a deadline, negative after it."""
    return _END.get() - monotonic()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the time of everything awaited inside; an earlier deadline stays in effect."""
    token = _END.set(min(_END.get(), monotonic() + seconds))
    try:
        yield
    finally:
        _END.reset(token)


def try_seconds(timeout: timedelta) -> float:
    """Convert the timeout of an attempt to seconds.

    Raises:
        UsageError: The timeout is not positive, so every call would time out before it starts.
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
        seconds_of: Returns the limit for a call on an object.
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
    """Start a task without the deadline of the current call."""
    context = copy_context()
    context.run(_END.set, math.inf)
    return asyncio.get_running_loop().create_task(work, context=context)
