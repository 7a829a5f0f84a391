"""Names of messages between brokers, for scripts that hold some of them back."""

import re

from liftbridge_broker.errors import WireError
from liftbridge_broker.wire.peer import decode
from liftbridge_broker.wire.peer_bodies import RaftBody
from liftbridge_broker.wire.raft import decode_message

CHUNK = "chunk"
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kind_of(payload: bytes) -> str:
    """`fetch`, `fetch_reply`, `heartbeat`, `propose`, `append`, `vote`, ...; `chunk` for a part."""
    try:
        header, tail = decode(payload)
    except WireError:
        return CHUNK
    body: object = header.body
    if isinstance(body, RaftBody):
        body = decode_message(tail)
    name = type(body).__name__.removesuffix("Body")
    return _WORD.sub("_", name).lower()
