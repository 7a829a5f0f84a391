"""Reserved subjects: those of brokers and of NATS, which no client may use.

The grammar of names and subjects is `model.subjects`; this module handles subjects of received
messages and of messages that clients ask the broker to publish.
"""

from functools import lru_cache
from typing import Final

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import (
    INTERNAL_ROOT,
    SUBJECT_BYTES_MAX,
    check_subject,
    has_wildcard,
    internal_subject,
    is_publishable,
)

INBOX_CACHE_COUNT_MAX: Final = 8192

SYSTEM_PREFIX: Final = "$"
INBOX_PREFIX: Final = "_INBOX"

_ONE: Final = "*"
_REST: Final = ">"


class ReservedSubjects:
    """Subjects that belong to brokers or to NATS and never to a client.

    They are everything below the root of all clusters, below the own namespace (used by brokers of
    a former version), below the prefix of inboxes, and everything that starts with `$`. All
    decisions about them are made here: a stream stores no messages on them, no stream is created on
    them alone, and clients cannot make the broker publish to them (ADR 0015).

    Args:
        namespace: `clustering.namespace`.
        inbox_prefix: First tokens of the inboxes of requests, without the last dot.
    """

    def __init__(self, namespace: str, inbox_prefix: str = INBOX_PREFIX) -> None:
        assert namespace
        assert inbox_prefix
        self._internal_prefixes = (f"{INTERNAL_ROOT}.", f"{namespace}.", SYSTEM_PREFIX)
        self._prefixes = (*self._internal_prefixes, f"{inbox_prefix}.")
        self._own_acks = internal_subject(namespace, "ack", "")
        self._inboxes: dict[str, bool] = {}

    def is_reserved(self, subject: str) -> bool:
        """Return whether a message on this concrete subject is excluded from user streams."""
        return subject.startswith(self._prefixes)

    def check_stream(self, subject: str, partition_count: int = 1) -> None:
        """Refuse a stream whose messages could only arrive on reserved subjects.

        A wider pattern (`>`, `*.orders`) is allowed: the stream stores messages on subjects that
        are not reserved.

        Args:
            subject: Subject of the stream; its grammar is checked elsewhere.
            partition_count: Partitions requested: those above 0 have their own subjects.

        Raises:
            InvalidRequestError: `Subject is invalid: <why>`, as for a breach of the grammar.
        """
        if len(subject) > SUBJECT_BYTES_MAX:
            return  # no stream can have such a subject
        reserved = self._prefix_of(subject)
        if reserved is None and partition_count > 1:
            reserved = self._prefix_of(f"{subject}.1")
        if reserved is not None:
            raise InvalidRequestError(_refusal(subject, reserved))

    def check_publish(self, subject: str) -> None:
        """Refuse a subject to which the broker must not publish for clients.

        Raises:
            InvalidRequestError: The subject breaks the grammar, or is reserved.
        """
        check_subject(subject)
        reserved = self._prefix_of(subject)
        if reserved is not None:
            raise InvalidRequestError(_refusal(subject, reserved))

    def check_ack_inbox(self, inbox: str) -> None:
        """Refuse an inbox to which acks must not be sent.

        Raises:
            InvalidRequestError: The inbox is not a subject, has wildcards, or is reserved and no
                inbox.
        """
        if not self.allows_ack_inbox(inbox):
            raise InvalidRequestError(
                f"ackInbox is invalid or reserved: {inbox[:SUBJECT_BYTES_MAX]!r}; name a subject"
                f" without wildcards that begins with none of {', '.join(self._internal_prefixes)}"
            )

    def allows_ack_inbox(self, inbox: str) -> bool:
        """Return whether an ack may be sent to an inbox named by a client; see `check_ack_inbox`.

        Internal subjects are refused; otherwise a client could make the broker publish on them.
        Results are cached, because this runs for each message with an inbox; not for long inboxes.
        """
        if len(inbox) > SUBJECT_BYTES_MAX:
            return False
        allowed = self._inboxes.get(inbox)
        if allowed is None:
            allowed = is_publishable(inbox) and not inbox.startswith(self._internal_prefixes)
            allowed = allowed and not has_wildcard(inbox)
            if len(self._inboxes) >= INBOX_CACHE_COUNT_MAX:
                self._inboxes.clear()
            self._inboxes[inbox] = allowed
        return allowed

    def is_broker_inbox(self, inbox: str) -> bool:
        """Return whether a subject is a broker's inbox for acks, which no client may name."""
        return (
            inbox.startswith(self._own_acks) and is_publishable(inbox) and not has_wildcard(inbox)
        )

    def _prefix_of(self, pattern: str) -> str | None:
        """Return the reserved prefix of everything that a pattern matches, `None` for none."""
        literal: list[str] = []
        for token in pattern.split("."):
            if token in (_ONE, _REST):
                literal.append("")
                break
            literal.append(token)
        begins = ".".join(literal)
        return next((prefix for prefix in self._prefixes if begins.startswith(prefix)), None)


@lru_cache(maxsize=8)
def reserved_subjects(namespace: str) -> ReservedSubjects:
    """Return the reserved subjects of a cluster, shared because their cache of inboxes is large."""
    return ReservedSubjects(namespace)


def _refusal(subject: str, prefix: str) -> str:
    return (
        f"Subject is invalid: {subject!r} is reserved, like all that begins with {prefix!r};"
        " choose a subject outside of it"
    )
