"""Works with nothing but the Secret of a `LiftbridgeUser`, in three ways, each until a call fails.

Each line that it prints is a word, a way and what there is to tell of it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from liftbridge_client import Client, LiftbridgeError, Start, Stream, TlsFiles, Token, connect

FOLDER = Path("/etc/liftbridge")
FROM_NATS = b"from nats"


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def refused(way: str, call: Awaitable[object]) -> None:
    try:
        await call
    except LiftbridgeError as error:
        say("refused", way, type(error).__name__)


async def until_it_fails(way: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except LiftbridgeError as error:
        say("failed", way, datetime.now(UTC).timestamp(), type(error).__name__)


async def work(client: Client, stream: Stream) -> None:
    async def single() -> None:
        while True:
            await stream.publish(b"single")
            say("done", "single")
            await asyncio.sleep(0.1)

    async def batches() -> None:
        async with stream.publisher() as publisher:
            while True:
                await asyncio.gather(*(publisher.publish(b"batch") for _ in range(20)))
                say("done", "batches")
                await asyncio.sleep(0.1)

    async def read() -> None:
        count = 0
        async for message in stream.subscribe(start=Start.earliest()):
            count += 1
            if message.value == FROM_NATS:
                say("heard", "nats")
            if count % 50 == 0:
                say("done", "read")

    ways = {"single": single, "batches": batches, "read": read}
    await asyncio.gather(*(until_it_fails(way, call) for way, call in ways.items()))


async def main() -> None:
    ca, cert, key, token = (FOLDER / name for name in ("ca.crt", "tls.crt", "tls.key", "token"))
    tls = TlsFiles(ca=ca, cert=cert, key=key) if cert.exists() else TlsFiles(ca=ca)
    async with connect(
        (FOLDER / "address").read_text(),
        tls=tls,
        token=Token(file=token) if token.exists() else None,
    ) as client:
        say("known", "as", (await client.who_am_i()).principal)
        await refused("create", client.streams.create("elsewhere"))
        await refused("publish", client.streams.get("other").publish(b"x"))
        await refused("subject", client.publish_to_subject("other", b"x"))
        say("sees", *sorted((await client.metadata()).streams))
        await work(client, client.streams.get("private"))


asyncio.run(main())
