"""Staggered calls to several brokers; the first answer wins (as RFC 8305 does with addresses)."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from liftbridge_client.errors import LiftbridgeError

_Answer = TypeVar("_Answer")


async def first_answer(
    asks: Sequence[Callable[[], Coroutine[Any, Any, _Answer]]], stagger_seconds: float
) -> _Answer:
    """Start calls in turn, each when the previous call fails or is silent for too long.

    Args:
        asks: At least one call; each is awaited at most once. The losing calls are cancelled.
        stagger_seconds: Seconds of silence of the latest call after which the next call starts as
            well.

    Raises:
        LiftbridgeError: The last error, if all calls failed.
    """
    assert asks
    loop = asyncio.get_running_loop()
    waiting = deque(asks)
    tasks: list[asyncio.Task[_Answer]] = []
    pending: set[asyncio.Task[_Answer]] = set()
    failure: LiftbridgeError | None = None
    try:
        while waiting or pending:
            if waiting:
                tasks.append(loop.create_task(waiting.popleft()()))
                pending.add(tasks[-1])
            done, pending = await asyncio.wait(
                pending,
                timeout=stagger_seconds if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                try:
                    return task.result()
                except LiftbridgeError as error:
                    failure = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert failure is not None
    raise failure
