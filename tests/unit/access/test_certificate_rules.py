"""Rules that name the principal of a certificate."""

from fnmatch import translate
from random import Random
from re import fullmatch
from time import process_time

import pytest

from liftbridge_broker.access.certificate_rules import (
    PATTERN_LENGTH_MAX,
    RULES_MAX,
    VALUE_LENGTH_MAX,
    VALUES_MAX,
    parse_rules,
    principal_of,
)
from liftbridge_broker.access.principals import Principal
from liftbridge_testkit.fuzzing import Fuzz

CERTIFICATE = {
    "subject": (
        (("organizationName", "Example"),),
        (("organizationalUnitName", "Payments"),),
        (("commonName", "billing.example.com"),),
    ),
    "subjectAltName": (
        ("DNS", "billing.example.com"),
        ("DNS", "pay.clients.example.com"),
        ("URI", "spiffe://example.com/ns/prod/sa/billing"),
        ("email", "billing@example.com"),
        ("DirName", ((("commonName", "x"),),)),
    ),
    "notAfter": "Jan  1 00:00:00 2099 GMT",
}


def name_by(*rules: str, certificate: dict[str, object] | None = None) -> str | None:
    found = principal_of(parse_rules(rules), certificate or CERTIFICATE)
    return None if found is None else found.name


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ((), "billing.example.com"),
        (("DEFAULT",), "billing.example.com"),
        (("CN:*.example.com => $1",), "billing"),
        (("CN:other.example.com => other",), None),
        (("CN:other.example.com => other", "DEFAULT"), "billing.example.com"),
        (("DNS:*.clients.example.com=>client $1",), "client pay"),
        (("URI:spiffe://example.com/ns/*/sa/* => $2@$1",), "billing@prod"),
        (("EMAIL:*@example.com => $1",), "billing"),
        (("OU:* => $1", "O:* => $1"), "Payments"),
        (("O:Example => everyone",), "everyone"),
        (("UID:* => $1",), None),
        (("CN:billing* => $1",), ".example.com"),
        (("CN:billing.example.com* => x",), None),  # a star is one character at least
        (("CN:*billing.example.com => x",), None),
    ],
)
def test_first_rule_that_matches_names_the_principal(rules: tuple[str, ...], name: str) -> None:
    assert name_by(*rules) == name


def test_last_common_name_is_the_most_specific() -> None:
    subject = ((("commonName", "a"),), (("commonName", "b"),))
    assert name_by(certificate={"subject": subject}) == "b"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "\ud800"])
def test_name_that_is_no_name_is_nobody(name: str) -> None:
    assert name_by(certificate={"subject": ((("commonName", name),),)}) is None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("CN", "neither DEFAULT nor like"),
        ("CN:x", "neither DEFAULT nor like"),
        ("CN: => x", "neither DEFAULT nor like"),
        ("default", "neither DEFAULT nor like"),
        ("XX:x => y", "field 'XX', allowed are CN, O, OU, UID, DNS, URI, EMAIL"),
        ("CN:a => $1", r"refers to \$1"),
        ("CN:* => $2", r"refers to \$2"),
        ("CN:* => $", r"refers to \$"),
        ("CN:* => $0", r"refers to \$0"),
        ("CN:** => $1", "two stars in a row"),
        ("CN:" + "*a" * 10 + " => $1", "10 stars, at most 9"),
        ("CN:" + "a" * (PATTERN_LENGTH_MAX + 1) + " => x", "more than 256 characters"),
    ],
)
def test_rule_that_is_none_is_refused(rule: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_rules((rule,))


def test_number_of_rules_is_bounded() -> None:
    with pytest.raises(ValueError, match="has 33 rules, at most 32"):
        parse_rules(("DEFAULT",) * (RULES_MAX + 1))


def test_hostile_certificate_takes_little_time() -> None:
    rules = parse_rules(("DNS:" + "a*" * 9 + "b => $1",) * RULES_MAX)
    names = tuple(("DNS", "a" * VALUE_LENGTH_MAX) for _ in range(10 * VALUES_MAX))
    began = process_time()
    assert principal_of(rules, {"subjectAltName": names}) is None
    assert process_time() - began < 0.05


@pytest.mark.fuzz
def test_a_pattern_matches_whenever_a_regular_expression_does(fuzz: Fuzz) -> None:
    """The shortest text for each star must not miss a match that backtracking would find."""
    for random in fuzz.rounds(seed=1, count=3_000):
        pattern = _pattern(random)
        value = "".join(random.choice("ab") for _ in range(random.randint(1, 10)))
        expected = fullmatch(translate(pattern.replace("*", "?*")), value) is not None
        found = principal_of(
            parse_rules((f"CN:{pattern} => x",)), {"subject": ((("commonName", value),),)}
        )
        assert (found == Principal("x")) == expected, (pattern, value)


def _pattern(random: Random) -> str:
    parts = ["".join(random.choice("ab") for _ in range(random.randint(1, 2))) for _ in range(4)]
    ends = random.choice(("", "*")), random.choice(("", "*"))
    return ends[0] + "*".join(parts[: random.randint(1, 4)]) + ends[1]
