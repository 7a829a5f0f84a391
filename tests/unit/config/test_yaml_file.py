"""A configuration file is read without trusting it."""

import time

import pytest

from liftbridge_broker.config.yamlfile import (
    DEPTH_MAX,
    EVENT_COUNT_MAX,
    FILE_BYTES_MAX,
    KEY_LENGTH_MAX,
    Entry,
    read_entries,
)
from liftbridge_broker.errors import ConfigError


def entries(text: str) -> list[Entry]:
    return read_entries(text.encode(), "broker.yaml")


def test_dotted_nested_and_mixed_keys_become_flat_with_their_lines():
    text = """\
listen: localhost:9293
streams:
  retention.max:
    Bytes: 1024
  cleaner.interval: 5m
nats.servers:
  - nats://a:4222
  - 'b'
tls:
metrics.listen: off
"""
    assert entries(text) == [
        Entry("listen", "localhost:9293", 1),
        Entry("streams.retention.max.bytes", "1024", 4),
        Entry("streams.cleaner.interval", "5m", 5),
        Entry("nats.servers", ("nats://a:4222", "b"), 6),
        Entry("tls", None, 9),
        Entry("metrics.listen", "off", 10),
    ]


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "~", "\ufeff"])
def test_empty_file_has_no_entries(text):
    assert entries(text) == []


def test_setting_may_also_be_the_beginning_of_another_ones_name():
    assert entries("nats: {embedded: true, embedded.config: a}") == [
        Entry("nats.embedded", "true", 1),
        Entry("nats.embedded.config", "a", 1),
    ]


def test_quoted_null_is_text_and_bare_null_is_nothing():
    assert entries("a: 'null'\nb: null\nc: ~\nd:") == [
        Entry("a", "null", 1),
        Entry("b", None, 2),
        Entry("c", None, 3),
        Entry("d", None, 4),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "broker.yaml:2: YAML aliases are not supported"),
        ("a: !!python/object/apply:os.system [ls]", "broker.yaml:1: YAML tags are not supported"),
        ("a: !mine 1", "broker.yaml:1: YAML tags are not supported"),
        ("- a\n- b", "broker.yaml:1: must be a mapping"),
        ("just text", "broker.yaml:1: must be a mapping"),
        ("a: [{b: 1}]", "broker.yaml:1: a list may contain only plain values"),
        ("a:\n  - [1]", "broker.yaml:2: a list may contain only plain values"),
        ("[a]: 1", "broker.yaml:1: the name of a setting must be plain text"),
        ("? {a: b}\n: 1", "broker.yaml:1: the name of a setting must be plain text"),
        ("a: 1\n---\nb: 2", "broker.yaml:2: contains more than one YAML document"),
        ("a: 1\nb: [", "broker.yaml:[23]: not valid YAML"),
        ("a: 1\n\tb: 2", "broker.yaml:2: not valid YAML"),
        ("a: b\x00", "broker.yaml(:1)?: not valid YAML"),
    ],
)
def test_what_is_not_configuration_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError, match=message):
        entries(text)


def test_bytes_that_are_no_utf8_are_refused_with_their_line():
    with pytest.raises(ConfigError, match=r"broker.yaml:2: not UTF-8"):
        read_entries(b"a: 1\nb: \xff\n", "broker.yaml")


def test_file_above_the_size_bound_is_refused():
    with pytest.raises(ConfigError, match="larger than"):
        read_entries(b"#" * (FILE_BYTES_MAX + 1), "broker.yaml")


def test_nesting_above_the_depth_bound_is_refused():
    deep = "".join("  " * level + "a:\n" for level in range(DEPTH_MAX + 1))
    with pytest.raises(ConfigError, match="deeper than"):
        entries(deep + "  " * (DEPTH_MAX + 1) + "b: 1")


def test_more_elements_than_the_bound_are_refused():
    with pytest.raises(ConfigError, match="more than"):
        entries("a: [" + "1," * EVENT_COUNT_MAX + "1]")


def test_name_above_the_length_bound_is_refused():
    # Each entry carries its path, so long names would multiply with the entries below them.
    with pytest.raises(ConfigError, match="longer than"):
        entries("a" * (KEY_LENGTH_MAX + 1) + ": 1")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "? " * 50_000,
        "- " * 50_000,
        "a: " + "'" * 100_001,
        "".join("&a" + str(i) + " " for i in range(20_000)),
        "{a: " * 20_000,
    ],
    ids=["lists", "maps", "keys", "items", "quotes", "anchors", "nested"],
)
def test_hostile_file_is_refused_in_bounded_time(text):
    started = time.process_time()
    with pytest.raises(ConfigError):
        entries(text)
    assert time.process_time() - started < 5
