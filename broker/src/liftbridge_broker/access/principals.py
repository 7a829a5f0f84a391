"""Principals: whom a call acts for."""

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """Whom a call acts for.

    Attributes:
        name: Name of the user or program; empty for a caller without a proven identity.
        groups: Groups it belongs to.
    """

    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS: Final = Principal("")
