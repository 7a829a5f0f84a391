"""Single values: Go's durations, sizes, addresses, and back to text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.config.values import (
    Address,
    parse_address,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_list,
    parse_size,
    parse_text,
    show_address,
    show_duration,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("15s", 15 * SECOND),
        ("1h30m", 5_400 * SECOND),
        ("168h", 604_800 * SECOND),
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        ("0.1h", 360 * SECOND),
        ("1us", 1_000),
        ("1µs", 1_000),  # micro sign
        ("1μs", 1_000),  # Greek letter
        ("3ns", 3),
        ("1h1m1s1ms1us1ns", 3_661_001_001_001),
    ],
)
def test_durations_are_read_as_go_does(text, nanoseconds):
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["15", "-1", "1", "5"])
def test_duration_without_a_unit_is_refused(text):
    with pytest.raises(ValueError, match="needs a unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "s", "5 minutes", "1d", "-5s", "5s ", "1s2", ".5s", "1e3s", "9" * 20 + "h", "٣s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_duration_beyond_64_bits_is_refused():
    assert parse_duration("2562047h") < 2**63
    with pytest.raises(ValueError, match="longer than"):
        parse_duration("2562048h")


@given(st.integers(0, 2**63 - 1))
def test_shown_duration_reads_as_the_same(nanoseconds):
    assert parse_duration(show_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("268435456", 268_435_456),
        ("64MiB", 64 << 20),
        ("64mib", 64 << 20),
        ("1 GB", 10**9),
        ("10b", 10),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes_are_bytes_with_an_optional_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "64 M", "MiB", "64xyz", "0x10"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_size_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="larger than"):
        parse_size("9000000000TiB")


@pytest.mark.parametrize("text", ["", "1.0", "0x1", "one", "1_000", " 1", "--1"])
def test_what_is_no_integer_is_refused(text):
    with pytest.raises(ValueError, match="whole number"):
        parse_integer(text)


def test_integer_bounds_are_64_bits():
    assert parse_integer(str(-(2**63))) == -(2**63)
    with pytest.raises(ValueError, match="64 bits"):
        parse_integer(str(2**63))


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("1", True), ("on", True), ("no", False), ("F", False)],
)
def test_booleans_have_the_spellings_of_go_and_yaml(text, value):
    assert parse_boolean(text) is value


@pytest.mark.parametrize("text", ["", "2", "truth", "enabled"])
def test_what_is_no_boolean_is_refused(text):
    with pytest.raises(ValueError, match="true or false"):
        parse_boolean(text)


def test_text_with_a_line_break_or_too_long_is_refused():
    with pytest.raises(ValueError, match="control characters"):
        parse_text("a\nb")
    with pytest.raises(ValueError, match="longer than"):
        parse_text("a" * 4_097)


def test_text_that_is_no_unicode_is_refused_as_that():
    """Python hides bytes of names and arguments that are not UTF-8 in surrogates."""
    with pytest.raises(ValueError, match="is not UTF-8"):
        parse_text(b"/data/\xff".decode(errors="surrogateescape"))


def test_lists_are_split_at_commas_and_spaces():
    assert parse_list("a, b,c  d,") == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9292", Address("localhost", 9292)),
        (":9292", Address("0.0.0.0", 9292)),  # noqa: S104 - what the text means
        ("9292", Address("0.0.0.0", 9292)),  # noqa: S104 - what the text means
        ("[::1]:0", Address("::1", 0)),
        ("10.0.0.1:65535", Address("10.0.0.1", 65_535)),
    ],
)
def test_addresses_are_read_as_go_listens(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:65536", "host:-1", "a b:1", "h/x:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)


def test_bare_ipv6_address_is_refused_with_the_way_to_write_it():
    with pytest.raises(ValueError, match=r"\[::1\]:9292"):
        parse_address("::1:9292")


@given(st.sampled_from(["localhost", "::1", "fe80::1%eth0", "10.1.2.3"]), st.integers(0, 65_535))
def test_shown_address_reads_as_the_same(host, port):
    assert parse_address(show_address(Address(host, port))) == Address(host, port)
