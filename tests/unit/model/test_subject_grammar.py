"""Names, subjects and groups: what is refused, in which words, and what matches what."""

import pytest

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.ids import PartitionNumber
from liftbridge_broker.model.subjects import (
    check_group,
    check_stream_name,
    check_subject,
    has_wildcard,
    matches,
    partition_subject,
)

UNPRINTABLE = "it contains a blank or a character that cannot be printed"


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "foo.bar",
        "foo-1_2",
        "über",
        "日本語",
        "a/b",
        "__group",
        "a" * 255,
        "é" * 127,
        "a$",
        "\\",
    ],
)
def test_ordinary_names_are_taken(name: str) -> None:
    check_stream_name(name)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("a b", UNPRINTABLE),
        ("a\tb", UNPRINTABLE),
        ("a\nb", UNPRINTABLE),
        ("a\0b", UNPRINTABLE),
        ("a\x7fb", UNPRINTABLE),
        ("a\u200bb", UNPRINTABLE),
        ("a\u202eb", UNPRINTABLE),
        ("a\u00a0b", UNPRINTABLE),
        ("a\u2028b", UNPRINTABLE),
        ("a*", "it contains '*', '>' or ','"),
        ("a.>", "it contains '*', '>' or ','"),
        ("a,b", "it contains '*', '>' or ','"),
        ("$SYS", "it starts with '$'"),
        (".", "it has an empty token"),
        ("..", "it has an empty token"),
        ("../../etc/passwd", "it has an empty token"),
        ("a..b", "it has an empty token"),
        (".a", "it has an empty token"),
        ("a.", "it has an empty token"),
        ("a" * 256, "it is longer than 255 bytes"),
        ("é" * 128, "it is longer than 255 bytes"),
    ],
)
def test_odd_names_are_refused_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_stream_name(name)
    assert caught.value.text == f"Name is invalid: {rule}"


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "*", ">", "a.*", "*.b", "a.*.c", "a.>", "*.>", "a$.b", "ü.*", "a/b"]
)
def test_ordinary_subjects_are_taken(subject: str) -> None:
    check_subject(subject)


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("", "Subject is invalid"),
        (" ", "Subject is invalid"),
        ("a b", "Subject is invalid"),
        ("a\r\nPUB x 0", "Subject is invalid"),
        (".", "Subject is invalid"),
        ("a..b", "Subject is invalid"),
        ("$SYS.x", "Subject is invalid: it starts with '$'"),
        ("$JS", "Subject is invalid: it starts with '$'"),
        ("a.b*", "Subject is invalid: '*' must be a whole token"),
        ("**", "Subject is invalid: '*' must be a whole token"),
        ("a.>.b", "Subject is invalid: '>' must be the last token"),
        ("a.b>", "Subject is invalid: '>' must be the last token"),
        ("a\0", f"Subject is invalid: {UNPRINTABLE}"),
        ("a\u00a0b", f"Subject is invalid: {UNPRINTABLE}"),
        ("a" * 1025, "Subject is invalid: it is longer than 1024 bytes"),
    ],
)
def test_odd_subjects_are_refused(subject: str, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_subject(subject)
    assert caught.value.text == text


def test_groups_are_one_word_or_none() -> None:
    check_group("")
    check_group("workers.eu-1")
    for group in ("a b", "a\n", "a" * 256):
        with pytest.raises(InvalidRequestError, match=r"^Group is invalid: "):
            check_group(group)


def test_partitions_are_told_apart_by_a_suffix() -> None:
    assert partition_subject("foo.*", PartitionNumber(0)) == "foo.*"
    assert partition_subject("foo.*", PartitionNumber(12)) == "foo.*.12"


@pytest.mark.parametrize(
    ("subject", "expected"), [("a.b", False), ("a.*", True), ("*.b", True), ("a.>", True)]
)
def test_wildcards_are_seen(subject: str, expected: bool) -> None:
    assert has_wildcard(subject) is expected


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "b.c", False),
        ("*.>", "a.b", True),
        ("*.>", "a", False),
        ("a.*", "a.*", True),
        ("a.>", "a.*", True),
        ("a.b", "a.*", False),
        ("a.*", "a.>", True),
    ],
)
def test_matching_is_that_of_nats(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
