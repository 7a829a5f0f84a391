"""Servers that are not brokers, which newcomers address by mistake: other protocols, other TLS."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from liftbridge_broker.http2 import frames
from liftbridge_testkit.certs import Authority

_FRAME_HEADER: Final = 9
_ONE_BYTE_ENDS: Final = bytes.fromhex("0000010105")
"""Begins headers of one byte, a row of HPACK's table, that end their stream."""

_SETTINGS: Final = frames.settings_frame({})


class Kind(NamedTuple):
    """The bytes that a server sends.

    Attributes:
        greeting: Sent to each new connection.
        answer: Sent after the first bytes received, before it closes; `None` sends nothing and
            stays open.
        status: Status for each HTTP/2 request: a row of HPACK's table.
        alpn: Protocols offered inside TLS; `None` is a server without TLS.
        wants_certificate: Whether clients must show one.
    """

    greeting: bytes = b""
    answer: bytes | None = None
    status: bytes = b""
    alpn: tuple[str, ...] | None = None
    wants_certificate: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "http1": Kind(answer=b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "http1 page": Kind(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
    "nats": Kind(b'INFO {"server_id":"x"}\r\n', b"-ERR 'Unknown Protocol Operation'\r\n"),
    "ssh": Kind(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "mail": Kind(b"220 mail ESMTP\r\n"),
    "redis": Kind(answer=b"-ERR unknown command 'PRI'\r\n"),
    "http2 page": Kind(_SETTINGS, status=b"\x88"),
    "http2 not found": Kind(_SETTINGS, status=b"\x8d"),
    "silent": Kind(),
    "closing": Kind(answer=b""),
    "https": Kind(answer=b"HTTP/1.1 400 Bad Request\r\n\r\n", alpn=("http/1.1",)),
    "https without alpn": Kind(answer=b"HTTP/1.1 400 Bad Request\r\n\r\n", alpn=()),
    "mutual tls": Kind(alpn=("h2",), wants_certificate=True),
}


class WrongServer:
    """A server of one kind on a free port of 127.0.0.1, as a context manager.

    Attributes:
        address: Address that it listens on.
    """

    def __init__(self, kind: Kind, authority: Authority) -> None:
        """Describe it.

        Args:
            kind: Bytes that it sends.
            authority: Signs its certificate.
        """
        self._kind = kind
        self._tls: ssl.SSLContext | None = None
        if kind.alpn is not None:
            self._tls = _context(kind, authority)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for one in self._held:
            one.close()

    def _accept(self) -> None:
        for connection in self._connections():
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _connections(self) -> Iterator[socket.socket]:
        with contextlib.suppress(OSError):  # it is over
            while True:
                yield self._listener.accept()[0]

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._held.append(connection)
            connection.sendall(self._kind.greeting)
            data = connection.recv(1 << 16).removeprefix(frames.PREFACE)
            if self._kind.answer is not None:
                connection.sendall(self._kind.answer)
                connection.shutdown(socket.SHUT_RDWR)
            while data := data or connection.recv(1 << 16):
                for stream in _requests(data) if self._kind.status else ():
                    connection.sendall(_ONE_BYTE_ENDS + stream + self._kind.status)
                data = b""
        connection.close()


def _requests(data: bytes) -> Iterator[bytes]:
    """Yield the stream ids that the frames open."""
    while data:
        if data[3] == frames.HEADERS:
            yield data[5:_FRAME_HEADER]
        data = data[_FRAME_HEADER + int.from_bytes(data[:3]) :]


def _context(kind: Kind, authority: Authority) -> ssl.SSLContext:
    certificate = authority.issue("wrong-server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    if kind.alpn:
        context.set_alpn_protocols(list(kind.alpn))
    if kind.wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.cert)
    return context
