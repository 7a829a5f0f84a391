"""Bounds of the names of principals and groups, whatever they come from."""

from typing import Final

from liftbridge_broker.access.principals import Principal

NAME_BYTES_MAX: Final = 256
GROUPS_MAX: Final = 64


def fault_of(principal: Principal) -> str:
    """Return the rule that a principal breaks, continuing a sentence; empty for none."""
    if len(principal.groups) > GROUPS_MAX:
        return f"has {len(principal.groups)} groups, at most {GROUPS_MAX} are allowed"
    for kind, name in (("name", principal.name), *(("group", one) for one in principal.groups)):
        if not _is_name(name):
            return f"has a {kind} that is not 1 to {NAME_BYTES_MAX} bytes of printable text"
    if len(set(principal.groups)) < len(principal.groups):
        return "has a group twice"
    return ""


def _is_name(name: str) -> bool:
    """Return whether a name is bounded and cannot forge a line of a log or a table."""
    # Half of a surrogate pair, which JSON can hold, has no bytes and is not printable.
    return name.isprintable() and 1 <= len(name.encode()) <= NAME_BYTES_MAX and name == name.strip()
