"""A process that attacks: reads lines `name seconds` and answers each when the attack is over."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from time import monotonic
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.hostile.attacks import attacks
from liftbridge_testkit.http2_peer import Http2Peer

if TYPE_CHECKING:
    from liftbridge_testkit.hostile.attacks import Attack

READ_BYTES: Final = 1 << 20
NATS_HELLO: Final = b'CONNECT {"verbose":false,"headers":true}\r\n'
AGAIN_SECONDS: Final = 0.05
"""Time before a closed connection is opened again."""


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(READ_BYTES):
        pass


async def _talk(attack: Attack, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say what there is to say, and stay until the other side ends the connection."""
    if attack.has_hello:
        writer.write(NATS_HELLO if attack.is_on_nats else Http2Peer.hello(attack.settings))
    async with asyncio.TaskGroup() as group:
        if attack.is_reading and attack.rounds_max:
            group.create_task(_read(reader))
        first = 1
        for _ in range(attack.rounds_max):
            data, streams = attack.round(first)
            first += 2 * streams
            writer.write(data)
            await writer.drain()
        if not attack.is_reading:
            await asyncio.Event().wait()


async def _connection(attack: Attack, host: str, port: int, until: float) -> None:
    """One connection, made again whenever it is ended, until time is over."""
    while monotonic() < until:
        with contextlib.suppress(OSError, ExceptionGroup):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                async with asyncio.timeout(max(0.1, until - monotonic())):
                    await _talk(attack, reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(AGAIN_SECONDS)


async def attack(chosen: Attack, host: str, port: int, seconds: float) -> None:
    """Attack for some seconds."""
    until = monotonic() + seconds
    await asyncio.gather(
        *(_connection(chosen, host, port, until) for _ in range(chosen.connections)),
        return_exceptions=True,
    )


def main() -> None:
    """Serve lines from standard input; arguments are where the broker and the NATS server are."""
    ways = [address.partition(":")[::2] for address in sys.argv[1:3]]
    by_name = {one.name: one for one in attacks()}
    for line in sys.stdin:
        name, _, seconds = line.rstrip("\n").rpartition(" ")
        chosen = by_name[name]
        host, port = ways[chosen.is_on_nats]
        asyncio.run(attack(chosen, host, int(port), float(seconds)))
        sys.stdout.write("over\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
