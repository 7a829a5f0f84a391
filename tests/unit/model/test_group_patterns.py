"""Patterns of streams match as NATS matches subjects."""

from itertools import product

from liftbridge_broker.model.groups import matching
from liftbridge_broker.model.subjects import CURSORS_STREAM, matches

NAMES = [".".join(tokens) for count in (1, 2, 3) for tokens in product(("a", "b+c"), repeat=count)]
PATTERNS = [
    ".".join((*tokens, *end))
    for count in (0, 1, 2)
    for tokens in product(("a", "b+c", "*"), repeat=count)
    for end in ((">",), ("*",))
]


def test_patterns_match_the_streams_whose_names_are_such_subjects() -> None:
    for pattern in PATTERNS:
        assert matching((pattern,), NAMES) == [one for one in NAMES if matches(pattern, one)]
    pairs = product(PATTERNS[:6], PATTERNS[-6:])
    for both in pairs:
        wanted = [one for one in NAMES if any(matches(pattern, one) for pattern in both)]
        assert matching(both, NAMES) == wanted


def test_no_pattern_matches_a_stream_of_the_brokers() -> None:
    assert matching((">", "*"), (CURSORS_STREAM, "a")) == ["a"]
    assert matching((), ("a",)) == []
