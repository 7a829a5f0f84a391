"""What is asked of whoever makes keys, and what a certificate tells of itself.

Times are seconds since 1970. Chance is the maker's own; times are given.
"""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its private key, both PEM."""

    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Known:
    """A certificate as it describes itself.

    Attributes:
        fingerprint: SHA-256 of it, in hexadecimal digits.
        key_id: Of its own key.
        issuer_key_id: Of the key that signed it; its own for an authority.
        not_before_s: From when it is valid.
        not_after_s: Until when.
        names: DNS names and addresses, sorted.
    """

    fingerprint: str
    key_id: str
    issuer_key_id: str
    not_before_s: int
    not_after_s: int
    names: tuple[str, ...] = ()


class Issuer(Protocol):
    """Makes keys and certificates."""

    def make_authority(self, name: str, *, not_before_s: int, not_after_s: int) -> Pair:
        """A new authority that signs itself.

        Args:
            name: Common name, at most 64 characters.
            not_before_s: From when it is valid.
            not_after_s: Until when.
        """
        ...

    def issue(
        self,
        authority: Pair,
        name: str,
        names: tuple[str, ...],
        *,
        not_before_s: int,
        not_after_s: int,
    ) -> Pair:
        """A certificate for servers and clients, with a new key.

        Args:
            authority: Who signs it.
            name: Common name, at most 64 characters.
            names: DNS names and addresses of IP that it is valid for.
            not_before_s: From when it is valid.
            not_after_s: Until when; not longer than the authority.
        """
        ...

    def describe(self, pem: bytes) -> tuple[Known, ...]:
        """What the certificates in a bundle tell, in their order.

        Raises:
            ValueError: It holds something else than certificates.
        """
        ...

    def fits(self, pair: Pair) -> bool:
        """Whether certificate and key can be read, and belong together."""
        ...
