"""The connection of one call from the simulator to a service of the API: it takes everything."""

from collections.abc import Callable, Iterator, Sequence

from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.http2.stream import Buffer

PREFIX_SIZE = 5
"""Bytes of the prefix of each gRPC message."""


class ClientEnd:
    """Implement `CallPort`.

    Args:
        sent: Receives what the broker sends, whole gRPC messages with their prefixes.
        finished: Receives the status, its text, and the code of a refusal; once.
    """

    def __init__(
        self, sent: Callable[[bytes], None], finished: Callable[[int, str, str], None]
    ) -> None:
        self._sent = sent
        self._finished = finished

    def room(self, _stream_id: int) -> int:
        """Return a positive number: the client accepts everything."""
        return 1 << 20

    def begin(self, _stream_id: int, _fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Ignore the headers."""

    def queue(self, _stream_id: int, frames: bytes | Sequence[Buffer]) -> bool:
        """Hand on what is sent."""
        self._sent(frames if isinstance(frames, bytes) else b"".join(frames))
        return True

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run all steps at once: no other caller waits."""
        do_steps(call, steps)

    def finish(self, _call: Call, code: int, text: str, error_code: str) -> None:
        """Hand on the status."""
        self._finished(code, text, error_code)

    def expect_request(self, _stream_id: int) -> None:
        """No-op: the request is already here."""

    def keep(self, _stream_id: int, _size: int) -> None:
        """No-op: the whole request is already here."""

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None:
        """No-op: no further messages are read."""

    def peer_certificate(self) -> None:
        """Return no certificate: there is no TLS."""
