"""Brokers get what `spec.access` and `spec.encryption` say, and the operator stays allowed."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftbridge_broker.access.certificate_rules import parse_rules, principal_of
from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_operator.cluster.rendering.settings import config_text, fault_of_rule, refusals
from liftbridge_operator.model import names
from liftbridge_operator.model.access import _RULE, Access, Encryption
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.network import Tls
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec
from liftbridge_testkit.resources.rules import evaluate

BASE: Final = load_spec(next(path for path in PATHS if path.stem == "embedded"))
JWT: Final = {
    "issuer": "https://a.example",
    "audience": "liftbridge",
    "keys": {"secretKeyRef": {"name": "keys", "key": "keys.pem"}},
}


def spec_of(**changes: Any) -> ClusterSpec:
    return ClusterSpec.model_validate(BASE.model_dump(mode="json") | changes)


def options_of(spec: ClusterSpec, folder: Path) -> BrokerOptions:
    """Return what a broker makes of the configuration of a cluster."""
    file = folder / "broker.yaml"
    file.write_text(config_text(cluster_of(spec), inputs_for(spec)), encoding="utf-8")
    auth = spec.nats.auth
    environ = {"LIFTBRIDGE_NATS_USER": "a"} if auth is not None and auth.user is not None else {}
    return load(flags={}, environ=environ, path=str(file))


def is_admitted(spec: ClusterSpec) -> bool:
    """Return whether the rules about access, TLS and encryption accept a specification."""
    value = spec.manifest()
    about = [(rule, value) for rule in ClusterSpec.rules if rule.name.startswith("access")]
    about += [(rule, value["tls"]) for rule in Tls.rules]
    about += [(rule, value["access"]) for rule in Access.rules]
    if "encryption" in value:
        about += [(rule, value["encryption"]) for rule in Encryption.rules]
    return all(evaluate(rule.rule, {"self": part}) for rule, part in about)


def combinations() -> Iterator[ClusterSpec]:
    """Yield specifications with every combination of the fields about who clients are."""
    for client_auth, flags in product(
        ("None", "Optional", "Required"), product((False, True), repeat=7)
    ):
        is_enabled, has_users, is_anonymous, has_rules, has_jwt, has_tokens, has_tls = flags
        access = {
            "enabled": is_enabled,
            "superUsers": ["ops"] if has_users else [],
            "anonymous": is_anonymous,
            "certificateRules": ["O:Shop * => $1"] if has_rules else [],
            "jwt": JWT if has_jwt else None,
            "tokens": has_tokens,
        }
        yield spec_of(
            access=access,
            tls={"mode": "Generated", "clientAuth": client_auth},
            listeners=[{"name": "internal", "tls": has_tls}],
        )


def test_brokers_accept_whatever_admission_accepts_of_access(tmp_path: Path) -> None:
    admitted = [spec for spec in combinations() if is_admitted(spec)]
    for spec in admitted:
        assert spec.access is not None
        options = options_of(spec, tmp_path)
        assert options.access.is_enabled == spec.access.enabled
        assert not spec.access.enabled or options.access.super_users == ("ops",)
        assert (options.identity.jwt is not None) == (spec.access.jwt is not None)
        assert ("anonymous" in options.identity.proofs) == spec.access.anonymous
    assert len(admitted) > 50


@pytest.mark.parametrize("path", PATHS, ids=lambda one: one.stem)
def test_the_operator_has_every_right_on_its_port_and_a_name_that_no_rule_takes(
    path: Path, tmp_path: Path
) -> None:
    spec = load_spec(path)
    options = options_of(spec, tmp_path)
    own = names.operator_leaf(cluster_of(spec).name)
    found = principal_of(options.identity.rules, {"subject": ((("commonName", own),),)})
    assert found is not None
    assert found.name == own
    assert options.access.admin_super_users == (own,)
    assert own not in options.access.super_users


def test_the_operator_keeps_its_name_whatever_the_first_rule_is(tmp_path: Path) -> None:
    access = {"certificateRules": ["CN:* => everyone"]}
    options = options_of(spec_of(access=access), tmp_path)
    own = names.operator_leaf("orders")
    found = [
        principal_of(options.identity.rules, {"subject": ((("commonName", name),),)})
        for name in (own, "orders-operators")
    ]
    assert [one and one.name for one in found] == [own, "everyone"]


def test_master_keys_are_read_from_a_file_and_a_program(tmp_path: Path) -> None:
    encryption = {
        "masterKeys": {"name": "keys", "key": "m"},
        "command": "/keys",
        "newStreams": True,
    }
    options = options_of(spec_of(encryption=encryption), tmp_path)
    assert options.encryption.file == f"{names.MASTER_KEYS_DIRECTORY}/m"
    assert options.encryption.command == "/keys"
    assert options.streams.encryption


@given(st.from_regex(_RULE.replace("$", r"\Z"), fullmatch=True))
@example("CN:*.*.* => $1.$2")
@example("CN:a** => $1")
@example("CN:a => $1")
@example("CN:* => $2")
@example("CN:********** => $1")
@example("CN:*-*-*-*-*-*-*-*-*-* => $1")
@example("CN:* => $")
@example("URI:a => b$")
@example("DEFAULT")
def test_rules_for_certificates_are_refused_as_brokers_refuse_them(rule: str) -> None:
    try:
        parse_rules([rule])
        is_accepted = True
    except ValueError:
        is_accepted = False
    assert (fault_of_rule(rule) == "") == is_accepted


def test_a_rule_that_brokers_refuse_is_named_before_any_gets_it() -> None:
    spec = spec_of(access={"certificateRules": ["CN:a* => $2"]})
    (refusal,) = refusals(cluster_of(spec))
    assert str(refusal) == (
        "spec.access.certificateRules: 'CN:a* => $2' refers to $2, the pattern has no such star"
    )
