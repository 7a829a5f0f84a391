"""Refusals that several parts of the node give, made anew for each who gets one.

An error that is raised keeps the frames it went through: one that is shared would keep all of them.
"""

from liftbridge_broker.errors import UnavailableError


def cut_off() -> UnavailableError:
    """Refusal of a leader that does not hear the metadata leader."""
    return UnavailableError("not appended: cut off from the metadata leader")


def leader_changed() -> UnavailableError:
    """Refusal of a broker whose place in a partition is another by now."""
    return UnavailableError("leader changed")


def stopped() -> UnavailableError:
    """Refusal of a broker that stops."""
    return UnavailableError("commit log was closed")
