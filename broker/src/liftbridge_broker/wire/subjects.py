"""Which subjects belong to whom: reserved ones, and who listens to a subject on this broker.

The grammar of names and subjects is `model.subjects`; here is what needs to know what arrived or
what a client asked the broker to publish.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import check_subject, has_wildcard

LOOKUP_CACHE_COUNT_MAX: Final = 8192
INBOX_CACHE_COUNT_MAX: Final = 8192

SYSTEM_PREFIX: Final = "$"
INBOX_PREFIX: Final = "_INBOX"

_ONE: Final = "*"
_REST: Final = ">"

_Value = TypeVar("_Value", bound=Hashable)


def is_publishable(subject: str) -> bool:
    """Whether a subject or inbox given by a client may stand in a `PUB` line.

    A subject with wildcards may: the original publishes to such a stream literally.
    """
    try:
        check_subject(subject)
    except InvalidRequestError:
        return False
    return True


class ReservedSubjects:
    """Subjects that belong to the cluster or to NATS and never to a user's stream.

    Args:
        namespace: `clustering.namespace`; everything below it is internal.
        inbox_prefix: First tokens of the inboxes of requests, without the last dot.

    Attributes:
        ack_prefix: Below it lie the inboxes that brokers make to receive acks.
    """

    def __init__(self, namespace: str, inbox_prefix: str = INBOX_PREFIX) -> None:
        assert namespace
        assert inbox_prefix
        self.ack_prefix = f"{namespace}.ack."
        self._internal_prefix = f"{namespace}."
        self._prefixes = (self._internal_prefix, f"{inbox_prefix}.", SYSTEM_PREFIX)
        self._inboxes: dict[str, bool] = {}

    def is_reserved(self, subject: str) -> bool:
        """Whether a message on this concrete subject is kept out of user streams."""
        return subject.startswith(self._prefixes)

    def allows_publish(self, subject: str) -> bool:
        """Whether a client may have the broker publish to this subject in its stead."""
        return is_publishable(subject) and not subject.startswith(self._internal_prefix)

    def allows_ack_inbox(self, inbox: str) -> bool:
        """Whether an ack may be sent to an inbox named by a client.

        Internal subjects are closed to it, or a client could make the broker speak on them; inboxes
        below `ack_prefix`, which brokers hand out themselves, are open. Answers are kept, because
        this is asked for each message with an inbox.
        """
        allowed = self._inboxes.get(inbox)
        if allowed is None:
            allowed = self.allows_publish(inbox) or (
                inbox.startswith(self.ack_prefix) and is_publishable(inbox)
            )
            allowed = allowed and not has_wildcard(inbox)
            if len(self._inboxes) >= INBOX_CACHE_COUNT_MAX:
                self._inboxes.clear()
            self._inboxes[inbox] = allowed
        return allowed


@dataclass(slots=True)
class _TableNode(Generic[_Value]):
    """One token of the patterns: what ends here, and what goes on."""

    values: dict[_Value, None] = field(default_factory=dict)
    rest: dict[_Value, None] = field(default_factory=dict)
    children: dict[str, "_TableNode[_Value]"] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left here and below."""
        return not self.values and not self.rest and not self.children


class SubjectTable(Generic[_Value]):
    """Which values are attached to patterns that match a concrete subject.

    A tree of tokens, and a cache from concrete subjects to results that is dropped at every change
    and when `LOOKUP_CACHE_COUNT_MAX` subjects are in it. A look-up finds each value once, in an
    order that depends on patterns and their order of insertion alone.
    """

    def __init__(self) -> None:
        self._root: _TableNode[_Value] = _TableNode()
        self._cache: dict[str, tuple[_Value, ...]] = {}

    def add(self, pattern: str, value: _Value) -> None:
        """Attach `value` to a valid pattern; attaching it again changes nothing."""
        assert is_publishable(pattern)
        tokens = pattern.split(".")
        has_rest = tokens[-1] == _REST
        node = self._root
        for token in tokens[:-1] if has_rest else tokens:
            node = node.children.setdefault(token, _TableNode())
        (node.rest if has_rest else node.values)[value] = None
        self._cache.clear()

    def remove(self, pattern: str, value: _Value) -> None:
        """Detach `value` from a pattern; no effect when it is not attached."""
        tokens = pattern.split(".")
        has_rest = tokens[-1] == _REST
        path: list[tuple[_TableNode[_Value], str]] = []
        node = self._root
        for token in tokens[:-1] if has_rest else tokens:
            child = node.children.get(token)
            if child is None:
                return
            path.append((node, token))
            node = child
        (node.rest if has_rest else node.values).pop(value, None)
        for parent, token in reversed(path):
            if not parent.children[token].is_empty:
                break
            del parent.children[token]
        self._cache.clear()

    def lookup(self, subject: str) -> tuple[_Value, ...]:
        """Values whose pattern matches a concrete subject."""
        found = self._cache.get(subject)
        if found is None:
            found = tuple(dict.fromkeys(self._walk(subject.split("."))))
            if len(self._cache) >= LOOKUP_CACHE_COUNT_MAX:
                self._cache.clear()
            self._cache[subject] = found
        return found

    def _walk(self, tokens: list[str]) -> Iterator[_Value]:
        """All matching values, level by level; a value may come more than once."""
        level: list[_TableNode[_Value]] = [self._root]
        for token in tokens:
            following: list[_TableNode[_Value]] = []
            for node in level:
                yield from node.rest
                # A published `*` is an ordinary token: the same child is not visited twice.
                for name in dict.fromkeys((token, _ONE)):
                    child = node.children.get(name)
                    if child is not None:
                        following.append(child)
            level = following
        for node in level:
            yield from node.values
