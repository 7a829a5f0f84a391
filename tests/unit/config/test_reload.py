"""What a running broker takes over, and what it reports as waiting for a restart."""

import pytest

from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.config.reload import Change, ReloadDiff, reloadable_diff, reloaded
from liftbridge_broker.config.settings import Kind, Setting, Status
from liftbridge_broker.config.table import SETTINGS

CLIENT_TLS = {"tls.cert": "c", "tls.key": "k", "tls.client.auth.ca": "a"}
NAMED = CLIENT_TLS | {"tls.client.auth.enabled": "true"}
ADMIN_TLS = {"admin.tls.cert": "c", "admin.tls.key": "k", "admin.tls.ca": "a"}
JWT = {
    "auth.methods": "jwt,token",
    "auth.jwt.keys.file": "k",
    "auth.jwt.issuer": "i",
    "auth.jwt.audience": "a",
}
# What is given beside a setting so that it is accepted, and a first value where "" is another case.
BESIDE = {
    "encryption.key": {"encryption.key": "one"},
    "streams.encryption": {"encryption.keys.file": "keys"},
    "tls.key": {"tls.cert": "c", "tls.key": "k"},
    "tls.cert": {"tls.cert": "c", "tls.key": "k"},
    "tls.client.auth.enabled": CLIENT_TLS,
    "tls.client.authz.enabled": NAMED
    | {"tls.client.authz.model": "m", "tls.client.authz.policy": "p"},
    "access.enabled": NAMED,
    "tls.client.auth.ca": {"tls.cert": "c", "tls.key": "k"},
    "nats.tls.key": {"nats.tls.cert": "c", "nats.tls.key": "k"},
    "nats.tls.cert": {"nats.tls.cert": "c", "nats.tls.key": "k"},
    **dict.fromkeys(ADMIN_TLS, ADMIN_TLS),
    **dict.fromkeys((key for key in SETTINGS if key.startswith("auth.jwt.")), JWT),
    "auth.methods": JWT,
    "auth.listeners": {"listeners": "a=:1"},
    "listen.tls": {"tls.cert": "c", "tls.key": "k", "listen.tls": "false"},
    "listeners.plain": {"tls.cert": "c", "tls.key": "k", "listeners": "a=:1,b=:2"},
    "listeners.host": {"listeners": "a=:1"},
    "listeners.advertised": {"listeners": "a=:1"},
    "nats.password": {"nats.user": "u", "nats.password": "p"},
    "nats.password.file": {"nats.user": "u"},
    "nats.token": {"nats.token": "t"},
    "clustering.raft.bootstrap.peers": {"clustering.server.id": "a"},
    "clustering.raft.heartbeat.interval": {"clustering.raft.election.timeout": "10m"},
    "clustering.broker.heartbeat.interval": {"clustering.broker.session.timeout": "10m"},
    "clustering.replica.max.idle.wait": {"clustering.replica.max.leader.timeout": "60m"},
}
OTHER = {
    Kind.DURATION: "77s",
    Kind.SIZE: "7000000",
    Kind.INTEGER: "77",
    Kind.ADDRESS: "127.0.0.1:77",
    Kind.TEXT: "other",
    Kind.LIST: "other",
    Kind.BOOLEAN: "true",
}
OTHER_OF = {
    "listeners": "a=:1",
    "listeners.plain": "b",
    "listeners.advertised": "a=:9",
    "auth.methods": "jwt",
    "auth.listeners": "a=token",
    "auth.certificate.rules": "CN:x=>y",
}
WORKING = {key: s for key, s in SETTINGS.items() if s.status is Status.WORKS}


def pair(setting: Setting) -> tuple[BrokerOptions, BrokerOptions]:
    """Options that differ in this setting only."""
    beside = BESIDE.get(setting.key, {})
    other = OTHER.get(setting.kind) or next(c for c in setting.choices if c != setting.default)
    other = OTHER_OF.get(setting.key, other)
    if setting.key == "grpc.max.header.bytes":
        other = "32KiB"
    if setting.key == "clustering.raft.max.quorum.size":
        other = "7"
    old = load(flags=beside, environ={}, path=None)
    return old, load(flags=beside | {setting.key: other}, environ={}, path=None)


@pytest.mark.parametrize("setting", WORKING.values(), ids=WORKING)
def test_each_setting_is_applied_exactly_when_the_table_says_so(setting):
    old, new = pair(setting)
    assert old != new
    difference = reloadable_diff(old, new)
    changed = difference.applied if setting.is_reloadable else difference.restart_needed
    assert setting.key in [change.key for change in changed]
    assert (reloaded(old, new) != old) is setting.is_reloadable


@pytest.mark.parametrize("setting", WORKING.values(), ids=WORKING)
def test_fingerprint_changes_exactly_with_what_needs_a_restart(setting):
    old, new = pair(setting)
    is_static = not setting.is_reloadable and not setting.is_secret
    assert (old.fingerprint() != new.fingerprint()) is is_static


def test_equal_options_have_no_difference():
    old = load(flags={}, environ={}, path=None)
    new = load(flags={"port": "9292"}, environ={}, path=None)
    assert reloadable_diff(old, new) == ReloadDiff((), ())
    assert old.fingerprint() == new.fingerprint()


def test_reload_takes_the_new_and_keeps_the_static_values():
    old = load(flags={}, environ={}, path=None)
    new = load(flags={"logging.level": "debug", "port": "1"}, environ={}, path=None)
    merged = reloaded(old, new)
    assert merged.logging.level == "debug"
    assert merged.listen == old.listen
    texts = {s.key: s.text for s in merged.effective}
    assert (texts["logging.level"], texts["port"]) == ("debug", "9292")
    assert merged.fingerprint() == old.fingerprint()


def test_changed_secret_is_reported_masked():
    flags = {"nats.user": "u", "nats.password": "one", "nats.servers": "nats://a:b@h:1"}
    old = load(flags=flags, environ={}, path=None)
    new = load(
        flags=flags | {"nats.password": "two", "nats.servers": "nats://a:c@h:1"},
        environ={},
        path=None,
    )
    assert reloadable_diff(old, new).restart_needed == (
        Change("nats.servers", "nats://***@h:1", "nats://***@h:1"),
        Change("nats.password", "***", "***"),
    )


def test_secret_that_appears_is_reported_once():
    old = load(flags={}, environ={}, path=None)
    new = load(flags={"nats.token": "t"}, environ={}, path=None)
    assert reloadable_diff(old, new).restart_needed == (Change("nats.token", "", "***"),)


def test_settings_without_effect_need_no_restart():
    old = load(flags={}, environ={}, path=None)
    new = load(flags={"batch.max.messages": "5"}, environ={}, path=None)
    assert reloadable_diff(old, new) == ReloadDiff((), ())
    assert old.fingerprint() == new.fingerprint()
