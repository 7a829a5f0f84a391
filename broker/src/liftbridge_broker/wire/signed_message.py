"""Signatures of messages that brokers exchange on subjects that clients can use.

A broker forwards a message to the leader of its partition on the subject of the stream, and the
leader acks it to the inbox of that broker. Any listener receives both. So both end with an HMAC of
all bytes before, as field 1002 of their protobuf message: only a broker can request an ack in the
name of a broker, or send such an ack. Clients never get such an ack, and would ignore the field.
"""

import hmac
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from liftbridge_broker.wire.fields import varint
from liftbridge_broker.wire.peer.keys import Keyring

_TAG_BYTES: Final = 16
_FIELD: Final = varint(1_002 << 3 | 2) + varint(_TAG_BYTES)
SIGNATURE_BYTES: Final = len(_FIELD) + _TAG_BYTES


class Purpose(Enum):
    """Kind of message; a signature for one kind is invalid for any other."""

    PUBLISH = b"liftbridge publish\0"
    ACK = b"liftbridge ack\0"


class MessageSigner(NamedTuple):
    """Signs and verifies with the keys of a cluster.

    Attributes:
        keys: The first signs, all verify.
        is_signing: Whether outgoing messages are signed.
        accepts_unsigned: Whether incoming unsigned messages are accepted.
    """

    keys: tuple[bytes, ...]
    is_signing: bool
    accepts_unsigned: bool

    def signed(self, data: bytes, purpose: Purpose) -> bytes:
        """Sign a message; return it unchanged if signing is off."""
        if not self.is_signing:
            return data
        return data + _FIELD + _tag(data, self.keys[0], purpose)

    def is_believed(self, data: bytes, purpose: Purpose) -> bool:
        """Return whether a message is from a broker of the cluster, or needs no signature."""
        if self.accepts_unsigned:
            return True
        body, end = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        return end.startswith(_FIELD) and any(
            hmac.compare_digest(end, _FIELD + _tag(body, key, purpose)) for key in self.keys
        )


@lru_cache(maxsize=8)
def signer_of(keyring: Keyring) -> MessageSigner:
    """Return the signer for these keys."""
    keys = keyring.derived("messages on subjects")
    return MessageSigner(keys, keyring.signer is not None, keyring.accepts_unsigned)


def _tag(data: bytes, key: bytes, purpose: Purpose) -> bytes:
    return hmac.digest(key, purpose.value + data, "sha256")[:_TAG_BYTES]
