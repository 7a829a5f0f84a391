"""Builds the options of identities: what listeners accept, and what proves it."""

from collections.abc import Iterable
from typing import Final

from liftbridge_broker.access.certificate_rules import parse_rules
from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.options import IdentityOptions, JwtOptions
from liftbridge_broker.config.given import Values
from liftbridge_broker.config.options import ListenerOptions
from liftbridge_broker.model.units import SECOND_NS

_JWT: Final = ("auth.jwt.keys.file", "auth.jwt.issuer", "auth.jwt.audience")


def identity_options(values: Values, listeners: Iterable[ListenerOptions]) -> IdentityOptions:
    """Build the options; a protection that is only half configured is refused.

    Raises:
        ConfigError: A text breaks a rule, or a setting lacks another one.
    """
    proofs = _proofs(values, "auth.methods", values.items("auth.methods"))
    by_listener = _by_listener(values, {one.name for one in listeners})
    try:
        rules = parse_rules(values.items("auth.certificate.rules"))
    except ValueError as error:
        raise values.refusal("auth.certificate.rules", str(error)) from error
    accepted = (proofs, *by_listener.values())
    if (Proof.CERTIFICATE,) in accepted and not values.is_given("tls.client.auth.ca"):
        raise values.refusal("auth.methods", "has only certificate, which needs tls.client.auth.ca")
    has_jwt = any(Proof.JWT in one for one in accepted)
    return IdentityOptions(
        proofs=proofs,
        by_listener=tuple(by_listener.items()),
        rules=rules,
        jwt=_jwt(values) if _needs_jwt(values, has_jwt=has_jwt) else None,
        allows_plain_tokens=values.flag("auth.plain.tokens"),
    )


def _proofs(values: Values, key: str, names: Iterable[str]) -> tuple[Proof, ...]:
    known = {str(proof): proof for proof in Proof}
    proofs = []
    for name in names:
        if name not in known:
            raise values.refusal(key, f"has {name[:40]!r}, allowed are {', '.join(known)}")
        proofs.append(known[name])
    if not proofs:
        raise values.refusal(key, f"is empty, allowed are {', '.join(known)}")
    return tuple(dict.fromkeys(proofs))


def _by_listener(values: Values, known: set[str]) -> dict[str, tuple[Proof, ...]]:
    found: dict[str, tuple[Proof, ...]] = {}
    for item in values.items("auth.listeners"):
        name, separator, methods = item.partition("=")
        if not separator or name not in known:
            raise values.refusal(
                "auth.listeners",
                f"has {item[:60]!r}, which is not a name of listeners and methods such as "
                "outside=jwt+token",
            )
        if name in found:
            raise values.refusal("auth.listeners", f"lists {name} twice")
        found[name] = _proofs(values, "auth.listeners", methods.split("+"))
    return found


def _needs_jwt(values: Values, *, has_jwt: bool) -> bool:
    """Refuse a part of the settings of JSON web tokens without the others."""
    given = [key for key in _JWT if values.is_given(key)]
    lacking = [key for key in _JWT if not values.is_given(key)]
    if has_jwt and lacking:
        raise values.refusal("auth.methods", f"has jwt, which needs {lacking[0]}")
    if given and not has_jwt:
        raise values.refusal(given[0], "needs jwt in auth.methods or auth.listeners")
    return has_jwt


def _jwt(values: Values) -> JwtOptions:
    return JwtOptions(
        keys_file=values.text("auth.jwt.keys.file"),
        issuer=values.text("auth.jwt.issuer"),
        audience=values.text("auth.jwt.audience"),
        principal_claim=values.text("auth.jwt.principal.claim") or "sub",
        groups_claim=values.text("auth.jwt.groups.claim"),
        skew_seconds=values.number("auth.jwt.clock.skew") // SECOND_NS,
    )
