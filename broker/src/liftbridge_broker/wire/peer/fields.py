"""Fields shared by several messages between brokers, checked."""

from typing import Final

from liftbridge_broker.errors import WireError

NAME_LENGTH_MAX: Final = 256
"""Characters of an id or name from a peer; longer ones are refused."""

LIST_LENGTH_MAX: Final = 1_000_000
"""Partitions in one message."""


def name(text: str, what: str, *, may_be_empty: bool = False) -> str:
    """Check a name from a peer.

    Raises:
        WireError: The name is empty or too long.
    """
    if len(text) > NAME_LENGTH_MAX or not (text or may_be_empty):
        raise WireError(f"peer message: {what} of {len(text)} characters")
    return text


def bounded(count: int, what: str, most: int = LIST_LENGTH_MAX) -> None:
    """Check the length of a list from a peer.

    Raises:
        WireError: The list is longer than `most`.
    """
    if count > most:
        raise WireError(f"peer message: {count} {what}")
