"""Context of one command: API server, clock and user; and its wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.cluster.observing.objects import Json
from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.units import MILLISECOND_NS
from liftbridge_operator.plugin import lookup
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.lookup import name_of, namespace_of, place_of
from liftbridge_operator.plugin.port import Access

POLL_S: Final = 1.0


def wall_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Session:
    """Context of a command.

    Attributes:
        access: Access to the API server.
        namespace: Selected namespace.
        report: Reports progress to the user, line by line; never part of the result.
        confirm: Asks the user; raises if there is no terminal.
        now_ms: Clock, in Unix milliseconds.
        sleep: Waits between two polls.
    """

    access: Access
    namespace: str
    report: Callable[[str], None]
    confirm: Callable[[str], bool]
    now_ms: Callable[[], int] = wall_ms
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def until(
    session: Session, resource: Json, missing: Callable[[Json], str], seconds: float
) -> Object:
    """Poll a cluster until nothing is missing.

    Args:
        session: Session of the command.
        resource: The cluster.
        missing: Describes what is missing; empty for nothing.
        seconds: Time limit.

    Returns:
        The resource as last read.

    Raises:
        PluginError: The time is over, and the text names the missing part; or the cluster was
            deleted.
    """
    namespace, name = namespace_of(resource), name_of(resource)
    end_ms = session.now_ms() + round(seconds * 1_000)
    reported = ""
    while True:
        try:
            found = await lookup.cluster(session.access, namespace, name)
            text = missing(found)
        except UnavailableError as error:  # perhaps during an upgrade: keep waiting
            found, text = dict(resource), f"the API server does not answer: {error.message}"
        if not text:
            return found
        if session.now_ms() >= end_ms:
            raise PluginError(_late(found, text, seconds), ExitCode.TIMED_OUT)
        if text != reported:
            session.report(f"{place_of(resource)}: {text}")
            reported = text
        await session.sleep(POLL_S)


def _late(resource: Json, text: str, seconds: float) -> str:
    waits = [
        f"{wait.get('what')} {wait.get('object')}, until {wait.get('endsWhen')}"
        for wait in lookup.status_of(resource).get("waits") or ()
    ]
    why = f"; the operator waits for: {'; '.join(waits)}" if waits else ""
    stale = lookup.staleness(resource)
    return f"{place_of(resource)}: timed out after {seconds:g} s: {text}{why}" + (
        f"; {stale}" if stale else ""
    )
