"""What a NATS server sends until the handshake is over: lines, read one at a time."""

import asyncio


class HandshakeLines:
    """Received bytes that no parser takes yet, as lines for nats-py.

    After the first line, `INFO` and `PING` are kept for the parser: nats-py then expects only the
    answer to its own `PING`. The connection adds bytes, bounds their number and reports its end.

    Args:
        loop: The running event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = bytearray()
        self._deferred = b""
        self._is_greeted = False
        self._is_ended = False
        self._more: asyncio.Future[None] | None = None

    @property
    def unread_bytes(self) -> int:
        """Bytes received and not read as lines."""
        return len(self._received)

    def add(self, data: bytes) -> None:
        """Add bytes from the socket."""
        self._received += data
        self._wake()

    def end(self) -> None:
        """End the input; whole lines that arrived before can still be read."""
        self._is_ended = True
        self._wake()

    async def read(self) -> bytes:
        """Return the next line with its end, empty if the connection ended."""
        while True:
            end = self._received.find(b"\r\n")
            if end < 0:
                if self._is_ended:
                    return b""
                self._more = self._loop.create_future()
                await self._more
                continue
            line = bytes(self._received[: end + 2])
            del self._received[: end + 2]
            if self._is_greeted and line.startswith((b"INFO ", b"PING")):
                self._deferred += line
                continue
            self._is_greeted = True
            return line

    def take_rest(self) -> bytes:
        """Take what is left for the parser: lines kept for it, then unread bytes."""
        rest = self._deferred + bytes(self._received)
        self._received.clear()
        return rest

    def _wake(self) -> None:
        """Wake a waiting `read`."""
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
