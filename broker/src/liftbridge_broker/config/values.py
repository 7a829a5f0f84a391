"""Single values of settings: from text, and back to canonical text.

A text comes from the file, an environment variable or a flag, so one parser serves all three.
Durations have Go's syntax (`time.ParseDuration`), sizes are bytes with an optional unit. Internally
all of these are integers; none passes through a float.
"""

import re
from dataclasses import dataclass
from typing import Final

INTEGER_MAX: Final = 2**63 - 1
TEXT_LENGTH_MAX: Final = 4_096

_DURATION_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu; Go takes both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART: Final = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,18}))?(ns|us|µs|μs|ms|s|m|h)")
_SHOWN_UNITS: Final = ("h", "m", "s", "ms", "us", "ns")

_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE: Final = re.compile(r"([0-9]{1,19}) ?([a-zA-Z]{0,3})")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")

_TRUE: Final = frozenset({"1", "t", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "f", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listener."""

    host: str
    port: int


def parse_duration(text: str) -> int:
    """Read a duration such as `15s`, `1h30m`, `168h`, `250ms`, `1.5s` or `0`.

    Returns:
        Nanoseconds, 0 to 2**63 - 1.

    Raises:
        ValueError: The text is not a duration. A bare number other than 0 is refused: the original
            reads it as nanoseconds, which no user means.
    """
    if text == "0":
        return 0
    if _INTEGER.fullmatch(text):
        raise ValueError("needs a unit, such as 15s, 5m or 168h")
    total = 0
    position = 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None:
            raise ValueError("is not a duration such as 250ms, 15s, 1h30m or 168h")
        whole, fraction, unit = part.groups()
        unit_ns = _DURATION_UNITS_NS[unit]
        total += int(whole) * unit_ns
        if fraction:
            total += int(fraction) * unit_ns // 10 ** len(fraction)
        position = part.end()
    if not text:
        raise ValueError("is not a duration such as 250ms, 15s, 1h30m or 168h")
    if total > INTEGER_MAX:
        raise ValueError("is longer than 2562047h")
    return total


def show_duration(nanoseconds: int) -> str:
    """Shortest text that `parse_duration` reads as the same number."""
    if nanoseconds == 0:
        return "0"
    parts: list[str] = []
    rest = nanoseconds
    for unit in _SHOWN_UNITS:
        count, rest = divmod(rest, _DURATION_UNITS_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(text: str) -> int:
    """Read a size: bytes as a number, or with a unit (`64MiB`, `1 GB`).

    Returns:
        Bytes, 0 to 2**63 - 1.

    Raises:
        ValueError: The text is not a size.
    """
    match = _SIZE.fullmatch(text)
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError("is not a size in bytes such as 1048576 or 64MiB")
    size = int(match.group(1)) * unit
    if size > INTEGER_MAX:
        raise ValueError("is larger than 9223372036854775807 bytes")
    return size


def parse_integer(text: str) -> int:
    """Read a decimal integer of at most 64 bits.

    Raises:
        ValueError: The text is not an integer, or exceeds 64 bits.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError("is not a whole number")
    number = int(text)
    if not -INTEGER_MAX - 1 <= number <= INTEGER_MAX:
        raise ValueError("does not fit into 64 bits")
    return number


def parse_boolean(text: str) -> bool:
    """Read `true` or `false`, also `yes`/`no`, `on`/`off`, `t`/`f` and `1`/`0`, in any case.

    Raises:
        ValueError: The text is none of them.
    """
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("is not true or false")


def parse_text(text: str) -> str:
    """Read plain text of one line.

    Raises:
        ValueError: The text is too long, not UTF-8, or has control characters.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"is longer than {TEXT_LENGTH_MAX} characters")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not UTF-8")
    if not text.isprintable():
        raise ValueError("contains control characters")
    return text


def parse_list(text: str) -> tuple[str, ...]:
    """Read a list written as one text: items between commas or spaces.

    Raises:
        ValueError: As `parse_text`.
    """
    return tuple(parse_text(text).replace(",", " ").split())


def parse_address(text: str) -> Address:
    """Read `host:port`, `[ipv6]:port`, `:port` or `port`; without a host, every address.

    Raises:
        ValueError: The text is not an address.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon:
        host, port_text = "", text
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("needs brackets around an IPv6 address, as in [::1]:9292")
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or int(port_text) > 65_535:
        raise ValueError("is not an address such as 0.0.0.0:9292")
    if not re.fullmatch(r"[0-9A-Za-z._:%-]{0,255}", host):
        raise ValueError("is not an address such as 0.0.0.0:9292")
    return Address(host or "0.0.0.0", int(port_text))  # noqa: S104 - as Go's net.Listen(":9292")


def show_address(address: Address) -> str:
    """Text that `parse_address` reads as the same address."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
