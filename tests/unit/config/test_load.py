"""Flags, environment, file and defaults become one checked value."""

import pytest

from liftbridge_broker.config.load import PROBLEMS_SHOWN_MAX, load
from liftbridge_broker.config.options import (
    BootstrapOptions,
    BrokerOptions,
    ClusteringOptions,
    ListenOptions,
    LogFormat,
    LogLevel,
    NatsOptions,
    Origin,
    ReplicationOptions,
)
from liftbridge_broker.config.settings import Kind
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, UncleanMode
from liftbridge_broker.model.units import MINUTE_NS, SECOND_NS
from liftbridge_broker.server.wiring import node_options
from liftbridge_broker.wire.acks import AckPolicy

ANY = "0.0.0.0"  # noqa: S104 - the default of the original

LISTENERS = {"listeners": "x=:8", "listeners.plain": "x", "listeners.advertised": "x=:8"}

IDENTITY = {
    "auth.methods": "token",
    "auth.listeners": "x=token",
    "auth.certificate.rules": "CN:*=>$1",
}
JWT = {
    "auth.methods": "jwt",
    "auth.jwt.keys.file": "y",
    "auth.jwt.issuer": "y",
    "auth.jwt.audience": "y",
}

# The settings of a file of the original, as its documentation shows them, in its three spellings.
ORIGINAL_FILE = """
listen: localhost:9293
data.dir: /tmp/liftbridge-test
logging:
  level: debug
  raft: true
metadata.cache.max.age: 1m
batch.max.messages: 10
batch.max.time: 1s
nats:
  servers:
    - nats://localhost:4222
    - nats://localhost:4223
  user: user
  password: pass
  embedded: false
streams:
  retention.max:
    bytes: 1024
    messages: 100
    age: 1h
  cleaner.interval: 1m
  segment.max:
    bytes: 64
    age: 1m
  compact.enabled: true
  compact.max.goroutines: 2
  concurrency.control: true
clustering:
  server.id: foo
  namespace: bar
  raft.snapshot.retain: 5
  raft.snapshot.threshold: 100
  raft.cache.size: 5
  raft.bootstrap.seed: true
  replica.max.lag.time: 1m
  replica.fetch.timeout: 30s
  min.insync.replicas: 1
  replication.max.bytes: 1048576
activity.stream:
  enabled: false
  publish.timeout: 1m
  publish.ack.policy: leader
cursors:
  stream.partitions: 2
  stream.replication.factor: 3
groups:
  consumer.timeout: 1m
telemetry.enabled: false
"""
ADMIN_TLS = {"admin.tls.cert", "admin.tls.key", "admin.tls.ca"}


@pytest.fixture
def file(tmp_path):
    """Writes a configuration file and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "broker.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def load_flags(**flags: str) -> BrokerOptions:
    return load(flags={k.replace("_", "."): v for k, v in flags.items()}, environ={}, path=None)


def test_without_any_source_the_options_are_the_shipped_defaults():
    # The dataclasses repeat the table's defaults so that tests can build options by hand.
    assert load(flags={}, environ={}, path=None) == BrokerOptions()


def test_file_of_the_original_starts_the_broker(file):
    options = load(flags={}, environ={}, path=file(ORIGINAL_FILE))
    assert options.listen == ListenOptions(
        host="localhost", port=9293, advertised_host="localhost", advertised_port=9293
    )
    assert options.data.directory == "/tmp/liftbridge-test"  # noqa: S108 - a value only
    assert options.logging.level is LogLevel.DEBUG
    assert options.nats == NatsOptions(
        servers=("nats://localhost:4222", "nats://localhost:4223"), user="user", password="pass"
    )
    assert options.streams == StreamOptions(
        min_isr=1,
        retention_bytes_max=1024,
        retention_messages_max=100,
        retention_age_ms_max=3_600_000,
        cleaner_interval_ms=60_000,
        segment_bytes_max=64,
        segment_age_ms_max=60_000,
        compact_enabled=True,
        compact_goroutines_max=2,
        optimistic_concurrency=True,
    )
    assert options.clustering == ClusteringOptions(
        server_id="foo",
        namespace="bar",
        snapshot_retain=5,
        snapshot_threshold=100,
        bootstrap=BootstrapOptions(is_seed=True),
        replication=ReplicationOptions(lag_ns=MINUTE_NS, fetch_timeout_ns=MINUTE_NS // 2),
    )
    assert options.cursors.partitions == 2
    assert options.cursors.replication_factor == 3


@pytest.mark.parametrize("policy", ["none", "leader", "all"])
def test_activity_stream_reaches_the_node(policy):
    flags = {
        "activity.stream.enabled": "true",
        "activity.stream.publish.timeout": "2s",
        "activity.stream.publish.ack.policy": policy,
    }
    activity = node_options(load(flags=flags, environ={}, path=None), BrokerId("b")).activity
    assert (activity.is_enabled, activity.timeout_ns) == (True, 2 * SECOND_NS)
    assert activity.policy is AckPolicy[policy.upper()]
    assert not node_options(BrokerOptions(), BrokerId("b")).activity.is_enabled


def test_flag_wins_over_environment_over_file_over_default(file):
    path = file("logging.level: error\nlogging.format: json\nclustering.namespace: ours\nport: 1")
    environ = {"LIFTBRIDGE_LOGGING_LEVEL": "warn", "LIFTBRIDGE_PORT": "2", "PATH": "/bin"}
    options = load(flags={"port": "3"}, environ=environ, path=path)
    assert options.listen.port == 3
    assert options.logging.level is LogLevel.WARN
    assert options.logging.format is LogFormat.JSON
    assert options.clustering.namespace == "ours"
    assert options.grpc.has_reflection is False
    origins = {s.key: (s.origin, s.source) for s in options.effective}
    assert origins["port"] == (Origin.FLAG, "--port")
    assert origins["logging.level"] == (Origin.ENVIRONMENT, "LIFTBRIDGE_LOGGING_LEVEL")
    assert origins["logging.format"] == (Origin.FILE, f"{path}:2")
    assert origins["grpc.reflection"] == (Origin.DEFAULT, "")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_can_be_given_by_environment_without_a_file(setting):
    """Unlike the original, whose names with dots never matched a variable."""
    given = {
        Kind.DURATION: "90s",
        Kind.SIZE: "1MiB",
        Kind.INTEGER: "7",
        Kind.BOOLEAN: "false",
        Kind.TEXT: "x",
        Kind.LIST: "x",
        Kind.CHOICE: setting.choices[-1] if setting.choices else "",
        Kind.ADDRESS: "127.0.0.1:7",
    }[setting.kind]
    environ = {setting.environment_name: given}
    partners = {
        "tls.key": "tls.cert",
        "nats.tls.key": "nats.tls.cert",
        "nats.password": "nats.user",
    }
    partners |= {partners[key]: key for key in ("tls.key", "nats.tls.key")}
    partners |= {"nats.password.file": "nats.user"}
    partners |= {"clustering.raft.bootstrap.peers": "clustering.server.id"}
    longer = {
        "clustering.raft.heartbeat.interval": "clustering.raft.election.timeout",
        "clustering.broker.heartbeat.interval": "clustering.broker.session.timeout",
    }
    flags = {partners[setting.key]: "y"} if setting.key in partners else {}
    if setting.key == "tls.client.auth.ca":
        flags = {"tls.cert": "y", "tls.key": "y"}
    if setting.key in ADMIN_TLS:
        flags = dict.fromkeys(ADMIN_TLS - {setting.key}, "y")
    if setting.key in longer:
        flags = {longer[setting.key]: "10m"}
    if setting.key in LISTENERS:
        others = {} if setting.key == "listeners" else {"listeners": "x=:7"}
        flags = others | {"tls.cert": "y", "tls.key": "y"}
        environ[setting.environment_name] = LISTENERS[setting.key]
    if setting.key in IDENTITY:
        flags = {"listeners": "x=:7"}
        environ[setting.environment_name] = IDENTITY[setting.key]
    if setting.key.startswith("auth.jwt."):
        flags = {key: text for key, text in JWT.items() if key != setting.key}
    if setting.key == "grpc.max.message.bytes":
        environ[setting.environment_name] = "8MiB"
    options = load(flags=flags, environ=environ, path=None)
    origin = {s.key: s.origin for s in options.effective}[setting.key]
    assert origin is Origin.ENVIRONMENT


def test_environment_names_are_distinct():
    assert len({setting.environment_name for setting in SETTINGS.values()}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nats.embeded: true", r":1: unknown setting 'nats.embeded'; did you mean 'nats.embedded'"),
        ("\nstreams:\n  retention:\n    max: {byte: 1}", r":4: .*'streams.retention.max.bytes'"),
        ("zzzzzz: 1", r":1: unknown setting 'zzzzzz'$"),
        ("streams: 5", r":1: unknown setting 'streams'"),
        ("port: 1\nhost: a\nPORT: 2", r":3: port is set twice, first on line 1"),
        ("port: [1, 2]", r":1: port: '1,2' is a list"),
        ("port: 65536", r":1: port: '65536' is more than 65535"),
        ("streams.cleaner.interval: 5", r":1: .* '5' needs a unit"),
        ("streams.cleaner.interval: 0", r"is less than 1ms"),
        ("logging.level: loud", r"'loud' is not one of debug, info, warn, error"),
        ("streams.fsync.policy: sometimes", r"is not one of never, interval, commit, auto"),
        ("streams.unclean.mode: never", r"is not one of manual, balanced, proactive"),
        ("metrics.streams.max: 101", r"is more than 100"),
        ("streams.auto.pause.time: 100us", r":1: streams.auto.pause.time is shorter than 1ms"),
    ],
)
def test_wrong_files_are_refused_with_place_and_reason(file, text, message):
    with pytest.raises(ConfigError, match=message):
        load(flags={}, environ={}, path=file(text))


def test_every_problem_of_a_file_is_named_up_to_a_bound(file):
    lines = [f"wrong{number}: 1" for number in range(PROBLEMS_SHOWN_MAX + 2)]
    with pytest.raises(ConfigError) as caught:
        load(flags={}, environ={}, path=file("\n".join(lines)))
    assert caught.value.text.count("unknown setting") == PROBLEMS_SHOWN_MAX
    assert caught.value.text.endswith("and 2 more")


def test_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*absent.yaml: No such file"):
        load(flags={}, environ={}, path=str(tmp_path / "absent.yaml"))


def test_empty_sections_and_values_are_as_if_not_given(file):
    text = 'tls:\nstreams:\n  segment.max:\nlisten: ""\nhost: ""\nnats.user:\n'
    assert load(flags={}, environ={}, path=file(text)) == BrokerOptions()


def test_unknown_flag_key_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"--set: .*'prt'; did you mean 'port'"):
        load_flags(prt="1")


class TestAuthorization:
    def test_turning_it_off_is_fine(self):
        flags = {"tls.client.authz.enabled": "false"}
        assert load(flags=flags, environ={}, path=None) == BrokerOptions()

    def test_authorization_follows_its_own_key(self, file):
        """The original read `tls.client.auth.enabled` instead."""
        text = (
            "tls: {cert: c, key: k, client: {auth: {enabled: true, ca: a}, authz.enabled: false}}"
        )
        options = load(flags={}, environ={}, path=file(text))
        assert options.tls.requires_client_cert is True
        assert options.access.has_policy is False

    def test_tokens_give_names_too(self, file):
        text = "{access.enabled: true, auth.methods: [token]}"
        assert load(flags={}, environ={}, path=file(text)).access.is_enabled

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("access.enabled: true", "needs tls.client.auth.enabled"),
            ("tls.client.authz: {enabled: true}", "needs tls.client.auth.enabled"),
            (
                (
                    "{tls.cert: c, tls.key: k, tls.client.auth.enabled: true, "
                    "tls.client.auth.ca: a, tls.client.authz.enabled: true, "
                    "tls.client.authz.model: m}"
                ),
                "needs tls.client.authz.policy",
            ),
        ],
    )
    def test_access_control_needs_names_and_its_files(self, file, text, said):
        with pytest.raises(ConfigError, match=said):
            load(flags={}, environ={}, path=file(text))

    def test_settings_without_effect_are_noticed_when_given(self):
        options = load_flags(batch_max_messages="10")
        assert len(options.notices) == 1
        assert "batch.max.messages has no effect" in options.notices[0]


class TestListen:
    @pytest.mark.parametrize(
        ("flags", "bound", "advertised"),
        [
            ({}, (ANY, 9292), ("localhost", 9292)),
            ({"port": "7"}, (ANY, 7), ("localhost", 7)),
            ({"port": "0"}, (ANY, 0), ("localhost", 0)),
            ({"host": "b.example"}, ("b.example", 9292), ("b.example", 9292)),
            ({"host": "b.example", "port": "7"}, ("b.example", 7), ("b.example", 7)),
            ({"listen": "10.0.0.1:7"}, ("10.0.0.1", 7), ("10.0.0.1", 7)),
            ({"listen": "0.0.0.0:7"}, (ANY, 7), ("localhost", 7)),
            ({"listen": "[::]:7"}, ("::", 7), ("localhost", 7)),
            ({"listen": "0.0.0.0:7", "host": "b"}, (ANY, 7), ("b", 7)),
            ({"listen": "0.0.0.0:7", "host": "b", "port": "8"}, (ANY, 7), ("b", 8)),
            ({"listen": "127.0.0.1:0"}, ("127.0.0.1", 0), ("127.0.0.1", 0)),
        ],
    )
    def test_bound_and_advertised_addresses(self, flags, bound, advertised):
        listen = load(flags=flags, environ={}, path=None).listen
        assert (listen.host, listen.port) == bound
        assert (listen.advertised_host, listen.advertised_port) == advertised

    def test_metrics_can_be_turned_off_and_moved(self):
        assert load_flags(metrics_listen="off").metrics.is_enabled is False
        moved = load_flags(metrics_listen="[::1]:0").metrics
        assert (moved.is_enabled, moved.host, moved.port) == (True, "::1", 0)


class TestDerived:
    def test_data_directory_follows_the_namespace(self):
        options = load_flags(clustering_namespace="mine")
        assert options.data.directory == "/tmp/liftbridge/mine"  # noqa: S108 - a value only

    @pytest.mark.parametrize(
        ("flags", "age_ms"),
        [
            ({}, 168 * 3_600_000),
            ({"streams.retention.max.age": "2h"}, 7_200_000),
            ({"streams.retention.max.age": "0"}, 0),
            ({"streams.retention.max.age": "2h", "streams.segment.max.age": "0"}, 7_200_000),
            ({"streams.segment.max.age": "5m"}, 300_000),
            ({"streams.segment.max.age": "5ms"}, 1_000),
        ],
    )
    def test_segment_age_follows_retention_age_and_has_a_floor(self, flags, age_ms):
        options = load(flags=flags, environ={}, path=None)
        assert options.streams.segment_age_ms_max == age_ms

    @pytest.mark.parametrize(("text", "size"), [("0", 1 << 30), ("9GiB", 2 << 30), ("64", 64)])
    def test_segment_size_zero_is_a_gibibyte_and_more_than_two_count_as_two(self, text, size):
        options = load_flags(streams_segment_max_bytes=text)
        assert options.streams.segment_bytes_max == size

    def test_requests_are_always_as_large_as_records(self):
        options = load_flags(clustering_replication_max_bytes="16MiB")
        assert options.grpc.message_bytes_max == (16 << 20) + (64 << 10)
        with pytest.raises(ConfigError, match=r"grpc.max.message.bytes is less than"):
            load_flags(clustering_replication_max_bytes="16MiB", grpc_max_message_bytes="16MiB")

    @pytest.mark.parametrize(
        ("flags", "is_embedded"),
        [
            ({}, False),
            ({"nats.embedded": "true"}, True),
            ({"nats.embedded": "false"}, False),
            ({"nats.embedded.config": "n.conf"}, True),
            ({"nats.embedded.config": "n.conf", "nats.embedded": "false"}, False),
        ],
    )
    def test_embedded_nats_is_on_only_when_asked_for(self, flags, is_embedded):
        """In the original any value of `nats.embedded` turned it on, `false` too."""
        assert load(flags=flags, environ={}, path=None).nats.is_embedded is is_embedded

    def test_server_level_concurrency_control_is_applied(self):
        options = load_flags(streams_concurrency_control="true")
        assert options.streams.optimistic_concurrency is True

    def test_stream_defaults_of_ours(self):
        options = load_flags(streams_fsync_policy="COMMIT", streams_tombstone_retention="1h")
        assert options.streams.fsync_policy is FsyncPolicy.COMMIT
        assert options.streams.tombstone_retention_ms == 3_600_000
        assert load_flags(streams_unclean_mode="manual").streams.unclean_mode is UncleanMode.MANUAL


class TestProtections:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ({"tls.cert": "c"}, "--tls-cert: tls.cert needs tls.key"),
            ({"tls.key": "k"}, "tls.key needs tls.cert"),
            ({"tls.client.auth.enabled": "true"}, "needs tls.cert and tls.key"),
            ({"tls.client.auth.ca": "a"}, "needs tls.cert and tls.key"),
            (
                {"tls.client.auth.enabled": "true", "tls.cert": "c", "tls.key": "k"},
                "needs tls.client.auth.ca",
            ),
            ({"admin.tls.cert": "c"}, "admin.tls.cert needs admin.tls.key"),
            ({"admin.tls.ca": "c"}, "admin.tls.ca needs admin.tls.cert"),
            ({"nats.tls.cert": "c"}, "nats.tls.cert needs nats.tls.key"),
            ({"nats.tls.key": "k"}, "nats.tls.key needs nats.tls.cert"),
            ({"nats.password": "p"}, "nats.password needs nats.user"),
            ({"nats.password.file": "p"}, "nats.password.file needs nats.user"),
            (
                {"nats.user": "u", "nats.password": "p", "nats.password.file": "f"},
                "nats.password cannot be set together with nats.password.file",
            ),
            (
                {"nats.user": "u", "nats.token": "t"},
                "nats.user cannot be set together with nats.token",
            ),
            (
                {"nats.token": "t", "nats.token.file": "f"},
                "cannot be set together with nats.token.file",
            ),
            (
                {"nats.nkey.seed.file": "s", "nats.credentials.file": "c"},
                "cannot be set together with nats.credentials.file",
            ),
            ({"nats.servers": ""}, "nats.servers is empty"),
            (
                {"nats.servers": "http://u:secret@h:1"},
                r"contains 'http://\*\*\*@h:1', which is not a NATS address",
            ),
            ({"nats.servers": "nats://h:99999"}, "which is not a NATS address"),
            ({"nats.servers": "nats://[::1"}, "which is not a NATS address"),
            ({"clustering.namespace": "a b"}, "must be 1 to 128 visible"),
            ({"clustering.namespace": ""}, "must be 1 to 128 visible"),
            ({"clustering.namespace": "a/../b"}, "must be 1 to 128 visible"),
            ({"clustering.namespace": "a..b"}, "must be 1 to 128 visible"),
            ({"clustering.server.id": "a.>"}, "must be 1 to 128 visible"),
            ({"clustering.server.id": "*"}, "must be 1 to 128 visible"),
            ({"clustering.server.id": "é"}, "must be 1 to 128 visible"),
            ({"clustering.server.id": "x" * 129}, "must be 1 to 128 visible"),
        ],
    )
    def test_halves_and_contradictions_are_refused(self, flags, message):
        with pytest.raises(ConfigError, match=message):
            load(flags=flags, environ={}, path=None)

    @pytest.mark.parametrize("name", ["liftbridge-default", "a.b_c", "MY$ns", "x" * 128, "0-?["])
    def test_names_that_are_tokens_of_subjects_are_taken(self, name):
        assert load_flags(clustering_namespace=name).clustering.namespace == name

    def test_servers_without_a_scheme_are_nats(self):
        assert load_flags(nats_servers="h:4222").nats.servers == ("nats://h:4222",)


class TestKubernetes:
    def test_service_links_do_not_break_the_start(self):
        environ = {
            "LIFTBRIDGE_PORT": "tcp://10.0.0.1:9292",
            "LIFTBRIDGE_SERVICE_HOST": "10.0.0.1",
            "LIFTBRIDGE_SERVICE_PORT_GRPC": "9292",
            "LIFTBRIDGE_PORT_9292_TCP": "tcp://10.0.0.1:9292",
            "LIFTBRIDGE_PORT_9292_TCP_ADDR": "10.0.0.1",
            "LIFTBRIDGE_OTHER_PORT": "tcp://10.0.0.2:1",
        }
        options = load(flags={}, environ=environ, path=None)
        assert options == BrokerOptions()
        assert len(options.notices) == 1
        assert options.notices[0].startswith("LIFTBRIDGE_PORT is ignored")

    def test_unknown_variable_is_noticed_with_the_nearest_name(self):
        name = "LIFTBRIDGE_LOGING_LEVEL"
        options = load(flags={}, environ={name: "debug"}, path=None)
        assert options.notices == (
            f"environment variable {name} is not a setting; did you mean LIFTBRIDGE_LOGGING_LEVEL?",
        )

    def test_encryption_key_of_the_original_is_used_and_never_shown(self):
        key = "k3y-value-of-16b"
        options = load(flags={}, environ={"LIFTBRIDGE_ENCRYPTION_KEY": key}, path=None)
        assert (options.encryption.key, options.notices) == (key, ())
        shown = repr(options) + repr(options.effective) + repr(options.encryption)
        assert key not in shown
        texts = {setting.key: setting.text for setting in options.effective}
        assert texts["encryption.key"] == "***"

    @pytest.mark.parametrize("source", ["key", "keys.file", "keys.command"])
    def test_encryption_by_default_needs_a_master_key(self, source):
        flags = {"streams.encryption": "true"}
        with pytest.raises(ConfigError, match=r"streams\.encryption needs a master key"):
            load(flags=flags, environ={}, path=None)
        options = load(flags=flags | {f"encryption.{source}": "k" * 16}, environ={}, path=None)
        assert options.streams.encryption


class TestSecrets:
    def test_secrets_are_in_no_repr_text_or_fingerprint(self):
        flags = {
            "nats.user": "u",
            "nats.password": "hunter2",
            "nats.servers": "nats://me:swordfish@h:1",
        }
        options = load(flags=flags, environ={}, path=None)
        shown = repr(options) + repr(options.effective) + repr(options.nats)
        assert "hunter2" not in shown
        assert "swordfish" not in shown
        texts = {s.key: s.text for s in options.effective}
        assert texts["nats.password"] == "***"
        assert texts["nats.servers"] == "nats://***@h:1"
        other = load(flags=flags | {"nats.password": "other"}, environ={}, path=None)
        assert other.fingerprint() == options.fingerprint()

    def test_wrong_secret_is_refused_without_showing_it(self):
        with pytest.raises(ConfigError) as caught:
            load_flags(nats_token="hunter2\n")
        assert "hunter2" not in caught.value.text
        assert "nats.token: the value contains control characters" in caught.value.text
