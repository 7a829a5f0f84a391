"""Rules that name the principal of a client certificate, in order; the first that matches decides.

    URI:spiffe://example.com/ns/*/sa/* => $1.$2
    DNS:*.clients.example.com => $1
    DEFAULT

A rule has a field, a pattern and a name. Each `*` of the pattern stands for one character or more,
as few as possible, and `$1` to `$9` in the name for what they stood for. `DEFAULT` is the common
name, as in the original. The idea is Kafka's (`ssl.principal.mapping.rules`), but not its regular
expressions: a pattern is split at its stars and searched once from left to right, so that no
pattern or certificate takes more than one pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

from liftbridge_broker.access.names import fault_of
from liftbridge_broker.access.principals import Principal

RULES_MAX: Final = 32
PATTERN_LENGTH_MAX: Final = 256
STARS_MAX: Final = 9
VALUES_MAX: Final = 64
"""Values of a field that are looked at, for instance alternative names of one kind."""

VALUE_LENGTH_MAX: Final = 1_024

DEFAULT: Final = "DEFAULT"
_ARROW: Final = "=>"
_SUBJECT: Final = {
    "CN": "commonName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "UID": "userId",
}
_ALTERNATIVE: Final = {"DNS": "DNS", "URI": "URI", "EMAIL": "email"}
FIELDS: Final = (*_SUBJECT, *_ALTERNATIVE)


class Rule(NamedTuple):
    """One rule.

    Attributes:
        field: One of `FIELDS`.
        parts: Texts of the pattern between its stars.
        name: Name of the principal, with `$1` to `$9` for the stars.
    """

    field: str
    parts: tuple[str, ...]
    name: str


DEFAULT_RULE: Final = Rule("CN", ("", ""), "$1")


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """Read rules; none means `DEFAULT` alone.

    Raises:
        ValueError: A text is not a rule; the message continues a sentence.
    """
    if len(texts) > RULES_MAX:
        raise ValueError(f"has {len(texts)} rules, at most {RULES_MAX} are allowed")
    return tuple(map(_parse, texts)) or (DEFAULT_RULE,)


def _parse(text: str) -> Rule:
    if text.strip() == DEFAULT:
        return DEFAULT_RULE
    before, arrow, name = (part.strip() for part in text.rpartition(_ARROW))
    field, colon, pattern = (part.strip() for part in before.partition(":"))
    shown = f"is invalid: {text[:80]!r}"
    if not (arrow and colon and pattern and name):
        raise ValueError(f"{shown} is neither {DEFAULT} nor like CN:*.example.com => $1")
    if field not in FIELDS:
        raise ValueError(f"{shown} has the field {field[:20]!r}, allowed are {', '.join(FIELDS)}")
    parts = tuple(pattern.split("*"))
    if len(pattern) > PATTERN_LENGTH_MAX or len(name) > PATTERN_LENGTH_MAX:
        raise ValueError(f"{shown} has a part of more than {PATTERN_LENGTH_MAX} characters")
    if len(parts) - 1 > STARS_MAX:
        raise ValueError(f"{shown} has {len(parts) - 1} stars, at most {STARS_MAX} are allowed")
    if "" in parts[1:-1]:
        raise ValueError(f"{shown} has two stars in a row")
    for reference in name.split("$")[1:]:
        if not "1" <= reference[:1] <= str(len(parts) - 1):
            raise ValueError(f"{shown} refers to ${reference[:1]}, the pattern has no such star")
    return Rule(field, parts, name)


def principal_of(rules: Sequence[Rule], certificate: Mapping[str, object]) -> Principal | None:
    """Return the principal of a certificate; None if no rule names one.

    Args:
        rules: The rules, in order.
        certificate: In the form of `ssl.SSLSocket.getpeercert`.
    """
    for rule in rules:
        for value in _values(rule.field, certificate):
            stars = _match(rule.parts, value)
            if stars is not None:
                principal = Principal(_named(rule.name, stars))
                return None if fault_of(principal) else principal
    return None


def _values(field: str, certificate: Mapping[str, object]) -> Iterator[str]:
    """Yield values of a field, bounded; of a subject's the last first, which is most specific."""
    if field in _SUBJECT:
        parts = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
        pairs: list[tuple[str, object]] = [pair for part in reversed(parts) for pair in part]
        wanted = _SUBJECT[field]
    else:
        pairs = list(cast("tuple[tuple[str, object], ...]", certificate.get("subjectAltName", ())))
        wanted = _ALTERNATIVE[field]
    found = (value for kind, value in pairs if kind == wanted and isinstance(value, str))
    for _, value in zip(range(VALUES_MAX), found, strict=False):
        if len(value) <= VALUE_LENGTH_MAX:
            yield value


def _match(parts: tuple[str, ...], value: str) -> list[str] | None:
    """Return what each star stands for; None if the pattern does not match.

    The shortest text for each star in turn leaves the most for the later ones: it finds a match
    whenever there is one.
    """
    first, *rest = parts
    if not value.startswith(first):
        return None
    if not rest:
        return [] if value == first else None
    stars = []
    start = len(first)
    for part in rest[:-1]:
        found = value.find(part, start + 1)
        if found < 0:
            return None
        stars.append(value[start:found])
        start = found + len(part)
    last = rest[-1]
    end = len(value) - len(last)
    if end <= start or not value.endswith(last):
        return None
    return [*stars, value[start:end]]


def _named(name: str, stars: Sequence[str]) -> str:
    """Put the texts of the stars into a name."""
    first, *rest = name.split("$")
    return first + "".join(stars[int(part[0]) - 1] + part[1:] for part in rest)
