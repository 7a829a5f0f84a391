"""An application that uses embedded NATS directly, with the Secret for applications.

It tries the subjects that it is given, publishes on the subject of a stream, and listens to all. It
ends when it has heard all that it published; meanwhile brokers replicate it.
"""

import asyncio
import ssl
import sys
from pathlib import Path

import nats
from nats.aio.msg import Msg

FOLDER = Path("/etc/nats")
COUNT = 50


async def main() -> None:
    heard: list[str] = []
    done = asyncio.Event()

    async def on_error(error: Exception) -> None:
        sys.stdout.write(f"denied {error}\n")

    async def on_message(message: Msg) -> None:
        heard.append(message.subject)
        if heard.count("private") == COUNT:
            done.set()

    address, user, password = (
        (FOLDER / name).read_text() for name in ("address", "username", "password")
    )
    connection = await nats.connect(
        f"tls://{address}",
        user=user,
        password=password,
        tls=ssl.create_default_context(cafile=str(FOLDER / "ca.crt")),
        error_cb=on_error,
    )
    for subject in sys.argv[1:]:
        await connection.subscribe(subject)
        await connection.publish(subject, b"forged")
    await connection.subscribe(">", cb=on_message)
    for _ in range(COUNT):
        await connection.publish("private", b"from nats")
    await asyncio.wait_for(done.wait(), 30)
    await connection.close()
    sys.stdout.write(" ".join(["heard", *sorted(set(heard))]) + "\n")


asyncio.run(main())
