"""The cluster's part of `BrokerOptions`: rules between settings, and conversion."""

import re
from typing import Final

from liftbridge_broker.config.given import Values
from liftbridge_broker.config.options import (
    BootstrapOptions,
    ClusteringOptions,
    ReplicationOptions,
)
from liftbridge_broker.ports.transport import EVERYONE

VOTERS_DEFAULT: Final = 5
HEARTBEATS_IN_SESSION: Final = 3
"""Least number of heartbeats in a session timeout, so that one may be lost."""

_NAME_LENGTH_MAX: Final = 128
# Names are parts of subjects and paths: NATS tokens without wildcards, separators or spaces.
_SUBJECT_SAFE: Final = re.compile(r"[!-)+\-0-;=?-\[\]-~]+(\.[!-)+\-0-;=?-\[\]-~]+)*")
_RAFT: Final = "clustering.raft."
_REPLICA: Final = "clustering.replica."


def check_clustering(values: Values) -> None:
    """Refuse names that fit no subject, and settings that contradict each other.

    Raises:
        ConfigError: For the first violation.
    """
    _check_name(values, "clustering.namespace", values.text("clustering.namespace"))
    server_id = values.text("clustering.server.id")
    if server_id:
        _check_name(values, "clustering.server.id", server_id)
    start_id = values.text("clustering.start.id")
    if start_id:
        _check_name(values, "clustering.start.id", start_id)
    _check_bootstrap(values, server_id)
    if 2 * values.number(_RAFT + "heartbeat.interval") > values.number(_RAFT + "election.timeout"):
        raise values.refusal(
            _RAFT + "election.timeout", f"is less than twice {_RAFT}heartbeat.interval"
        )
    heartbeat = values.number("clustering.broker.heartbeat.interval")
    if HEARTBEATS_IN_SESSION * heartbeat > values.number("clustering.broker.session.timeout"):
        raise values.refusal(
            "clustering.broker.session.timeout",
            f"is less than {HEARTBEATS_IN_SESSION} times clustering.broker.heartbeat.interval",
        )


def _check_name(values: Values, key: str, name: str) -> None:
    if len(name) > _NAME_LENGTH_MAX or not _SUBJECT_SAFE.fullmatch(name):
        raise values.refusal(
            key,
            f"must be 1 to {_NAME_LENGTH_MAX} visible ASCII characters without "
            "/, \\, *, > or empty parts between dots",
        )
    if name == EVERYONE and key != "clustering.namespace":
        raise values.refusal(key, f"cannot be {EVERYONE}, which stands for every broker")


def _check_bootstrap(values: Values, server_id: str) -> None:
    key = _RAFT + "bootstrap.peers"
    peers = values.items(key)
    for peer in peers:
        _check_name(values, key, peer)
    if peers and not server_id:
        # A name generated at the start would be on no other broker's list.
        raise values.refusal(key, "needs clustering.server.id")
    if values.flag(_RAFT + "bootstrap.wait"):
        other = key if peers else _RAFT + "bootstrap.seed"
        if peers or values.flag(_RAFT + "bootstrap.seed"):
            raise values.refusal(_RAFT + "bootstrap.wait", f"cannot be set together with {other}")


def clustering_options(values: Values) -> ClusteringOptions:
    """Convert the settings of the cluster."""
    return ClusteringOptions(
        server_id=values.text("clustering.server.id"),
        start_id=values.text("clustering.start.id"),
        namespace=values.text("clustering.namespace"),
        zone=values.text("clustering.zone"),
        secret_file=values.text("clustering.secret.file"),
        snapshot_retain=values.number(_RAFT + "snapshot.retain"),
        snapshot_threshold=values.number(_RAFT + "snapshot.threshold"),
        record_bytes_max=values.number("clustering.replication.max.bytes"),
        bootstrap=_bootstrap(values),
        voters_max=values.number(_RAFT + "max.quorum.size") or VOTERS_DEFAULT,
        raft_heartbeat_ns=values.number(_RAFT + "heartbeat.interval"),
        raft_election_ns=values.number(_RAFT + "election.timeout"),
        heartbeat_ns=values.number("clustering.broker.heartbeat.interval"),
        session_ns=values.number("clustering.broker.session.timeout"),
        balance_ns=values.number("clustering.leader.balance.interval"),
        replication=_replication(values),
    )


def _bootstrap(values: Values) -> BootstrapOptions:
    peers = values.items(_RAFT + "bootstrap.peers")
    return BootstrapOptions(
        is_seed=values.flag(_RAFT + "bootstrap.seed") and not peers,
        peers=peers,
        waits=values.flag(_RAFT + "bootstrap.wait"),
    )


def _replication(values: Values) -> ReplicationOptions:
    silence_ns = values.number(_REPLICA + "max.leader.timeout")
    return ReplicationOptions(
        lag_ns=values.number(_REPLICA + "max.lag.time"),
        leader_silence_ns=silence_ns,
        # A follower must not take a leader that holds its fetch for a silent one.
        idle_wait_ns=min(values.number(_REPLICA + "max.idle.wait"), silence_ns // 2),
        fetch_timeout_ns=values.number(_REPLICA + "fetch.timeout"),
    )
