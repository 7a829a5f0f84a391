"""Acks in the format of JetStream, which its clients accept as the answer to a publish.

Plain messages have no envelope to answer in. Their acks are JSON: `{"stream": "orders", "seq": 8,
"partition": 0, "offset": 7}`, with `"duplicate": true` for a message that was stored before, or
`{"error": {"code": 503, "err_code": 10077, "description": "readonly partition: 0"}, "stream":
"orders", "partition": 0}` for a message that is not stored. Sequences of JetStream begin at 1,
offsets at 0; its clients skip `partition` and `offset`.
"""

import json
from typing import Final

from liftbridge_broker.errors import IncorrectOffsetError, LiftbridgeError, TooLargeError
from liftbridge_broker.model.ids import Offset, PartitionNumber
from liftbridge_broker.wire.nats import CRLF, publish_head

STORE_FAILED: Final = (503, 10077)
"""Status and error code of JetStream for a message that could not be stored."""

_CODES: Final[tuple[tuple[type[LiftbridgeError], tuple[int, int]], ...]] = (
    (TooLargeError, (400, 10054)),
    (IncorrectOffsetError, (400, 10071)),
)
"""Status and error code if the message itself is invalid, so that sending it again is useless."""


class PublishAckEncoder:
    """Builds `PUB` frames of the acks of one partition.

    Args:
        stream: Name of the stream.
        number: Number of the partition.
    """

    def __init__(self, stream: str, number: PartitionNumber) -> None:
        self._stream = json.dumps(stream).encode()
        self._number = number

    def stored(self, reply: bytes, offset: Offset, *, is_duplicate: bool) -> bytes:
        """Encode the ack of a stored message; the reply subject has passed `ReservedSubjects`."""
        ack = b'{"stream":%b,"seq":%d,%b"partition":%d,"offset":%d}' % (
            self._stream,
            offset + 1,
            b'"duplicate":true,' if is_duplicate else b"",
            self._number,
            offset,
        )
        return publish_head(reply, len(ack)) + ack + CRLF

    def refused(self, reply: bytes, error: LiftbridgeError) -> bytes:
        """Encode the answer for a message that is not, or may not be, stored.

        The text states which.
        """
        codes = (codes for kind, codes in _CODES if isinstance(error, kind))
        status, code = next(codes, STORE_FAILED)
        ack = b'{"error":{"code":%d,"err_code":%d,"description":%b},"stream":%b,"partition":%d}' % (
            status,
            code,
            json.dumps(error.text).encode(),
            self._stream,
            self._number,
        )
        return publish_head(reply, len(ack)) + ack + CRLF
