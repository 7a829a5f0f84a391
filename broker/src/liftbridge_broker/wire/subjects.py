"""Names of streams and NATS subjects: grammar, matching, and who listens to a subject here.

The grammar is strict because names and subjects end up in NATS protocol lines, in internal
subjects and in logs: no whitespace, no control or invisible characters, no empty tokens, no
leading `$` (reserved by NATS), bounded length. `*` and `>` are wildcards of subscriptions: `*`
stands for one token, `>` for one or more at the end. Texts of refusals are those of the original
where it has one.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from liftbridge_broker.errors import InvalidRequestError

NAME_BYTES_MAX: Final = 255
SUBJECT_BYTES_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 255
LOOKUP_CACHE_COUNT_MAX: Final = 8192

WILDCARD_ONE: Final = "*"
WILDCARD_REST: Final = ">"
SYSTEM_PREFIX: Final = "$"
INBOX_PREFIX: Final = "_INBOX."

_Value = TypeVar("_Value", bound=Hashable)


def _is_clean(text: str, bytes_max: int) -> bool:
    """Whether `text` is visible, free of whitespace, encodable as UTF-8 and short enough."""
    if not text.isprintable() or " " in text:
        return False
    return len(text.encode()) <= bytes_max


def check_stream_name(name: str) -> None:
    """Refuse a stream name that breaks the grammar.

    Slashes and single dots are allowed and mean nothing: names are never paths. Names of existing
    streams of the original that are unlikely to be wanted (empty tokens, wildcards) are refused.

    Raises:
        InvalidRequestError: With the rule that is broken.
    """
    if not name:
        raise InvalidRequestError("Name cannot be empty")
    if not _is_clean(name, NAME_BYTES_MAX):
        raise InvalidRequestError(
            f"Name is invalid: at most {NAME_BYTES_MAX} bytes without whitespace or control"
            " characters"
        )
    if name.startswith(SYSTEM_PREFIX):
        raise InvalidRequestError("Name is invalid: it cannot start with $")
    if WILDCARD_ONE in name or WILDCARD_REST in name:
        raise InvalidRequestError("Name is invalid: it cannot contain * or >")
    if "" in name.split("."):
        raise InvalidRequestError("Name is invalid: it cannot contain empty tokens")


def is_pattern(subject: str) -> bool:
    """Whether a subject may be subscribed to: `*` only as a whole token, `>` only as the last."""
    if not subject or subject.startswith(SYSTEM_PREFIX):
        return False
    if not _is_clean(subject, SUBJECT_BYTES_MAX):
        return False
    tokens = subject.split(".")
    if "" in tokens:
        return False
    if WILDCARD_ONE not in subject and WILDCARD_REST not in subject:
        return True
    if WILDCARD_REST in tokens[:-1]:
        return False
    return not any(
        (WILDCARD_ONE in token or WILDCARD_REST in token) and len(token) > 1 for token in tokens
    )


def check_stream_subject(subject: str, partitions: int = 1) -> None:
    """Refuse a subject that no stream of so many partitions may attach to.

    A subject that ends in `>` leaves no place for the number of a second partition.

    Raises:
        InvalidRequestError: In the words of the original.
    """
    if not is_pattern(subject) or (partitions > 1 and subject.endswith(WILDCARD_REST)):
        raise InvalidRequestError("Subject is invalid")


def check_group(group: str) -> None:
    """Refuse a load-balance group that NATS could not take as a queue name; empty is none.

    Raises:
        InvalidRequestError: With the rule that is broken.
    """
    if not _is_clean(group, GROUP_BYTES_MAX):
        raise InvalidRequestError(
            f"Group is invalid: at most {GROUP_BYTES_MAX} bytes without whitespace or control"
            " characters"
        )


def has_wildcard(subject: str) -> bool:
    """Whether a valid subject stands for more than itself."""
    if WILDCARD_ONE not in subject and WILDCARD_REST not in subject:
        return False
    tokens = subject.split(".")
    return WILDCARD_ONE in tokens or tokens[-1] == WILDCARD_REST


def is_publishable(subject: str) -> bool:
    """Whether a subject or inbox given by a client may stand in a `PUB` line.

    A subject with wildcards may: the original publishes to such a stream literally.
    """
    return is_pattern(subject)


def partition_subject(subject: str, partition: int) -> str:
    """Subject of one partition: the stream's own for 0, `subject.N` for the others."""
    assert partition >= 0
    return f"{subject}.{partition}" if partition else subject


@dataclass(frozen=True, slots=True)
class ReservedSubjects:
    """Subjects that belong to the cluster or to NATS and never to a user's stream.

    Attributes:
        namespace: `clustering.namespace`; everything below it is internal.
    """

    namespace: str

    @property
    def ack_prefix(self) -> str:
        """Below it lie the inboxes that brokers make to receive acks."""
        return f"{self.namespace}.ack."

    def is_reserved(self, subject: str) -> bool:
        """Whether a message on this concrete subject is kept out of user streams."""
        return subject.startswith((f"{self.namespace}.", INBOX_PREFIX, SYSTEM_PREFIX))

    def allows_publish(self, subject: str) -> bool:
        """Whether a client may have the broker publish to this subject in its stead."""
        return is_publishable(subject) and not subject.startswith(f"{self.namespace}.")

    def allows_ack_inbox(self, inbox: str) -> bool:
        """Whether an ack may be sent to an inbox named by a client.

        Internal subjects are closed to it, or a client could make the broker speak on them; inboxes
        below `ack_prefix`, which brokers hand out themselves, are open.
        """
        if not is_publishable(inbox) or has_wildcard(inbox):
            return False
        return inbox.startswith(self.ack_prefix) or not inbox.startswith(f"{self.namespace}.")


def matches(pattern: str, subject: str) -> bool:
    """Whether a message published to `subject` reaches a subscription of `pattern`."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == WILDCARD_REST:
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    if len(wanted) != len(given):
        return False
    return all(w in (g, WILDCARD_ONE) for w, g in zip(wanted, given, strict=True))


@dataclass(slots=True)
class _TableNode(Generic[_Value]):
    """One token of the patterns: what ends here, and what follows."""

    values: dict[_Value, None] = field(default_factory=dict)
    rest: dict[_Value, None] = field(default_factory=dict)
    children: dict[str, "_TableNode[_Value]"] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left below."""
        return not self.values and not self.rest and not self.children


class SubjectTable(Generic[_Value]):
    """Which values are attached to patterns that match a concrete subject.

    A tree of tokens, and a cache from concrete subjects to results that is dropped at every change
    and when `LOOKUP_CACHE_COUNT_MAX` subjects are in it. Values of one look-up are in the order of
    the tree walk and each appears once.
    """

    def __init__(self) -> None:
        self._root: _TableNode[_Value] = _TableNode()
        self._cache: dict[str, tuple[_Value, ...]] = {}

    def add(self, pattern: str, value: _Value) -> None:
        """Attach `value` to a valid pattern; attaching it again changes nothing."""
        assert is_pattern(pattern)
        tokens = pattern.split(".")
        has_rest = tokens[-1] == WILDCARD_REST
        node = self._root
        for token in tokens[:-1] if has_rest else tokens:
            node = node.children.setdefault(token, _TableNode())
        (node.rest if has_rest else node.values)[value] = None
        self._cache.clear()

    def remove(self, pattern: str, value: _Value) -> None:
        """Detach `value` from a pattern; no effect when it is not attached."""
        tokens = pattern.split(".")
        has_rest = tokens[-1] == WILDCARD_REST
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
                following += _children(node, (token, WILDCARD_ONE))
            level = following
        for node in level:
            yield from node.values


def _children(node: _TableNode[_Value], tokens: Iterable[str]) -> Iterator[_TableNode[_Value]]:
    """Nodes below `node` for those of `tokens` that exist, each once."""
    for token in dict.fromkeys(tokens):
        child = node.children.get(token)
        if child is not None:
            yield child
