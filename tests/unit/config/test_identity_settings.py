"""Settings of identities: what listeners accept, and refusals of protections that are half set."""

import pytest

from liftbridge_broker.access.certificate_rules import DEFAULT_RULE, Rule
from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.options import IdentityOptions, JwtOptions
from liftbridge_broker.config.load import load
from liftbridge_broker.errors import ConfigError

JWT = {
    "auth.methods": "jwt",
    "auth.jwt.keys.file": "keys.json",
    "auth.jwt.issuer": "https://issuer.example",
    "auth.jwt.audience": "liftbridge",
}
CA = {"tls.cert": "c", "tls.key": "k", "tls.client.auth.ca": "a"}


def identity(flags: dict[str, str]) -> IdentityOptions:
    return load(flags=flags, environ={}, path=None).identity


def test_without_settings_everything_is_as_in_the_original() -> None:
    assert identity({}) == IdentityOptions()
    assert identity({}).proofs == (Proof.CERTIFICATE, Proof.ANONYMOUS)
    assert identity({}).rules == (DEFAULT_RULE,)


def test_settings_become_options(tmp_path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(
        "listeners: [outside=:9392]\n"
        "auth:\n"
        "  methods: [certificate, anonymous]\n"
        "  listeners: [outside=jwt+token]\n"
        "  certificate.rules:\n"
        "    - URI:spiffe://example.com/*/sa/* => $1.$2\n"
        "    - DEFAULT\n"
        "  jwt:\n"
        "    keys.file: /keys.json\n"
        "    issuer: https://issuer.example\n"
        "    audience: liftbridge\n"
        "    groups.claim: groups\n"
        "    clock.skew: 90s\n"
        "  plain.tokens: true\n"
    )
    assert load(flags={}, environ={}, path=str(path)).identity == IdentityOptions(
        by_listener=(("outside", (Proof.JWT, Proof.TOKEN)),),
        rules=(Rule("URI", ("spiffe://example.com/", "/sa/", ""), "$1.$2"), DEFAULT_RULE),
        jwt=JwtOptions(
            keys_file="/keys.json",
            issuer="https://issuer.example",
            audience="liftbridge",
            groups_claim="groups",
            skew_seconds=90,
        ),
        allows_plain_tokens=True,
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"auth.methods": "jtw"}, "auth.methods has 'jtw', allowed are anonymous, certificate"),
        ({"auth.methods": "certificate"}, "which needs tls.client.auth.ca"),
        ({"auth.methods": "jwt"}, "auth.methods has jwt, which needs auth.jwt.keys.file"),
        (JWT | {"auth.jwt.audience": ""}, "which needs auth.jwt.audience"),
        (JWT | {"auth.methods": "token"}, "auth.jwt.keys.file needs jwt in auth.methods"),
        ({"auth.listeners": "outside=jwt"}, "is not a name of listeners"),
        ({"listeners": "a=:1", "auth.listeners": "a"}, "is not a name of listeners"),
        ({"listeners": "a=:1", "auth.listeners": "a="}, "auth.listeners has '', allowed"),
        ({"listeners": "a=:1", "auth.listeners": "a=token,a=jwt"}, "lists a twice"),
        (
            {"auth.certificate.rules": "CN:x"},
            "auth.certificate.rules is invalid: 'CN:x' is neither",
        ),
        ({"auth.jwt.clock.skew": "6m"}, "is more than 5m"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        identity(flags)


def test_certificates_alone_are_enough_with_authorities() -> None:
    assert identity(CA | {"auth.methods": "certificate"}).proofs == (Proof.CERTIFICATE,)
