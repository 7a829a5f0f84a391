"""Keys of encrypted streams as the metadata hold them: wrapped, and by id (ADR 0023)."""

import hmac
from typing import Final, NamedTuple

KEY_ID_BYTES_MAX: Final = 255
MASTER_KEYS_MAX: Final = 16
"""Master keys of a broker: the current one, and those that wrap what is not rewrapped yet."""
WRAPPED_BYTES_MAX: Final = 1_024
"""Largest wrapped data key; key services return 70 to 700 bytes."""
CHECK_SIZE: Final = 8
_CHECK_PURPOSE: Final = b"liftbridge key check"


class MasterKey(NamedTuple):
    """A master key that a broker has.

    Attributes:
        key_id: Its id, 1 to `KEY_ID_BYTES_MAX` bytes of printable text.
        check: Check value of the key; empty if a service has the key.
    """

    key_id: str
    check: bytes


class DataKey(NamedTuple):
    """The data key of a stream, wrapped by a master key.

    Attributes:
        master_key: Id of the master key.
        wrapped: The data key, encrypted; at most `WRAPPED_BYTES_MAX` bytes.
        check: Check value of the data key.
    """

    master_key: str
    wrapped: bytes
    check: bytes


def check_value(key: bytes) -> bytes:
    """Return the check value of a key, which shows whether two keys are equal and no more."""
    return hmac.digest(key, _CHECK_PURPOSE, "sha256")[:CHECK_SIZE]


def fault_of_id(key_id: str) -> str:
    """Return the rule that an id of a master key breaks; empty if it is valid."""
    if not 1 <= len(key_id.encode()) <= KEY_ID_BYTES_MAX or not key_id.isprintable():
        return f"the id must be 1 to {KEY_ID_BYTES_MAX} bytes of printable text"
    return ""


def fault_of_masters(keys: tuple[MasterKey, ...]) -> str:
    """Return the rule that the master keys of a broker break; empty if they are valid."""
    if len(keys) > MASTER_KEYS_MAX:
        return f"{len(keys)} listed, at most {MASTER_KEYS_MAX}"
    if len({key.key_id for key in keys}) < len(keys):
        return "an id is listed twice"
    for key in keys:
        if fault := fault_of_id(key.key_id):
            return fault
        if len(key.check) not in (0, CHECK_SIZE):
            return f"check value of {len(key.check)} bytes"
    return ""


def fault_of_data_key(key: DataKey) -> str:
    """Return the rule that a wrapped data key breaks; empty if it is valid."""
    if fault := fault_of_id(key.master_key):
        return fault
    if not 0 < len(key.wrapped) <= WRAPPED_BYTES_MAX:
        return f"{len(key.wrapped)} bytes, limit {WRAPPED_BYTES_MAX}"
    return "" if len(key.check) == CHECK_SIZE else f"check value of {len(key.check)} bytes"


def is_same(one: MasterKey, other: MasterKey) -> bool:
    """Return whether two brokers may have one key under one id: no check value says otherwise."""
    return not one.check or not other.check or one.check == other.check
