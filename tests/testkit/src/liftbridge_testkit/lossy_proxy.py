"""A proxy between clients and an HTTP server that loses requests and responses on demand.

Whole requests and whole answers are forwarded. A function of the test decides the fate of each:

- `PASS`: as without the proxy;
- `LOSE_REQUEST`: the connection is cut, and the server never receives it;
- `LOSE_ANSWER`: the server executes the request, and the connection is cut before the client gets
    the answer;
- `NO_CONDITION`: the condition of the request is removed, as by a gateway that does not support it.
"""

from __future__ import annotations

from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_SECONDS: Final = 30.0
_PER_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_CONDITIONS: Final = frozenset({"if-none-match", "if-match"})


class Fate(Enum):
    """Fate of a request."""

    PASS = "pass"
    LOSE_REQUEST = "lose request"
    LOSE_ANSWER = "lose answer"
    NO_CONDITION = "no condition"


class Request(NamedTuple):
    """A request, as input of the deciding function.

    Attributes:
        number: Number of earlier requests.
        method: `GET`, `PUT` and so on.
        path: Path with the query.
    """

    number: int
    method: str
    path: str


class LossyProxy:
    """A proxy that loses requests and answers.

    Attributes:
        port: Port on 127.0.0.1 that it listens on.
        decide: Decides the fate of a request; may be replaced at any time.
        fates: Fate of each request, in order of arrival.
    """

    def __init__(self, target_port: int, decide: Callable[[Request], Fate] | None = None) -> None:
        """Begin to listen.

        Args:
            target_port: Port of the server on 127.0.0.1.
            decide: See the attribute; without it, everything is forwarded.
        """
        self.decide = decide or (lambda _request: Fate.PASS)
        self.fates: list[tuple[Request, Fate]] = []
        self._lock = Lock()
        handler = type("Handler", (_Handler,), {"proxy": self, "target_port": target_port})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def count(self, fate: Fate) -> int:
        """Count the requests with a fate."""
        return sum(one is fate for _, one in self.fates)

    def fate_of(self, method: str, path: str) -> Fate:
        """Decide and record a fate; one request at a time."""
        with self._lock:
            request = Request(len(self.fates), method, path)
            fate = self.decide(request)
            self.fates.append((request, fate))
        return fate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Server whose threads end with the connections of clients, which may outlive it."""

    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float | None] = TIMEOUT_SECONDS
    proxy: ClassVar[LossyProxy]
    target_port: ClassVar[int]

    def log_message(self, *_arguments: object) -> None:
        """Discard the log line."""

    def _pass_on(self) -> None:
        body = self._body()
        fate = self.proxy.fate_of(self.command, self.path)
        self.close_connection = fate in (Fate.LOSE_REQUEST, Fate.LOSE_ANSWER)
        if fate is Fate.LOSE_REQUEST:
            return
        removed = _PER_HOP | _CONDITIONS if fate is Fate.NO_CONDITION else _PER_HOP
        connection = HTTPConnection("127.0.0.1", self.target_port, timeout=TIMEOUT_SECONDS)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in removed:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if fate is not Fate.LOSE_ANSWER:
            self._answer(answer.status, answer.reason, answer.getheaders(), data)

    def _answer(
        self, status: int, reason: str, headers: list[tuple[str, str]], data: bytes
    ) -> None:
        self.send_response_only(status, reason)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # an answer to HEAD has the length, but no body
            elif name.lower() not in _PER_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks()
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(pieces)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - as in the base
