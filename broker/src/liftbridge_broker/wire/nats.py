r"""The NATS client protocol as bytes: a parser without I/O, and builders of client commands.

Messages arrive as ``MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n`` or ``HMSG <subject> <sid>
[reply] <header size> <total size>\r\n<headers><payload>\r\n`` (NATS documentation, "Client
Protocol"). The parser reads a whole chunk of the socket in one loop and delivers, for each
subscription, two lists; per message it allocates nothing but the payload.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.nats import ProtocolHandler

LINE_BYTES_MAX: Final = 4096
INFO_BYTES_MAX: Final = 65536
PAYLOAD_BYTES_MAX: Final = 64 * MIB
HEAD_CACHE_COUNT_MAX: Final = 8192
CACHED_HEAD_BYTES_MAX: Final = 512

CRLF: Final = b"\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
APPENDED_HEADER: Final = "Liftbridge-Appended"
_HEADER_LINE: Final = b"NATS/1.0\r\n"

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n"
"""First header line of the answer of a server to a message with a reply that nobody receives."""
_SEPARATORS: Final = b" \t\r\n"
_DIGITS_MAX: Final = 12
_NO_ARRIVAL: Final = Arrival("", "", b"")


class NatsProtocolError(Exception):
    """The peer does not speak the NATS protocol; the connection is unusable from now on."""


class _Head:
    """Bytes before a payload, cached so that equal lines are parsed only once.

    Attributes:
        arrival: Shared by all messages with the same subject and reply.
        subscription: Subscription of the message.
        length: Bytes of the line with its end and of the headers.
        headers_size: 0, or for the line of an `HMSG` the size of its headers; their content is
            known only from the bytes after the line, so such a head only leads to another head,
            cached by line and headers together.
        size: Bytes of the payload.
        follow: Bytes that end a payload and start another such message.
    """

    __slots__ = ("arrival", "follow", "headers_size", "length", "size", "subscription")

    def __init__(
        self, subscription: int, arrival: Arrival, head: bytes, size: int, headers_size: int = 0
    ) -> None:
        self.arrival = arrival
        self.subscription = SubscriptionId(subscription)
        self.length = len(head)
        self.headers_size = headers_size
        self.size = size
        self.follow = CRLF + head


class NatsParser:
    """Parses the server's side of one connection, chunk by chunk.

    Keeps an incomplete rest, which is joined once the missing bytes have arrived. After an error
    the parser must not be fed again.

    Args:
        handler: Receives the output; must not feed this parser from within.
        payload_bytes_max: Larger messages are an error; the server's own limit should be lower.
    """

    def __init__(
        self, handler: ProtocolHandler, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> None:
        self._handler = handler
        self._payload_bytes_max = payload_bytes_max
        # Keys start with the end of the previous line, so that a look-up also checks that end.
        self._heads: dict[bytes, _Head] = {}
        self._arrivals: dict[tuple[int, Arrival], Arrival] = {}
        self._latest = _NO_ARRIVAL
        self._runs: dict[SubscriptionId, tuple[list[Arrival], list[bytes]]] = {}
        self._rest: list[bytes] = []
        self._rest_size = 0
        # Minimum size of the rest before parsing can continue; 0: until a line ends.
        self._wanted = 0

    def feed(self, chunk: bytes) -> None:
        """Parse bytes from the socket and call the handler.

        Args:
            chunk: Any part of the byte stream, of any length.

        Raises:
            NatsProtocolError: The bytes are invalid; messages before the fault were delivered.
        """
        if self._rest:
            self._rest.append(chunk)
            self._rest_size += len(chunk)
            if self._rest_size < self._wanted:
                return
            if not self._wanted and b"\n" not in chunk and self._rest_size <= INFO_BYTES_MAX:
                return
            chunk = b"".join(self._rest)
            self._rest = []
        position = 0
        try:
            while position < len(chunk):
                after = self._read_one(chunk, position)
                if after == position:
                    break
                position = self._read_known(chunk, after)
        finally:
            self._deliver()
        if position < len(chunk):
            self._rest = [chunk[position:]]
            self._rest_size = len(chunk) - position

    def _read_known(self, data: bytes, position: int) -> int:
        """Read messages as long as they are complete and their lines cached.

        Hot: the inner loop runs once per message with the same line as the previous message, the
            outer loop once per other message (benchmark `bench_nats.py::parse`). Comparing an
            expected
        line in place costs a third of finding its end, slicing it and looking it up.

        Args:
            data: Bytes read so far.
            position: Start of a line; the two bytes before are the end of another one.

        Returns:
            Start of the first line that was not read.
        """
        limit = len(data) - 2
        find, startswith, known = data.find, data.startswith, self._heads.get
        arrival = _NO_ARRIVAL
        arrivals: list[Arrival] = []
        payloads: list[bytes] = []
        append = payloads.append
        end = position - 2
        while (line_end := find(CRLF, end + 2)) > 0:
            head = known(data[end:line_end])
            if head is not None and head.headers_size:
                head = known(data[end : line_end + 2 + head.headers_size])
            if head is None:
                break
            size = head.size
            start = end + 2 + head.length
            if start + size > limit:
                break
            end = start + size
            if head.arrival is not arrival:
                arrivals += [arrival] * (len(payloads) - len(arrivals))
                arrival = head.arrival
                arrivals, payloads = self._run(head.subscription)
                append = payloads.append
            append(data[start:end])
            follow = head.follow
            gap = len(follow)
            while startswith(follow, end):
                start = end + gap
                if start + size > limit:
                    break
                end = start + size
                append(data[start:end])
        if not startswith(CRLF, end):
            del payloads[-1:]
            arrivals += [arrival] * (len(payloads) - len(arrivals))
            raise NatsProtocolError("a message is not as long as its size field says")
        arrivals += [arrival] * (len(payloads) - len(arrivals))
        return end + 2

    def _read_one(self, data: bytes, position: int) -> int:
        """Read a line of any kind, and its message if it has one.

        Returns:
            Start of the next line; `position` if bytes are missing, with `_wanted` set.
        """
        line_end = data.find(CRLF, position)
        is_info = data.startswith(b"INFO ", position)
        bound = INFO_BYTES_MAX if is_info else LINE_BYTES_MAX
        if (line_end if line_end >= 0 else len(data)) - position > bound:
            raise NatsProtocolError(f"line longer than {bound} bytes")
        if line_end < 0:
            self._wanted = 0
            return position
        line = data[position:line_end]
        if not line.startswith((b"MSG ", b"HMSG ")):
            self._control(line)
            return line_end + 2
        head = self._heads.get(CRLF + line) or self._read_line(line)
        if head.headers_size:
            headers_end = position + head.length + head.headers_size
            if headers_end > len(data):
                self._wanted = headers_end + head.size + 2 - position
                return position
            head = self._with_headers(head, line, data[line_end + 2 : headers_end])
        start = position + head.length
        end = start + head.size
        if end + 2 > len(data):
            self._wanted = end + 2 - position
            return position
        if not data.startswith(CRLF, end):
            raise NatsProtocolError("a message is not as long as its size field says")
        arrivals, payloads = self._run(head.subscription)
        arrivals.append(head.arrival)
        payloads.append(data[start:end])
        return end + 2

    def _run(self, subscription: SubscriptionId) -> tuple[list[Arrival], list[bytes]]:
        """Return the lists that collect the messages of one subscription in this chunk."""
        run = self._runs.get(subscription)
        if run is None:
            run = self._runs[subscription] = ([], [])
        return run

    def _read_line(self, line: bytes) -> _Head:
        """Parse the line of a message that is not cached."""
        # The server puts exactly one space between; other whitespace may be part of a subject.
        parts = line.split(b" ")
        sizes = 1 if line.startswith(b"MSG") else 2
        if not 3 <= len(parts) - sizes <= 4:
            raise NatsProtocolError(f"{parts[0].decode()} with {len(parts) - 1} arguments")
        subscription, size = _number(parts[2]), _number(parts[-1])
        headers_size = _number(parts[-2]) if sizes == 2 else 0
        if size > self._payload_bytes_max:
            raise NatsProtocolError(f"message of {size} bytes exceeds {self._payload_bytes_max}")
        if headers_size > size or (sizes == 2 and not headers_size):
            raise NatsProtocolError(f"message of {size} bytes with {headers_size} of headers")
        subject = parts[1].decode(errors="replace")
        head_bytes, size = line + CRLF, size - headers_size
        if len(parts) - sizes == 4:
            # Replies rarely repeat: nothing is cached, but consecutive equal replies stay one
            # object.
            arrival = Arrival(subject, parts[3].decode(errors="replace"), b"")
            if arrival == self._latest:
                arrival = self._latest
            self._latest = arrival
            return _Head(subscription, arrival, head_bytes, size, headers_size)
        arrival = self._shared(subscription, Arrival(subject, "", b""))
        return self._remember(_Head(subscription, arrival, head_bytes, size, headers_size))

    def _with_headers(self, line_head: _Head, line: bytes, headers: bytes) -> _Head:
        """Return the head of a message with these headers after this line."""
        key = CRLF.join((b"", line, headers))
        head = self._heads.get(key)
        if head is None:
            arrival = line_head.arrival._replace(headers=headers)
            subscription = line_head.subscription
            if not arrival.reply:
                arrival = self._shared(subscription, arrival)
            head = _Head(subscription, arrival, key[2:], line_head.size)
            if not arrival.reply:
                self._remember(head)
        return head

    def _shared(self, subscription: int, arrival: Arrival) -> Arrival:
        """Return the one object for equal arrivals, even when their messages differ in size."""
        if len(arrival.headers) + len(arrival.subject) > CACHED_HEAD_BYTES_MAX:
            return arrival
        if len(self._arrivals) >= HEAD_CACHE_COUNT_MAX:
            self._arrivals.clear()
            self._heads.clear()
        return self._arrivals.setdefault((subscription, arrival), arrival)

    def _remember(self, head: _Head) -> _Head:
        """Cache a head unless it is large; clear the cache when it is full."""
        if len(head.follow) <= CACHED_HEAD_BYTES_MAX:
            if len(self._heads) >= HEAD_CACHE_COUNT_MAX:
                self._heads.clear()
                self._arrivals.clear()
            key = head.follow[:-2] if not head.arrival.headers else head.follow
            self._heads[key] = head
        return head

    def _control(self, line: bytes) -> None:
        """Deliver a control line, after the messages before it."""
        self._deliver()
        operation, _, argument = line.partition(b" ")
        match operation.upper():
            case b"PING":
                self._handler.on_ping()
            case b"PONG":
                self._handler.on_pong()
            case b"+OK":
                self._handler.on_ok()
            case b"-ERR":
                self._handler.on_error(argument.decode(errors="replace").strip().strip("'"))
            case b"INFO":
                self._handler.on_info(argument.strip())
            case _:
                raise NatsProtocolError(f"unknown operation {bytes(operation[:32])!r}")

    def _deliver(self) -> None:
        """Deliver the messages read so far."""
        runs = list(self._runs.items())
        self._runs.clear()
        for subscription, (arrivals, payloads) in runs:
            if payloads:
                self._handler.on_messages(subscription, arrivals, payloads)


def _number(digits: bytes) -> int:
    """Parse a non-negative decimal number of bounded length."""
    if not digits.isdigit() or len(digits) > _DIGITS_MAX:
        raise NatsProtocolError(f"{bytes(digits[:32])!r} is not a number")
    return int(digits)


def info_fields(body: bytes) -> Mapping[str, object] | None:
    """Parse the body of an `INFO`; `None` if it is not a JSON object, or nested too deeply."""
    try:
        info = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) else None


def publish_head(subject: bytes, length: int, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """Encode the bytes before a published payload of `length` bytes; `CRLF` ends it.

    Args:
        subject: Valid subject (`wire.subjects`), as is `reply`; asserted to have no bytes that end
            a line or an argument, which would inject protocol.
        length: Bytes of the payload without headers.
        reply: Subject for answers, empty for none.
        headers: Header block from `header_block`, empty for none.
    """
    assert subject
    assert len((subject + reply).translate(None, _SEPARATORS)) == len(subject) + len(reply)
    to = subject + b" " + reply if reply else subject
    if not headers:
        return b"PUB %b %d\r\n" % (to, length)
    return b"HPUB %b %d %d\r\n%b" % (to, len(headers), len(headers) + length, headers)


def header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """Encode NATS headers; names and values have no line ends and no surrounding whitespace."""
    lines = [f"{name}: {value}" for name, value in headers]
    assert not any("\r" in line or "\n" in line for line in lines)
    return b"".join((_HEADER_LINE, *(line.encode() + CRLF for line in lines), CRLF))


def appended_header_block(partition: PartitionId) -> bytes:
    """Encode the header that prevents brokers from storing a message in a partition again."""
    return header_block(((APPENDED_HEADER, str(partition)),))


def appended_header_line(partition: PartitionId) -> bytes:
    """Return the line of `appended_header_block` that names a partition, for searching."""
    return f"{APPENDED_HEADER}: {partition}\r\n".encode()


def subscribe_line(subject: str, queue: str, subscription: SubscriptionId) -> bytes:
    """Encode the `SUB` line for a valid subject and queue group (empty for none)."""
    to = f"{subject} {queue}" if queue else subject
    assert not set(subject + queue) & set(" \t\r\n")
    return f"SUB {to} {subscription}\r\n".encode()


def unsubscribe_line(subscription: SubscriptionId) -> bytes:
    """Encode an `UNSUB` line."""
    return b"UNSUB %d\r\n" % subscription
