"""Names of messages between brokers, for scripts and invariants."""

import re
from typing import Final

from liftbridge_broker.errors import WireError
from liftbridge_broker.raft.types import Append
from liftbridge_broker.wire.metadata import decode_command
from liftbridge_broker.wire.peer.bodies import Propose, RaftBody
from liftbridge_broker.wire.peer.frame import is_signed, read_open, read_signed
from liftbridge_broker.wire.peer.messages import decode
from liftbridge_broker.wire.raft import decode_message

CHUNK = "chunk"
SILENT: Final = frozenset(("discover", "discover_reply", "hello", CHUNK))
"""Kinds that show nothing about their sender: anyone may have repeated them, or more must come."""

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def word(name: str) -> str:
    """Format a type name: `AlterPartition` as `alter_partition`."""
    return _WORD.sub("_", name).lower()


def kinds_of(payload: bytes) -> tuple[str, ...]:
    """Return the names of the kinds of a message.

    `fetch`, `fetch_reply`, `heartbeat`, `propose`, `append`, `vote`, ...; `chunk` for a part. A
    proposal also has the name of its command, such as `alter_partition`; an append with entries is
    also `entries`.
    """
    try:
        piece = read_signed(payload).piece if is_signed(payload) else read_open(payload)
        header, tail = decode(piece)
    except WireError:
        return (CHUNK,)
    body: object = header.body
    if isinstance(body, Propose):
        return ("propose", word(type(decode_command(tail)).__name__))
    if isinstance(body, RaftBody):
        body = decode_message(tail)
    name = word(type(body).__name__.removesuffix("Body"))
    return (name, "entries") if isinstance(body, Append) and body.entries else (name,)
