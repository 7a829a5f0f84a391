"""A gRPC service for tests and benchmarks of the HTTP/2 server, without a broker behind it.

All messages are plain bytes, so a client needs no generated code. Methods of `/test.Echo/`:

- `Unary`: answers with the request.
- `Peer`: answers with nothing, and notes the certificate of the client.
- `Fail`: finishes with the status named by the request's first byte and the rest as UTF-8 text.
- `Refuse`: raises a refusal, whose text is the request.
- `Hang`: never answers.
- `Bidi`: answers each message with itself, all answers of a turn joined.
- `Ack`: answers each message with 60 constant bytes, as publish acks would be.
- `Stream`: one request of 8 + 4 bytes (count of messages, size of each; big-endian); answers with
  that many messages, 64 to 256 KiB at a time, as a subscription is served from the log.
- `Flood`: one request as of `Stream`; the same, but without looking at `writable`.
- `Paused`: like `Bidi`, but does not grant credit until the message `go` has come.

Run as a program (`[--uvloop] [CERTIFICATE KEY]`) it prints its port, serves until its standard
input ends, and prints the CPU seconds that serving took.
"""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.resets import RESETS_MAX
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.api.grpc.transport import HELD_BYTES_MAX, GrpcServer
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.ports.authenticator import Authenticator
from liftbridge_broker.ports.observe import Observer

SERVICE: Final = "/test.Echo/"
ACK: Final = b"\x00" + (60).to_bytes(4, "big") + b"a" * 60
SLICE_BYTES: Final = 256 << 10


@dataclass(slots=True)
class EchoLog:
    """Record of calls, for tests that look behind the wire.

    Attributes:
        opened: Methods of calls in the order in which handlers took them.
        cancelled: Methods of calls whose `on_cancel` ran.
        messages: Messages that `Hang` received.
        certificates: Result of `Call.peer_certificate` for each `Peer` call.
        hanging: Calls of `Hang` that are open.
    """

    opened: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    certificates: list[object] = field(default_factory=list)
    hanging: list[Call] = field(default_factory=list)
    principals: list[Principal] = field(default_factory=list)


class EchoServer(NamedTuple):
    """A running server with the service."""

    server: GrpcServer
    log: EchoLog
    port: int

    @property
    def address(self) -> str:
        """Return the address of the server."""
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def echo_server(
    limits: Limits | None = None,
    *,
    tls: ServerTls | None = None,
    connections_max: int = 10_000,
    held_bytes_max: int = HELD_BYTES_MAX,
    resets_max: int = RESETS_MAX,
    files_max: int = sys.maxsize,
    observer: Observer | None = None,
    authenticator: Authenticator | None = None,
) -> AsyncIterator[EchoServer]:
    """Serve in this loop; at the end no connection and no call may be left in the counters."""
    server = GrpcServer(
        limits,
        connections_max=connections_max,
        receive_bytes_max=held_bytes_max,
        send_bytes_max=held_bytes_max,
        resets_max=resets_max,
        files_max=files_max,
        observer=observer,
        authenticator=authenticator,
    )
    log = add_echo(server)
    port = await server.start("127.0.0.1", 0, tls)
    try:
        yield EchoServer(server, log, port)
    finally:
        await server.close()
    assert (server.stats.connections_open, server.stats.streams_open) == (0, 0)
    assert log.hanging == []


async def eventually(claim: Callable[[], bool]) -> None:
    """Let the event loop run until a claim holds.

    Raises:
        TimeoutError: It did not within 10 s.
    """
    async with asyncio.timeout(10):
        while not claim():  # noqa: ASYNC110 - counters have no event
            await asyncio.sleep(0)


def frame(message: bytes) -> bytes:
    """Return a message behind its gRPC prefix."""
    return len(message).to_bytes(5, "big") + message


def add_echo(server: GrpcServer) -> EchoLog:
    """Register the service; the log of its calls."""
    log = EchoLog()

    def unary(call: Call, request: bytes) -> None:
        log.opened.append(call.method)
        log.principals.append(call.principal)
        call.reply(request)

    def peer(call: Call, _request: bytes) -> None:
        log.certificates.append(call.peer_certificate)
        call.reply(b"")

    def fail(call: Call, request: bytes) -> None:
        call.finish(request[0], request[1:].decode())

    def refuse(_call: Call, request: bytes) -> None:
        raise InvalidRequestError(request.decode())

    def hang(call: Call) -> None:
        log.opened.append(call.method)
        log.hanging.append(call)

        def on_cancel() -> None:
            log.cancelled.append(call.method)
            log.hanging.remove(call)

        call.on_messages = log.messages.extend
        call.on_cancel = on_cancel

    server.unary(SERVICE + "Unary", unary)
    server.unary(SERVICE + "Peer", peer)
    server.unary(SERVICE + "Fail", fail)
    server.unary(SERVICE + "Refuse", refuse)
    server.streaming(SERVICE + "Hang", hang)
    server.streaming(SERVICE + "Bidi", _bidi)
    server.streaming(SERVICE + "Ack", _ack)
    server.streaming(SERVICE + "Stream", _stream)
    server.streaming(SERVICE + "Flood", _flood)
    server.streaming(SERVICE + "Paused", _paused)
    return log


def _bidi(call: Call) -> None:
    """Answer each message with itself."""

    def on_messages(messages: list[bytes]) -> None:
        call.send(b"".join([frame(message) for message in messages]))

    call.on_messages = on_messages
    call.on_half_close = call.finish


def _ack(call: Call) -> None:
    """Answer each message with a constant."""

    def on_messages(messages: list[bytes]) -> None:
        call.send(ACK * len(messages))

    call.on_messages = on_messages
    call.on_half_close = call.finish


def _stream(call: Call) -> None:
    """Send slices of prepared frames while the call is writable."""
    left = 0
    stored = b""
    stored_count = 0

    def push() -> None:
        nonlocal left
        while left and call.writable:
            count = max(min(left, stored_count, call.room * stored_count // len(stored)), 1)
            size = len(stored) // stored_count * count
            call.send(stored if count == stored_count else stored[:size])
            left -= count
        if not left:
            call.finish()

    def on_messages(messages: list[bytes]) -> None:
        nonlocal left, stored, stored_count
        left = int.from_bytes(messages[0][:8], "big")
        one = frame(b"s" * int.from_bytes(messages[0][8:12], "big"))
        stored_count = max(SLICE_BYTES // len(one), 1)
        stored = one * stored_count
        push()

    call.on_messages = on_messages
    call.on_writable = push


def _flood(call: Call) -> None:
    """Send everything at once, whatever the client takes."""

    def on_messages(messages: list[bytes]) -> None:
        count = int.from_bytes(messages[0][:8], "big")
        one = frame(b"f" * int.from_bytes(messages[0][8:12], "big"))
        for _ in range(count):
            call.send(one)
        call.finish()

    call.on_messages = on_messages


def _paused(call: Call) -> None:
    """Echo, without credit for the client until it asks."""
    call.pause_reading()

    def on_messages(messages: list[bytes]) -> None:
        call.send(b"".join([frame(message) for message in messages]))
        if b"go" in messages:
            call.resume_reading()

    call.on_messages = on_messages
    call.on_half_close = call.finish


async def _serve(files: list[str]) -> None:
    """Serve until standard input ends."""
    server = GrpcServer()
    add_echo(server)
    tls = None
    if files:
        certificate, key = map(Path, files)
        tls = ServerTls(TlsFiles(certificate=certificate, key=key))
    bound = await server.start("127.0.0.1", 0, tls)
    begin = _cpu_seconds()
    _say(str(bound))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    _say(f"{_cpu_seconds() - begin:.6f}")
    await server.close()


def _say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _cpu_seconds() -> float:
    """Return the CPU time of this process so far, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str]) -> None:
    """Serve on the event loop that was asked for."""
    files = [each for each in arguments if not each.startswith("--")]
    if "--uvloop" in arguments:
        uvloop.run(_serve(files))
    else:
        asyncio.run(_serve(files))


if __name__ == "__main__":
    main(sys.argv[1:])
