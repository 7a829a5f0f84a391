"""Port to the issuer of keys and certificates, and the parsed form of a certificate.

Times are seconds since 1970. The issuer has its own randomness; the caller passes times.
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
    """Parsed fields of a certificate.

    Attributes:
        fingerprint: SHA-256 of the certificate, in hexadecimal digits.
        key_id: Id of its own key.
        issuer_key_id: Id of the key that signed it; its own for an authority.
        not_before_s: Start of validity.
        not_after_s: End of validity.
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
        """Make a self-signed authority.

        Args:
            name: Common name, at most 64 characters.
            not_before_s: Start of validity.
            not_after_s: End of validity.
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
        """Issue a certificate for servers and clients, with a new key.

        Args:
            authority: The authority that signs it.
            name: Common name, at most 64 characters.
            names: DNS names and IP addresses that it is valid for.
            not_before_s: Start of validity.
            not_after_s: End of validity; not after that of the authority.
        """
        ...

    def issue_client(
        self, authority: Pair, name: str, *, not_before_s: int, not_after_s: int
    ) -> Pair:
        """Issue a certificate with which no server can be run, with a new key.

        Args:
            authority: The authority that signs it.
            name: Common name, at most 64 characters.
            not_before_s: Start of validity.
            not_after_s: End of validity; not after that of the authority.
        """
        ...

    def describe(self, pem: bytes) -> tuple[Known, ...]:
        """Parse the certificates of a bundle, in their order.

        Raises:
            ValueError: The bundle contains data other than certificates.
        """
        ...

    def fits(self, pair: Pair) -> bool:
        """Return whether certificate and key are readable and match."""
        ...
