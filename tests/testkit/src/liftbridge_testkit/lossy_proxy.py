"""A proxy between clients and an HTTP server that loses requests and responses on demand.

A request that came whole is passed on whole, and so is its answer. What becomes of each is decided
by a function of the test:

- `PASS`: as if the proxy were not there;
- `LOSE_REQUEST`: the connection is cut, and the server never receives it;
- `LOSE_ANSWER`: the server does what it was asked to, and the connection is cut before the client
  learns of that;
- `NO_CONDITION`: the server is asked without the condition that it was asked with, as by a gateway
  that knows none.
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
    """Input of a function that decides.

    Attributes:
        number: Number of earlier requests.
        method: `GET`, `PUT` and so on.
        path: With its query.
    """

    number: int
    method: str
    path: str


class LossyProxy:
    """See the module.

    Attributes:
        port: Port on 127.0.0.1 that it listens on.
        decide: Gives what becomes of a request; it may be another one at any time.
        fates: Fate of each request, in the order in which they came.
    """

    def __init__(self, target_port: int, decide: Callable[[Request], Fate] | None = None) -> None:
        """Begin to listen.

        Args:
            target_port: Port of the server on 127.0.0.1.
            decide: See the attribute; all is passed on without it.
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
        """Return the requests that met a fate."""
        return sum(one is fate for _, one in self.fates)

    def fate_of(self, method: str, path: str) -> Fate:
        """Decide and note; one request at a time."""
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
                length = value  # an answer to HEAD has the length, and nothing that long
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

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - as the base has it
