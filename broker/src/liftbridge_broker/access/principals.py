"""Principals: who makes a call, as the identity of its connection says."""

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """A caller.

    Attributes:
        name: Its name, such as the common name of its certificate; empty for an anonymous caller.
        groups: Groups that it belongs to.
    """

    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS: Final = Principal("")
"""A caller without an identity."""
