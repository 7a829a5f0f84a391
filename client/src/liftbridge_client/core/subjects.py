"""Matching of NATS subjects to the streams that store their messages."""

from typing import Final

from liftbridge_client.errors import UsageError
from liftbridge_client.model import StreamInfo

_INTERNAL: Final = "__"
_NEVER_STORED: Final = ("$", "_INBOX.", "_LIFTBRIDGE.")
"""Subjects of NATS itself, of inboxes and of brokers begin with these."""


def check_concrete(subject: str) -> None:
    """Check that messages can be published to a subject.

    Raises:
        UsageError: It has wildcards, blanks or empty tokens.
    """
    tokens = subject.split(".")
    if any(token in ("", "*", ">") or token.split() != [token] for token in tokens):
        raise UsageError(
            f"subject {subject!r}: must be a subject that messages are published to, without "
            "wildcards, blanks and empty tokens"
        )


def is_fed(stream: StreamInfo, subject: str) -> bool:
    """Return whether a partition of a stream stores messages published to a subject."""
    if stream.name.startswith(_INTERNAL) or subject.startswith(_NEVER_STORED):
        return False
    return any(
        _matches(stream.subject if number == 0 else f"{stream.subject}.{number}", subject)
        for number in stream.partitions
    )


def _matches(pattern: str, subject: str) -> bool:
    """Return whether NATS delivers messages of a concrete subject to a subscription."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        token in ("*", found) for token, found in zip(wanted, given, strict=True)
    )
