"""Refusals used by several parts of the node, a new object for each caller.

A raised error keeps the frames it passed through: a shared object would keep all of them.
"""

from typing import Final

from liftbridge_broker.errors import (
    ChangeNotMadeError,
    ChangeRefusedError,
    InternalError,
    LiftbridgeError,
    NotAppendedError,
    TooLargeError,
    UnavailableError,
)

_NOTHING_DONE: Final = (ChangeNotMadeError, NotAppendedError, TooLargeError, UnavailableError)
"""Causes that prove that the log did not accept a command, and never will."""


def failed_change(cause: LiftbridgeError, text: str) -> InternalError:
    """Wrap the error of a change that the log failed, with the original's status and text.

    The code gives the outcome: not made if the cause proves it, else unknown.
    """
    kind = InternalError
    if isinstance(cause, _NOTHING_DONE):
        kind = ChangeNotMadeError if cause.retriable else ChangeRefusedError
    failure = kind(text)
    failure.__cause__ = cause
    return failure


def cut_off() -> UnavailableError:
    """Return the refusal of a leader without contact to the metadata leader."""
    return UnavailableError("not appended: cut off from the metadata leader")


def leader_changed() -> UnavailableError:
    """Return the refusal of a broker whose role in a partition has changed."""
    return UnavailableError("leader changed")


def stopped() -> UnavailableError:
    """Return the refusal of a broker that stops."""
    return UnavailableError("commit log was closed")
