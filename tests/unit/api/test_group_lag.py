"""`GroupLag` and `ResetPositions` at three brokers without a network, and what they measure."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from liftbridge_broker.adapters.observe.metrics import OTHER
from liftbridge_broker.api.groups.lag import PARTITIONS_MAX
from liftbridge_broker.controller.commands import Bootstrap, CreateStream
from liftbridge_broker.controller.consumer_groups.commands import DeleteGroup, JoinGroup, LeaveGroup
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.groups.lag import WARN_NS
from liftbridge_broker.model.ids import MetadataIndex, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.model.units import HOUR_NS
from liftbridge_broker.node.groups.turnover import REMEMBERED_MAX, Turnover
from liftbridge_broker.node.upkeep import group_lags
from liftbridge_broker.node.upkeep.group_lags import (
    GROUPS_MAX,
    LOOK_UPS_MAX,
    PAIRS_MAX,
    ROUND_NS,
    GroupLag,
    with_own_series,
)
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_testkit.client_calls import GROUPS, ClientCalls, Outcome
from liftbridge_testkit.cluster_world import CLUSTER_ID, ClusterWorld, Member

ROUND_MS = ROUND_NS // 1_000_000
READS = "member c1 of consumer group g reads s/0: stop it, then reset the position"


class People:
    """A cluster with cursors and a stream of ten messages, and people who look after a group."""

    def __init__(self, count: int = 3, *, cursors_factor: int = 0) -> None:
        self.world = ClusterWorld(count)
        self.world.propose(Bootstrap(cluster_id=CLUSTER_ID))
        for one in self.world.alive:  # members are told of here, and send no heartbeats
            options = one.node.context.options
            one.node.context.options = replace(options, consumer_timeout_ns=HOUR_NS)
        synced = StreamOverrides(fsync_policy=FsyncPolicy.COMMIT)
        self.create(CURSORS_STREAM, cursors_factor or count, is_internal=True, overrides=synced)
        self.create("s", count, overrides=StreamOverrides(retention_messages_max=20))
        self.world.commit(*(b"%d" % number for number in range(10)))

    def create(self, name: str, factor: int, **fields: object) -> None:
        command = CreateStream(
            name=StreamName(name),
            subject=name,
            replication_factor=factor,
            **fields,  # type: ignore[arg-type]  # by name
        )
        assert not isinstance(self.world.propose(command), LiftbridgeError)
        self.world.until(lambda: self.world.leader(name) is not None)

    def leader(self, stream: str) -> Member:
        leader = self.world.leader(stream)
        assert leader is not None
        return leader

    def lag(self, *partitions: int, group: str = "g", at: Member | None = None) -> Outcome:
        request = groups_pb2.GroupLagRequest(
            group_id=group, stream="s", partitions=partitions or (0,)
        )
        return ClientCalls(at or self.leader("s")).call(GROUPS + "GroupLag", request)

    def found(self, group: str = "g") -> groups_pb2.PartitionLag:
        outcome = self.lag(group=group)
        assert outcome.code == 0, outcome.text
        (answer,) = outcome.messages
        assert isinstance(answer, groups_pb2.GroupLagResponse)
        (lag,) = answer.partitions
        return lag

    def reset(self, offset: int, at: Member | None = None, **fields: int) -> tuple[int, str]:
        outcome = self.begin_reset(offset, at, **fields)
        self.world.run(500)
        assert outcome.code is not None
        return outcome.code, outcome.text

    def begin_reset(self, offset: int, at: Member | None = None, **fields: int) -> Outcome:
        request = groups_pb2.ResetPositionsRequest(group_id="g")
        request.positions.add(stream="s", offset=offset, **fields)
        calls = ClientCalls(at or self.leader(CURSORS_STREAM))
        return calls.begin(GROUPS + "ResetPositions", request)

    def join(self, group: str = "g", member: str = "c1", *, is_incremental: bool = True) -> None:
        command = JoinGroup(
            group_id=group, member_id=member, streams=("s",), is_incremental=is_incremental
        )
        assert isinstance(self.world.propose(command), MemberAnswer)

    def transitions(self, kind: str) -> list[Mapping[str, object]]:
        return [fields for one in self.world.alive for told, fields in one.told if told == kind]


@pytest.fixture
def people() -> People:
    return People()


def test_lag_is_told_with_and_without_a_position(people: People) -> None:
    """The group needs no members; where the position is kept does not matter."""
    whole = people.found()
    assert (whole.HasField("position"), whole.lag_messages) == (False, 10)
    assert (whole.log_start, whole.high_watermark) == (0, 10)
    assert not whole.HasField("overtaken_ms")
    people.world.run(60_000)
    people.world.commit(b"new")
    assert people.reset(6) == (0, "")
    found = people.found()
    assert (found.position, found.lag_messages, found.lost_messages) == (6, 4, 0)
    assert 60_000 <= found.lag_ms < 70_000
    # Four messages of twenty in a minute, if nobody reads.
    assert found.overtaken_by == groups_pb2.RETENTION_LIMIT_MESSAGES
    assert found.overtaken_ms == pytest.approx(4 * 60_000, rel=0.1)
    assert people.reset(10) == (0, "")
    caught_up = people.found()
    assert (caught_up.lag_messages, caught_up.lag_ms) == (0, 0)
    assert not caught_up.HasField("overtaken_ms")
    assert people.found(group="other").lag_messages == 11


def test_lag_is_told_by_the_leader_alone_and_of_what_exists(people: People) -> None:
    follower = next(one for one in people.world.alive if one is not people.leader("s"))
    assert people.lag(at=follower).code == GrpcStatus.FAILED_PRECONDITION
    assert people.lag(7).code == GrpcStatus.NOT_FOUND
    too_many = people.lag(*range(PARTITIONS_MAX + 1))
    assert too_many.text == f"partitions: {PARTITIONS_MAX + 1} listed, at most {PARTITIONS_MAX}"


def test_lag_is_refused_while_positions_are_not_found() -> None:
    people = People(3, cursors_factor=1)
    people.leader(CURSORS_STREAM).kill()
    people.world.run(5_000)  # another broker leads the metadata
    calls = ClientCalls(people.leader("s"))
    request = groups_pb2.GroupLagRequest(group_id="g", stream="s", partitions=[0])
    outcomes = [calls.begin(GROUPS + "GroupLag", request) for _ in range(LOOK_UPS_MAX + 1)]
    people.world.until(lambda: all(one.code is not None for one in outcomes))
    assert {one.code for one in outcomes} == {GrpcStatus.UNAVAILABLE}
    texts = [one.text for one in outcomes]
    assert sum("of __cursors does not answer" in text for text in texts) == LOOK_UPS_MAX
    assert sum("calls already look up positions here" in text for text in texts) == 1


@pytest.mark.parametrize("is_incremental", [True, False])
def test_a_position_that_a_member_reads_is_not_reset(people: People, is_incremental: bool) -> None:
    assert people.reset(3) == (0, "")
    people.join(is_incremental=is_incremental)
    assert people.reset(1) == (GrpcStatus.FAILED_PRECONDITION, READS)
    assert people.found().position == 3
    people.world.propose(LeaveGroup(group_id="g", member_id="c1"))
    assert people.reset(1) == (0, "")
    assert people.found().position == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_that_came_during_a_reset_is_told(leaves: bool) -> None:
    """It may have found the former position before the new one was committed."""
    people = People(1)
    people.join("other")
    files = people.world[1].files
    files.is_holding = True
    outcome = people.begin_reset(1)
    people.join()
    if leaves:
        people.world.propose(LeaveGroup(group_id="g", member_id="c1"))
    assert outcome.code is None
    files.release()
    people.world.until(lambda: outcome.code is not None)
    assert outcome.code == GrpcStatus.FAILED_PRECONDITION
    assert outcome.text.startswith("consumer group g changed" if leaves else READS)
    people.world.propose(DeleteGroup(group_id="g"))
    assert people.reset(1) == (0, "")


def test_groups_that_are_forgotten_count_as_changed() -> None:
    turnover = Turnover()
    for number in range(1, REMEMBERED_MAX + 3):
        turnover.note(f"g{number}", MetadataIndex(number))
    assert turnover.changed_at("g1") == turnover.changed_at("never") == 2
    assert turnover.changed_at("g3") == 3
    turnover.forget(MetadataIndex(9_999))
    assert turnover.changed_at("g3") == 9_999


def test_a_reset_is_meant_for_one_stream_and_history(people: People) -> None:
    stream_id = people.found().stream_id
    assert people.reset(2, stream_id=stream_id, unclean_epoch=0) == (0, "")
    assert people.reset(3, stream_id=stream_id + 1)[0] == GrpcStatus.FAILED_PRECONDITION
    assert people.reset(3, unclean_epoch=9)[0] == GrpcStatus.FAILED_PRECONDITION
    assert people.reset(3, partition=4)[0] == GrpcStatus.NOT_FOUND
    assert people.reset(-2) == (
        GrpcStatus.INVALID_ARGUMENT,
        "offset -2 of s/0: must be -1 or more",
    )
    assert people.found().position == 2
    assert people.reset(-1) == (0, "")
    assert not people.found().HasField("position")


def test_only_who_keeps_a_position_resets_it(people: People) -> None:
    elsewhere = next(one for one in people.world.alive if one is not people.leader(CURSORS_STREAM))
    code, text = people.reset(1, elsewhere)
    assert code != 0
    assert text.startswith("Server not leader for cursors partition")


@pytest.mark.parametrize("count", [1, 3])
def test_lag_of_groups_with_members_is_measured_again_and_again(count: int) -> None:
    people = People(count)
    lags = people.leader("s").node.lags
    people.world.run(3 * ROUND_MS)
    assert lags.lags.by_group == {}
    assert people.reset(3) == (0, "")
    people.join()
    people.world.run(ROUND_MS + 1_000)
    lag = lags.lags.by_group["g"]
    assert lag.messages == 6
    assert lag.lag_ns > 3 * ROUND_NS
    others = [one.node.lags for one in people.world.alive if one is not people.leader("s")]
    assert all(one.lags.by_group == {} for one in others)
    people.world.propose(DeleteGroup(group_id="g"))
    people.world.run(ROUND_MS + 1_000)
    assert lags.lags.by_group == {}
    assert lags.next_deadline() is None


def test_a_broker_that_stops_has_no_round_to_wait_for(people: People) -> None:
    """A deadline that nobody meets would keep the process busy until its end."""
    people.join()
    people.world.run(1_000)
    lags = people.leader("s").node.lags
    assert lags.next_deadline() is not None
    people.leader("s").node.begin_stop(lambda: None)
    assert lags.next_deadline() is None


def test_retention_that_comes_near_is_told_once(people: People) -> None:
    assert people.reset(0) == (0, "")
    people.join()
    for _ in range(8):
        people.world.commit(b"more")
        people.world.run(ROUND_MS)
    (told,) = people.transitions("retention_overtakes_group")
    left_ms = told["left_ms"]
    assert isinstance(left_ms, int)
    assert 0 <= left_ms <= WARN_NS // 1_000_000
    named = {name: told[name] for name in ("group", "stream", "partition", "limit")}
    assert named == {"group": "g", "stream": "s", "partition": 0, "limit": "messages"}
    lags = people.leader("s").node.lags.lags
    assert lags.endangered_count == 1
    assert lags.by_group["g"].left_ns is not None


def test_a_stream_that_waits_for_the_group_does_not_overtake_it(people: People) -> None:
    options = people.world.replica(1).options
    free = group_lags.limits_of(options, "g")
    assert free.messages == 20
    overrides = StreamOverrides(retention_cursor="__group:g", retention_cursor_bytes_max=7)
    held = options.overridden(overrides)
    assert group_lags.limits_of(held, "g") == (0, 0, 7)
    assert group_lags.limits_of(held, "other") == free


def test_partitions_beyond_the_bound_are_counted() -> None:
    people = People(1)
    for number in range(PAIRS_MAX + 3):
        people.join(f"g{number}")
    people.world.run(2 * ROUND_MS)
    lags = people.leader("s").node.lags.lags
    assert (len(lags.by_group), lags.unmeasured_count) == (PAIRS_MAX, 3)


def test_groups_beyond_the_bound_share_a_series() -> None:
    lags = {f"g{number:03}": GroupLag(1, number, number) for number in range(GROUPS_MAX + 2)}
    lags[OTHER] = GroupLag(5, 10_000, None)
    shown = with_own_series(lags, OTHER)
    assert len(shown) == GROUPS_MAX + 1
    assert shown[OTHER] == GroupLag(7, 10_000, 0)
    assert min(shown) == "_other"
    assert "g002" in shown
    assert "g001" not in shown
