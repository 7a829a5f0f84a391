"""Applications that speak plain NATS, by nats-py.

async with nats_client(server.url) as client:
    answers = await client.subscribe("acks") await settled(client) ... # messages to `acks` are
    received from now on
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client

WAIT_SECONDS_MAX = 60.0


@asynccontextmanager
async def nats_client(url: str, **options: Any) -> AsyncIterator[Client]:
    """Yield a connection that is closed at the end, also after a failure.

    An open connection would fail a later test when its transports are collected.

    Args:
        url: URL of the server.
        options: As of `nats.connect`.
    """
    client = await nats.connect(url, **options)
    try:
        yield client
    finally:
        await client.close()


async def settled(client: Client) -> None:
    """Wait until the server has acted on all subscriptions and messages of a client so far.

    `Client.flush` does not wait for them: its PING overtakes bytes that wait to be written. A
    message to the client itself goes through the same buffer and arrives after them.

    Raises:
        nats.errors.TimeoutError: The message did not arrive within `WAIT_SECONDS_MAX`.
    """
    inbox = client.new_inbox()
    echo = await client.subscribe(inbox)
    await client.publish(inbox, b"")
    await echo.next_msg(timeout=WAIT_SECONDS_MAX)
    await echo.unsubscribe()
