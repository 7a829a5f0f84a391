"""Settings of the cluster: how one is founded, and times that belong together."""

import pytest

from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import (
    BootstrapOptions,
    BrokerOptions,
    ClusteringOptions,
    ReplicationOptions,
)
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.node.control import ControlOptions
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.replication.fetch_sessions import LeaderSessionLimits, SessionLimits
from liftbridge_broker.replication.follower import FollowerLimits
from liftbridge_broker.replication.isr import LeaderLimits

MS = 1_000_000


def clustering(**flags: str) -> ClusteringOptions:
    """Options of a broker; `_` stands for a dot, keys are below `clustering`."""
    given = {"clustering." + key.replace("_", "."): text for key, text in flags.items()}
    return load(flags=given, environ={}, path=None).clustering


def test_defaults_are_those_of_the_protocols():
    options, control, raft = BrokerOptions().clustering, ControlOptions(), RaftOptions()
    assert load(flags={}, environ={}, path=None).clustering == options
    assert (options.heartbeat_ns, options.session_ns) == (control.heartbeat_ns, control.session_ns)
    assert (options.balance_ns, options.voters_max) == (control.balance_ns, control.voters_max)
    assert options.raft_heartbeat_ns == raft.heartbeat_ns
    assert options.raft_election_ns == raft.election_ns
    assert options.replication == ReplicationOptions(
        lag_ns=LeaderLimits().lag_ns,
        leader_silence_ns=FollowerLimits().silence_ns,
        idle_wait_ns=LeaderSessionLimits().hold_ns,
        fetch_timeout_ns=SessionLimits().timeout_ns,
    )


def test_ways_to_begin_a_cluster():
    assert clustering().bootstrap == BootstrapOptions()
    assert clustering(raft_bootstrap_seed="true").bootstrap == BootstrapOptions(is_seed=True)
    assert clustering(raft_bootstrap_wait="true").bootstrap == BootstrapOptions(waits=True)
    listed = clustering(server_id="a", raft_bootstrap_peers="b,c")
    assert listed.bootstrap == BootstrapOptions(peers=("b", "c"))


def test_listed_peers_go_before_the_seed():
    both = clustering(server_id="a", raft_bootstrap_peers="b,c", raft_bootstrap_seed="true")
    assert both.bootstrap == BootstrapOptions(peers=("b", "c"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"raft_bootstrap_peers": "b"}, r"bootstrap.peers needs clustering.server.id"),
        ({"server_id": "a", "raft_bootstrap_peers": "b,c>"}, r"bootstrap.peers must be 1 to 128"),
        ({"server_id": "a", "raft_bootstrap_peers": "_all"}, r"bootstrap.peers cannot be _all"),
        ({"server_id": "_all"}, r"--server-id: clustering.server.id cannot be _all"),
        (
            {"raft_bootstrap_wait": "true", "raft_bootstrap_seed": "true"},
            r"bootstrap.wait cannot be set together with clustering.raft.bootstrap.seed",
        ),
        (
            {"raft_bootstrap_wait": "true", "server_id": "a", "raft_bootstrap_peers": "b"},
            r"bootstrap.wait cannot be set together with clustering.raft.bootstrap.peers",
        ),
        ({"raft_heartbeat_interval": "251ms"}, r"election.timeout is less than twice"),
        ({"broker_heartbeat_interval": "501ms"}, r"session.timeout is less than 3 times"),
        ({"raft_max_quorum_size": "10"}, r"is more than 9"),
    ],
)
def test_contradictions_are_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        clustering(**flags)


def test_a_quorum_size_of_zero_is_five():
    assert clustering(raft_max_quorum_size="0").voters_max == 5
    assert clustering(raft_max_quorum_size="3").voters_max == 3


def test_a_held_fetch_does_not_pass_for_a_silent_leader():
    held = clustering(replica_max_idle_wait="10s", replica_max_leader_timeout="2s")
    assert held.replication.idle_wait_ns == 1_000 * MS
