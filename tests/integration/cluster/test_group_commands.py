"""People look after a group on three brokers: what it reads, its lag, where it continues."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from liftbridge_client import (
    FailedPreconditionError,
    NotFoundError,
    ResetTo,
    SyncClient,
    connect_sync,
)
from liftbridge_client.cli.app import run
from liftbridge_proto.ext.v1 import groups_pb2, groups_pb2_grpc
from liftbridge_testkit.cluster import ClusterKit

CONFIG = {"cursors.stream.partitions": 3, "cursors.stream.replication.factor": 3}
PARTITIONS, MESSAGES = 3, 5


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """Exit code, rows and notices of a command."""
    capsys.readouterr()
    code = run(["group", *words, "-o", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def join(cluster: ClusterKit) -> int:
    """Found the group with a member that reads everything; return its member epoch."""
    request = groups_pb2.HeartbeatRequest(group_id="billing", member_id="m1", streams=["orders"])
    with grpc.insecure_channel(next(iter(cluster.brokers.values())).address) as channel:
        answer = groups_pb2_grpc.GroupsStub(channel).Heartbeat(request, timeout=10)
    return int(answer.member_epoch)


def fill(lb: SyncClient) -> None:
    stream = lb.streams.create("orders", partitions=PARTITIONS, replication=3)
    for partition in range(PARTITIONS):
        for number in range(MESSAGES):
            stream.publish(b"%d" % number, partition=partition, ack_policy="all")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterKit]:
    # Nobody sends heartbeats after the first.
    config = {**CONFIG, "groups.consumer.timeout": "120s"}
    with ClusterKit(tmp_path, config=config, has_proxies=False) as running:
        servers = ",".join(broker.address for broker in running.brokers.values())
        monkeypatch.setenv("LIFTBRIDGE_SERVERS", servers)
        running.await_leader("__cursors")
        yield running


def lag_of(lb: SyncClient) -> list[tuple[int | None, int]]:
    return [(one.position, one.messages) for one in lb.groups.lag("billing", "orders")]


def test_groups_are_shown_reset_and_ended(
    cluster: ClusterKit, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = partial(command, capsys)
    servers = ",".join(broker.address for broker in cluster.brokers.values())
    with connect_sync(servers) as lb:
        fill(lb)
        # Without members: the dry run changes nothing, `--yes` does.
        with pytest.raises(NotFoundError, match="name the streams whose positions count"):
            lb.groups.lag("billing")
        planned = ask("reset", "billing", "orders", "--to-offset", "3")
        assert [row["new_position"] for row in planned[1]] == [2] * PARTITIONS
        assert (planned[0], planned[1][0]["done"]) == (0, False)
        assert "nothing was changed; add --yes" in planned[2]
        assert lag_of(lb) == [(None, MESSAGES)] * PARTITIONS
        assert ask("reset", "billing", "orders", "--to-offset", "3", "--yes")[0] == 0
        assert ask("reset", "billing", "orders", "-p", "1", "--shift-by", "-1", "--yes")[0] == 0
        assert lag_of(lb) == [(2, 2), (1, 3), (2, 2)]
        assert ask("reset", "billing", "orders", "--to-offset", "6")[0] == 2

        epoch = join(cluster)
        code, (listed,), _ = ask("list")
        assert (code, listed["group"], listed["kind"]) == (0, "billing", "incremental")
        assert (listed["members"], listed["partitions"]) == (1, PARTITIONS)
        (member,) = ask("describe", "billing")[1]
        named = [f"orders/{number}" for number in range(PARTITIONS)]
        assert (member["member"], member["member_epoch"]) == ("m1", epoch)
        assert (member["target"], member["held"]) == (named, named)
        code, rows, _ = ask("lag", "billing")
        assert [(row["member"], row["lag"]) for row in rows] == [("m1", 2), ("m1", 3), ("m1", 2)]
        assert all(row["lag_seconds"] > 0 for row in rows)

        # The broker refuses what the client does not know of.
        plan = lb.groups.plan_reset("billing", "orders", ResetTo.earliest())
        refused = ask("reset", "billing", "orders", "--to-earliest", "--yes")
        assert refused[:2] == (1, None)
        assert "member m1 of consumer group billing reads orders/0" in refused[2]
        unaware = [replace(one, lag=one.lag._replace(member="")) for one in plan]
        with pytest.raises(FailedPreconditionError, match="member m1"):
            lb.groups.reset("billing", unaware)
        assert lag_of(lb) == [(2, 2), (1, 3), (2, 2)]

        # Leaders measure it for their metrics.
        metric = "consumer_group_lag_messages"
        cluster.until(
            lambda: sum(cluster.metric(metric, name) for name in cluster.brokers) == 7, "a lag of 7"
        )
        assert ask("evict", "billing", "m1", "--epoch", str(epoch))[0] == 0
        assert ask("delete", "billing", "--yes")[0] == 1  # it ended with its last member
        join(cluster)
        assert ask("delete", "billing", "--yes")[0] == 0
        lb.groups.reset("billing", unaware)
        assert lag_of(lb) == [(None, MESSAGES)] * PARTITIONS
