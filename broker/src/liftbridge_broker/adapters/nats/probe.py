"""Checks whether a client without credentials could use the subjects of the brokers."""

import asyncio
import contextlib
import secrets
import ssl
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from nats.aio.client import Client

from liftbridge_broker.adapters.nats.credentials import tls_context
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.model.subjects import internal_subject

ANSWER_SECONDS: Final = 2.0


async def reachable_server(options: NatsOptions) -> str:
    """Find the first server that lets an anonymous client publish and receive cluster subjects.

    Args:
        options: Options of the broker's own links; no credentials are sent to the server.

    Returns:
        Host and port of the server; empty if no reachable server does.
    """
    subject = internal_subject(options.namespace, "probe", secrets.token_hex(8))
    stranger = replace(options, tls_cert="", tls_key="")
    for server in options.servers:
        url = urlsplit(server if "://" in server else f"nats://{server}")
        place = f"{url.hostname}:{url.port or 4222}"
        # No answer to an anonymous client may end the broker.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                tls = tls_context(stranger, is_demanded=url.scheme == "tls")
                if await _is_heard(f"{url.scheme}://{place}", subject, tls):
                    return place
    return ""


async def _is_heard(url: str, subject: str, tls: ssl.SSLContext | None) -> bool:
    client = Client()
    try:
        await client.connect(
            [url],
            name="liftbridge probe",
            allow_reconnect=False,
            max_reconnect_attempts=0,
            connect_timeout=int(ANSWER_SECONDS),
            tls=tls,
            error_cb=_ignore,
        )
        heard = await client.subscribe(subject)
        await client.publish(subject, b"")
        await heard.next_msg(timeout=ANSWER_SECONDS)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await client.close()
    return True


async def _ignore(error: Exception) -> None:
    """Ignore the error: a refusal shows by the missing message."""
    del error
