"""Refusals that several parts of the node give, made anew for each who gets one.

An error that is raised keeps the frames it went through: one that is shared would keep all of them.
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
"""Causes by which a log says that it never took what it was given, and never will."""


def failed_change(cause: LiftbridgeError, text: str) -> InternalError:
    """Wrap the error with which a log failed a change, in the status and text of the original.

    The code tells the outcome: not made if the cause says so, else unknown.
    """
    kind = InternalError
    if isinstance(cause, _NOTHING_DONE):
        kind = ChangeNotMadeError if cause.retriable else ChangeRefusedError
    failure = kind(text)
    failure.__cause__ = cause
    return failure


def cut_off() -> UnavailableError:
    """Refusal of a leader that does not hear the metadata leader."""
    return UnavailableError("not appended: cut off from the metadata leader")


def leader_changed() -> UnavailableError:
    """Refusal of a broker whose place in a partition is another by now."""
    return UnavailableError("leader changed")


def stopped() -> UnavailableError:
    """Refusal of a broker that stops."""
    return UnavailableError("commit log was closed")
