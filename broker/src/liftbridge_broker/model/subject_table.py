"""A table of subjects with wildcards: who receives a message, which access rules name a subject."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from liftbridge_broker.model.subjects import is_publishable

LOOKUP_CACHE_COUNT_MAX: Final = 8192

_ONE: Final = "*"
_REST: Final = ">"

_Value = TypeVar("_Value", bound=Hashable)


@dataclass(slots=True)
class _TableNode(Generic[_Value]):
    """One token of the patterns: the values that end here, and the next tokens."""

    values: dict[_Value, None] = field(default_factory=dict)
    rest: dict[_Value, None] = field(default_factory=dict)
    children: dict[str, "_TableNode[_Value]"] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether this node and its children have no value."""
        return not self.values and not self.rest and not self.children


class SubjectTable(Generic[_Value]):
    """Finds the values whose patterns match a concrete subject.

    A tree of tokens, and a cache from concrete subjects to results that is cleared at every change
    and when it holds `LOOKUP_CACHE_COUNT_MAX` subjects. A look-up returns each value once, in an
    order that depends only on patterns and their order of insertion.
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
        """Detach `value` from a pattern; no-op when it is not attached."""
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
        """Return the values whose pattern matches a concrete subject."""
        values = self._cache.get(subject)
        if values is None:
            values = tuple(dict.fromkeys(self.matching(subject)))
            if len(self._cache) >= LOOKUP_CACHE_COUNT_MAX:
                self._cache.clear()
            self._cache[subject] = values
        return values

    def matching(self, subject: str) -> Iterator[_Value]:
        """Yield the same values without the cache; one may appear more than once."""
        level: list[_TableNode[_Value]] = [self._root]
        for token in subject.split("."):
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
