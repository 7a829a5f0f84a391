"""A proxy between one broker and its NATS server: a network that tests can disturb.

It represents the broker's network card. A disturbance of a direction applies to all of the broker's
connections, existing and new:

- `hold`: bytes stop, connections stay, as when a cable is pulled; they arrive after `heal`;
- `delay`: every piece arrives later, in order;
- `cut`: connections break, and new ones are refused;
- `sever`: the oldest connection breaks, or all, and new ones pass;
- `lose_to`: only publishes of the broker to another broker's subjects are dropped, so that two
    brokers may be cut off from each other while both reach a third.

The proxy runs in one thread with its own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import Enum
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

T = TypeVar("T")

PIECE_BYTES: Final = 65_536
QUEUED_PIECES_MAX: Final = 256
WAIT_SECONDS_MAX: Final = 10.0


class Way(Enum):
    """A direction, from the broker's point of view."""

    OUT = "out"
    IN = "in"


BOTH: Final = (Way.OUT, Way.IN)


class PublishFilter:
    """Drops publishes to some subjects from the output of a client.

    Attributes:
        dropped_count: Publishes that were dropped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._body_bytes = 0
        self._is_dropping = False
        self.dropped_count = 0

    def take(self, data: bytes, prefixes: Iterable[str]) -> bytes:
        """Return the part of `data` to forward; an incomplete line waits for the rest."""
        beginnings = tuple(prefix.encode() for prefix in prefixes)
        data, self._rest = self._rest + data, b""
        passed: list[bytes] = []
        position = 0
        while position < len(data):
            if self._body_bytes:
                end = min(len(data), position + self._body_bytes)
                self._body_bytes -= end - position
                if not self._is_dropping:
                    passed.append(data[position:end])
                position = end
                continue
            end = data.find(b"\r\n", position) + 2
            if end == 1:
                self._rest = data[position:]
                break
            line = data[position:end]
            position = end
            self._is_dropping = False
            if line[:4] in {b"PUB ", b"HPUB"}:
                words = line.split()
                self._body_bytes = int(words[-1]) + 2
                self._is_dropping = words[1].startswith(beginnings) if beginnings else False
                self.dropped_count += self._is_dropping
            if not self._is_dropping:
                passed.append(line)
        return b"".join(passed)


class _State:
    """Current mode; used only in the proxy's thread."""

    def __init__(self) -> None:
        self.open = {way: asyncio.Event() for way in BOTH}
        self.delay_seconds = dict.fromkeys(BOTH, 0.0)
        self.is_cut = False
        self.lost_prefixes: tuple[str, ...] = ()
        for event in self.open.values():
            event.set()


class NatsProxy:
    """A proxy between one broker and its NATS server.

    Attributes:
        port: Port on 127.0.0.1 that it listens on.
    """

    def __init__(self, target_port: int) -> None:
        """Begin to listen, without disturbance.

        Args:
            target_port: Port of the NATS server on 127.0.0.1.
        """
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._state: _State
        self._server: asyncio.Server
        # In the order in which they were made.
        self._connections: dict[asyncio.Task[None], None] = {}
        self.port: int = self._call(self._listen())

    @property
    def url(self) -> str:
        """Address for the broker."""
        return f"nats://127.0.0.1:{self.port}"

    # Disturbances.

    def hold(self, *ways: Way) -> None:
        """Let nothing pass in these directions, or in both."""

        def do() -> None:
            for way in ways or BOTH:
                self._state.open[way].clear()

        self._do(do)

    def delay(self, seconds: float, *ways: Way) -> None:
        """Delay all data."""
        self._do(
            lambda: self._state.delay_seconds.update(dict.fromkeys(ways or BOTH, seconds)),
        )

    def cut(self) -> None:
        """Break every connection and refuse new ones."""

        def do() -> None:
            self._state.is_cut = True
            self._break()

        self._do(do)

    def sever(self, *, is_all: bool) -> int:
        """Break the oldest connection, or all of them, once; return how many."""

        def do() -> int:
            chosen = list(self._connections)[: None if is_all else 1]
            for connection in chosen:
                connection.cancel()
            return len(chosen)

        return self._do(do)

    def lose_to(self, *prefixes: str) -> None:
        """Drop publishes of the broker to subjects that begin with a prefix."""
        self._do(lambda: setattr(self._state, "lost_prefixes", prefixes))

    def heal(self) -> None:
        """End all disturbances."""

        def do() -> None:
            self._state.is_cut = False
            self._state.lost_prefixes = ()
            self._state.delay_seconds.update(dict.fromkeys(BOTH, 0.0))
            for event in self._state.open.values():
                event.set()

        self._do(do)

    def close(self) -> None:
        """Break all connections and stop listening."""
        if not self._thread.is_alive():
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS_MAX)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    # In the proxy's thread.

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS_MAX)

    def _do(self, act: Callable[[], T]) -> T:
        async def done() -> T:
            return act()

        return self._call(done())

    async def _listen(self) -> int:
        self._state = _State()
        self._server = await asyncio.start_server(self._on_client, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        self._server.close()
        self._break()
        if self._connections:
            await asyncio.wait(self._connections)

    def _break(self) -> None:
        for connection in self._connections:
            connection.cancel()

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        try:
            if not self._state.is_cut:
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either end may break at any time; the test broke it, or the server did
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both directions until one ends."""
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            ways = [
                self._loop.create_task(self._pump(Way.OUT, reader, back)),
                self._loop.create_task(self._pump(Way.IN, there, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            back.transport.abort()

    async def _pump(
        self, way: Way, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_PIECES_MAX)
        filtered = PublishFilter()
        writing = self._loop.create_task(self._write(way, queue, target))
        try:
            while data := await source.read(PIECE_BYTES):
                if way is Way.OUT:
                    data = filtered.take(data, self._state.lost_prefixes)
                due = self._loop.time() + self._state.delay_seconds[way]
                # An empty result, if everything was dropped, would mean the end.
                if data:
                    await queue.put((due, data))
            await queue.put((self._loop.time(), b""))
            await writing
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await writing

    async def _write(
        self, way: Way, queue: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await self._state.open[way].wait()
            if not data:
                return
            target.write(data)
            await target.drain()
