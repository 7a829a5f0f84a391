"""What one command has to deal with: API server, clock, and person; and how it waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.port import Object
from liftbridge_operator.observing.objects import Json
from liftbridge_operator.plugin import lookup
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.lookup import name_of, namespace_of, place_of
from liftbridge_operator.plugin.port import Access

POLL_S: Final = 1.0
_MILLISECOND_NS: Final = 1_000_000


def wall_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // _MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Session:
    """What a command has.

    Attributes:
        access: To the API server.
        namespace: The one that is meant.
        tell: Progress for a person, line by line; never part of the answer.
        confirm: Asks a person; raises when there is none to ask.
        now_ms: Unix milliseconds.
        sleep: What waits between two looks.
    """

    access: Access
    namespace: str
    tell: Callable[[str], None]
    confirm: Callable[[str], bool]
    now_ms: Callable[[], int] = wall_ms
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def until(
    session: Session, resource: Json, missing: Callable[[Json], str], seconds: float
) -> Object:
    """Look again and again until nothing is missing.

    Args:
        session: Of the command.
        resource: Which cluster.
        missing: What is missing; empty when nothing is.
        seconds: For how long.

    Returns:
        The resource as it was seen last.

    Raises:
        PluginError: It takes longer, or the cluster is gone; says what is missing.
    """
    namespace, name = namespace_of(resource), name_of(resource)
    end_ms = session.now_ms() + round(seconds * 1_000)
    told = ""
    while True:
        try:
            found = await lookup.cluster(session.access, namespace, name)
            text = missing(found)
        except UnavailableError as error:  # it may be upgraded: the wait goes on
            found, text = dict(resource), f"the API server does not answer: {error.message}"
        if not text:
            return found
        if session.now_ms() >= end_ms:
            raise PluginError(_late(found, text, seconds), ExitCode.TIMED_OUT)
        if text != told:
            session.tell(f"{place_of(resource)}: {text}")
            told = text
        await session.sleep(POLL_S)


def _late(resource: Json, text: str, seconds: float) -> str:
    waits = [
        f"{one.get('what')} {one.get('object')}, until {one.get('endsWhen')}"
        for one in lookup.status_of(resource).get("waits") or ()
    ]
    why = f"; the operator waits for: {'; '.join(waits)}" if waits else ""
    stale = lookup.staleness(resource)
    return f"{place_of(resource)}: timed out after {seconds:g} s: {text}{why}" + (
        f"; {stale}" if stale else ""
    )
