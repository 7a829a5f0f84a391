"""Gates before the connections of a server: closed while it is paused, broken when it is killed.

A process stopped by a signal reads nothing, but its kernel accepts connections and buffers input;
later it continues where it stopped. A killed process answers nothing more and its connections
break. The gates simulate both for a server that shares its event loop with its clients.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

CLOSE_SECONDS_MAX: Final = 2.0


class Gates:
    """All connections of one server.

    Attributes:
        is_shut: Whether nothing passes, in either direction.
    """

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        """Start open.

        Args:
            on_bug: Called with an exception of a protocol behind a gate.
        """
        self.on_bug = on_bug
        self.is_shut = False
        self._gates: dict[Gate, None] = {}
        self._transport_count = 0
        self._emptied = asyncio.Event()
        self._emptied.set()

    def new(self, protocol: asyncio.Protocol) -> "Gate":
        """Create a gate before the protocol of a new connection."""
        return Gate(self, protocol)

    def shut(self) -> None:
        """Let nothing pass until `open`."""
        self.is_shut = True
        for gate in self._gates:
            gate.stop_reading()

    def open(self) -> None:
        """Pass on the buffered events, and continue."""
        self.is_shut = False
        for gate in list(self._gates):
            gate.go_on()

    def tear_off(self) -> None:
        """Break every connection; the protocols are notified, their peers get no more bytes."""
        for gate in list(self._gates):
            gate.tear_off()

    async def emptied(self) -> None:
        """Wait until no connection is left; bounded.

        Raises:
            TimeoutError: A peer keeps its connection open.
        """
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await self._emptied.wait()

    def on_made(self, gate: "Gate") -> None:
        """Record a connection."""
        self._gates[gate] = None
        self._transport_count += 1
        self._emptied.clear()

    def on_lost(self) -> None:
        """Record a closed connection, though its protocol may not know yet."""
        self._transport_count -= 1
        if not self._transport_count:
            self._emptied.set()

    def forget(self, gate: "Gate") -> None:
        """Forget a gate: nothing more will pass through it."""
        self._gates.pop(gate, None)


class Gate(asyncio.Protocol):
    """The protocol of one connection; passes events on, now or when the gates open."""

    def __init__(self, gates: Gates, protocol: asyncio.Protocol) -> None:
        self._gates = gates
        self._protocol: asyncio.Protocol | None = protocol
        self._transport: asyncio.Transport | None = None
        self._has_begun = False
        self._kept: deque[bytes] = deque()
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start; behind a closed gate the protocol is not notified yet."""
        self._transport = cast("asyncio.Transport", transport)
        self._gates.on_made(self)
        self.pass_on()

    def data_received(self, data: bytes) -> None:
        """Pass on, or buffer."""
        self._kept.append(data)
        self.pass_on()

    def pause_writing(self) -> None:
        """Pass on: the protocol may have written much before the gate was closed."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on, or buffer; the connection is closed in any case."""
        del exc
        self._is_lost = True
        self._gates.on_lost()
        self.pass_on()

    def stop_reading(self) -> None:
        """Leave input in the kernel."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Resume reading, after the buffered input."""
        self.pass_on()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pass_on(self) -> None:
        """Deliver buffered events to the protocol, unless the gates are closed."""
        protocol, transport = self._protocol, self._transport
        if protocol is None or transport is None:
            return
        if self._gates.is_shut:
            self.stop_reading()
            return
        try:
            if not self._has_begun:
                self._has_begun = True
                protocol.connection_made(transport)
            while self._kept and self._protocol is not None:
                protocol.data_received(self._kept.popleft())
            if self._is_lost:
                self.tear_off()
        except Exception as error:  # noqa: BLE001 - a bug behind the gate; the owner ends all
            self._gates.on_bug(error)

    def tear_off(self) -> None:
        """Break the connection, and notify the protocol if it knew of the connection."""
        protocol, self._protocol = self._protocol, None
        self._gates.forget(self)
        if self._transport is not None:
            self._transport.abort()
        if protocol is not None and self._has_begun:
            protocol.connection_lost(None)
