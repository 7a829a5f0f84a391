"""Configuration of the brokers: one file for all of them.

Settings that differ between brokers (id, host, zone) come from environment variables, which
override the file. Nothing here depends on the number of brokers, so that scaling restarts none.
"""

import json
from typing import Final

from liftbridge_operator.cluster.rendering import addresses
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Refusal
from liftbridge_operator.model import names
from liftbridge_operator.model.access import Access, Encryption, JwtIssuer
from liftbridge_operator.model.broker_config import broker_settings
from liftbridge_operator.model.catalogue.settings import load_settings
from liftbridge_operator.model.nats import Nats
from liftbridge_operator.model.network import ClientAuth, Listener, Tls
from liftbridge_operator.model.units import SECOND_NS
from liftbridge_operator.model.values import duration_ns

SUBJECT_PREFIX: Final = "liftbridge"
SEEDS: Final = 3
"""Number of brokers whose NATS servers are seeds; gossip announces the rest."""

VOTERS: Final = 3
"""Maximum number of voters that brokers promote by themselves; the operator promotes the fourth and
fifth, from five brokers on, so that four brokers have three voters and nothing here depends on the
number of brokers."""

RULE_STARS_MAX: Final = 9
"""Stars in a rule for certificates that brokers accept."""

STOP_SECONDS: Final = 7
"""Time that a stop takes besides hand-over and draining: the preStop delay, and closing."""

DRAIN_SECONDS: Final = 10
"""Default of the brokers' `shutdown.timeout`."""


def config_text(cluster: Cluster, inputs: Inputs) -> str:
    """Render the configuration file: flat, sorted, each value as JSON, which is valid YAML."""
    settings: dict[str, str | list[str]] = {
        **broker_settings(cluster.spec.config),
        **_owned(cluster, inputs),
        **_lists(cluster.spec.access, names.operator_leaf(cluster.name)),
    }
    return "".join(f"{key}: {json.dumps(settings[key])}\n" for key in sorted(settings))


def namespace_of(cluster: Cluster, inputs: Inputs) -> str:
    """Return the prefix of subjects between brokers; the id separates clusters on one NATS."""
    return f"{cluster.spec.nats.subject_prefix or SUBJECT_PREFIX}-{inputs.cluster_id}"


def _owned(cluster: Cluster, inputs: Inputs) -> dict[str, str]:
    """Return settings that derive from fields other than `config`."""
    spec = cluster.spec
    return {
        "data.dir": names.DATA_DIRECTORY,
        "logging.format": "json",
        "shutdown.handover.timeout": spec.disruption.drain_timeout,
        "clustering.namespace": namespace_of(cluster, inputs),
        "clustering.raft.bootstrap.wait": "true",
        "clustering.raft.max.quorum.size": str(VOTERS),
        "clustering.secret.file": f"{names.PEER_KEYS_DIRECTORY}/{names.PEER_KEYS_KEY}",
        "metrics.listen": f"0.0.0.0:{names.PORTS['metrics']}",
        "admin.listen": f"0.0.0.0:{names.PORTS['admin']}",
        "admin.tls.cert": f"{names.INTERNAL_DIRECTORY}/{names.CERT_KEY}",
        "admin.tls.key": f"{names.INTERNAL_DIRECTORY}/{names.KEY_KEY}",
        "admin.tls.ca": f"{names.INTERNAL_DIRECTORY}/{names.CA_KEY}",
        # Brokers check the calls of the operator too, also while rules of former times apply.
        "admin.super.users": names.operator_leaf(cluster.name),
        **_listeners(cluster),
        **_nats(cluster),
        **_access(cluster),
        **_encryption(cluster.spec.encryption),
    }


def _listeners(cluster: Cluster) -> dict[str, str]:
    main, others = addresses.main_listener(cluster), addresses.further(cluster)
    port = addresses.main_port(cluster)
    bound = f"127.0.0.1:{port}" if main is None else f"0.0.0.0:{port}"
    made = {"listen": bound, "port": str(port)}
    if others:
        made["listeners"] = ",".join(f"{other.name}=0.0.0.0:{other.port}" for other in others)
    if not any(listener.tls for listener in cluster.spec.listeners):
        return made
    if main is None or not main.tls:
        made["listen.tls"] = "false"
    plain = [other.name for other in others if not other.tls]
    if plain:
        made["listeners.plain"] = ",".join(plain)
    return made | _tls(cluster.spec.tls)


def _tls(tls: Tls) -> dict[str, str]:
    made = {
        "tls.cert": f"{names.TLS_DIRECTORY}/{names.CERT_KEY}",
        "tls.key": f"{names.TLS_DIRECTORY}/{names.KEY_KEY}",
        "tls.min.version": tls.min_version.value,
    }
    if tls.client_auth is ClientAuth.REQUIRED:
        made["tls.client.auth.enabled"] = "true"
    if tls.client_auth is not ClientAuth.NONE:
        made["tls.client.auth.ca"] = (
            f"{names.CLIENT_CA_DIRECTORY}/{tls.client_ca.key}"
            if tls.client_ca is not None
            else f"{names.TLS_DIRECTORY}/{names.CA_KEY}"
        )
    return made


def _access(cluster: Cluster) -> dict[str, str]:
    access = cluster.spec.access
    if access is None:
        return {}
    accepted = {
        "certificate": cluster.spec.tls.client_auth is not ClientAuth.NONE,
        "jwt": access.jwt is not None,
        "token": access.tokens,
        "anonymous": access.anonymous,
    }
    made = {"auth.methods": ",".join(name for name, is_on in accepted.items() if is_on)}
    if access.enabled:
        made["access.enabled"] = "true"
    return made if access.jwt is None else made | _jwt(access.jwt)


def _lists(access: Access | None, own: str) -> dict[str, list[str]]:
    """Return settings whose items may hold blanks, which separate items of a text.

    Args:
        access: Field of the specification.
        own: Common name of the operator's certificate.
    """
    made: dict[str, list[str]] = {}
    if access is not None and access.enabled:
        made["access.super.users"] = list(access.super_users)
    if access is not None and access.certificate_rules:
        # The rules apply on the port for operators too, where the operator needs its name.
        made["auth.certificate.rules"] = [f"CN:{own} => {own}", *access.certificate_rules]
    return made


def _jwt(jwt: JwtIssuer) -> dict[str, str]:
    keys = jwt.keys.secret_key_ref or jwt.keys.config_map_key_ref
    assert keys is not None
    made = {
        "auth.jwt.keys.file": f"{names.JWT_KEYS_DIRECTORY}/{keys.key}",
        "auth.jwt.issuer": jwt.issuer,
        "auth.jwt.audience": jwt.audience,
        "auth.jwt.principal.claim": jwt.principal_claim,
        "auth.jwt.groups.claim": jwt.groups_claim,
        "auth.jwt.clock.skew": jwt.clock_skew,
    }
    return {key: value for key, value in made.items() if value is not None}


def _encryption(encryption: Encryption | None) -> dict[str, str]:
    if encryption is None:
        return {}
    made = {"streams.encryption": "true"} if encryption.new_streams else {}
    if encryption.master_keys is not None:
        made["encryption.keys.file"] = f"{names.MASTER_KEYS_DIRECTORY}/{encryption.master_keys.key}"
    if encryption.command is not None:
        made["encryption.keys.command"] = encryption.command
    return made


def _nats(cluster: Cluster) -> dict[str, str]:
    nats = cluster.spec.nats
    if nats.embedded is not None:
        return {
            "nats.servers": ",".join(_embedded_servers(cluster)),
            "nats.tls.ca": f"{names.INTERNAL_DIRECTORY}/{names.CA_KEY}",
            "nats.user": "broker",
            "nats.password.file": f"{names.NATS_AUTH_DIRECTORY}/broker-password",
        }
    return {"nats.servers": ",".join(nats.servers or ()), **_nats_tls(nats), **_nats_auth(nats)}


def _embedded_servers(cluster: Cluster) -> list[str]:
    """Return the server of the same pod, then the seeds as a fallback while it is down."""
    hosts = ["127.0.0.1"]
    for ordinal in range(SEEDS):
        name = names.broker(cluster.name, ordinal)
        hosts.append(names.host(name, cluster.name, cluster.namespace))
    return [f"tls://{host}:{names.CLIENTS_PORT}" for host in hosts]


def _nats_tls(nats: Nats) -> dict[str, str]:
    made: dict[str, str] = {}
    if nats.tls is not None and nats.tls.ca is not None:
        made["nats.tls.ca"] = f"{names.NATS_CA_DIRECTORY}/{nats.tls.ca.key}"
    if nats.tls is not None and nats.tls.client_secret_name is not None:
        made["nats.tls.cert"] = f"{names.NATS_CLIENT_DIRECTORY}/{names.CERT_KEY}"
        made["nats.tls.key"] = f"{names.NATS_CLIENT_DIRECTORY}/{names.KEY_KEY}"
    return made


def _nats_auth(nats: Nats) -> dict[str, str]:
    auth = nats.auth
    if auth is None:
        return {}
    if (
        auth.user is not None
    ):  # an environment variable holds the user name: brokers have no file setting for it
        return {"nats.password.file": f"{names.NATS_AUTH_DIRECTORY}/{auth.user.password_key}"}
    if auth.token is not None:
        return {"nats.token.file": f"{names.NATS_AUTH_DIRECTORY}/{auth.token.key}"}
    if auth.nkey is not None:
        return {"nats.nkey.seed.file": f"{names.NATS_AUTH_DIRECTORY}/{auth.nkey.key}"}
    assert auth.credentials is not None
    return {"nats.credentials.file": f"{names.NATS_AUTH_DIRECTORY}/{auth.credentials.key}"}


def refusals(cluster: Cluster) -> tuple[Refusal, ...]:
    """Return fields of the specification that brokers of this version do not support."""
    spec = cluster.spec
    found: list[Refusal] = []
    if spec.topology.zone_label not in names.ZONES:
        found.append(
            Refusal(
                "topology.zoneLabel",
                f"pods know {' and '.join(names.ZONES)} of their node, and no other label",
            )
        )
    found += _service_clashes(cluster.name, spec.listeners)
    found += _hurried(cluster)
    if spec.access is not None:
        found += _unreadable_rules(spec.access.certificate_rules)
    given = broker_settings(spec.config) | _access(cluster) | _encryption(spec.encryption)
    for key, reason in load_settings().against(spec.version, given):
        place = "config.extra" if key in spec.config.extra else _place(key)
        found.append(Refusal(place, f"{key}: {reason}"))
    return tuple(found)


def _place(key: str) -> str:
    """Return the field, besides `config.extra`, that determines a setting."""
    sections = {"access": "access", "auth": "access", "encryption": "encryption"}
    return sections.get(key.partition(".")[0], "config")


def _unreadable_rules(rules: tuple[str, ...]) -> list[Refusal]:
    """Refuse rules for certificates whose stars brokers refuse; the schema checks their form."""
    faults = ((rule, fault_of_rule(rule)) for rule in rules)
    return [
        Refusal("access.certificateRules", f"{rule!r} {fault}") for rule, fault in faults if fault
    ]


def fault_of_rule(rule: str) -> str:
    """Return what is wrong with the stars of a rule, continuing a sentence; empty if nothing is."""
    before, _, name = rule.partition(" => ")
    pattern = before.partition(":")[2]
    stars = pattern.count("*")
    if stars > RULE_STARS_MAX:
        return f"has {stars} stars, at most {RULE_STARS_MAX} are allowed"
    if "**" in pattern:
        return "has two stars in a row"
    for reference in name.split("$")[1:]:
        if not "1" <= reference[:1] <= str(stars):
            return f"refers to ${reference[:1]}, the pattern has no such star"
    return ""


def _hurried(cluster: Cluster) -> list[Refusal]:
    """Refuse a grace period after which pods would be killed before their brokers stop."""
    spec = cluster.spec
    drain_ns = duration_ns(spec.config.shutdown_timeout or f"{DRAIN_SECONDS}s")
    needed_ns = duration_ns(spec.disruption.drain_timeout) + drain_ns
    grace = spec.pod_template.termination_grace_period_seconds
    if needed_ns <= (grace - STOP_SECONDS) * SECOND_NS:
        return []
    message = (
        f"with disruption.drainTimeout and config.shutdownTimeout ({DRAIN_SECONDS}s by default) "
        f"brokers need {needed_ns / SECOND_NS + STOP_SECONDS:g} s to stop"
    )
    return [Refusal("podTemplate.terminationGracePeriodSeconds", message)]


def _service_clashes(cluster: str, listeners: tuple[Listener, ...]) -> list[Refusal]:
    """Refuse two Services of one name: listener `a-0` clashes with broker 0 of listener `a`."""
    taken = {names.headless(cluster): "the Service of the brokers"}
    found = []
    for listener in listeners:
        name = names.listener(cluster, listener.name)
        if name in taken:
            found.append(Refusal("listeners", f"listener {listener.name} would have {taken[name]}"))
    stems = {listener.name for listener in listeners}
    for listener in listeners:
        stem, dash, number = listener.name.rpartition("-")
        if dash and number.isdigit() and stem in stems:
            found.append(
                Refusal("listeners", f"{listener.name} is the Service of broker {number} of {stem}")
            )
    return found
