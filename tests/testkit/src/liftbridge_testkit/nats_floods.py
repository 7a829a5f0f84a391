"""Messages that any client may publish on NATS to the subject of a stream, by arrival and content.

They are small, because work is charged by message: the more messages a read has, the longer it
could take.
"""

from typing import Final

from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.wire.envelope import encode_publish
from liftbridge_broker.wire.nats import CRLF, publish_head
from liftbridge_proto import api_pb2


def header_lines(count: int) -> bytes:
    """Return a block of the smallest possible NATS headers."""
    lines = b"".join(b"%x:\r\n" % number for number in range(count))
    return b"NATS/1.0\r\n" + lines + CRLF if count else b""


def enveloped(headers: int, inbox: str) -> bytes:
    """Return a message in an envelope with its own headers, which may request an ack."""
    given = {f"{number:x}": b"" for number in range(headers)}
    return encode_publish(api_pb2.Message(headers=given, ackInbox=inbox, correlationId=inbox))


ARRIVALS: Final = {
    "one subject": (Arrival("s", "", b""),),
    "two subjects": (Arrival("s", "", b""), Arrival("s", "r", b"")),
    "a header": (Arrival("s", "", header_lines(1)),),
    "many headers": (Arrival("s", "", header_lines(1_000)),),
}
"""Ways of arrival, used in turn."""

PAYLOADS: Final = {
    "empty": b"",
    "a text": b"v" * 100,
    "no magic inside": b"J" * 1_000,
    "bare": enveloped(0, ""),
    "acked": enveloped(0, "inbox"),
    "a header": enveloped(1, ""),
    "many headers": enveloped(1_000, "inbox"),
}


def published(subject: str, arrival: Arrival, payload: bytes) -> bytes:
    """Return the bytes with which a client publishes messages on a subject."""
    reply, headers = arrival.reply.encode(), arrival.headers
    return b"".join((publish_head(subject.encode(), len(payload), reply, headers), payload, CRLF))
