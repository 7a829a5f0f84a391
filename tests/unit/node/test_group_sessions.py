"""Sessions of members at their coordinator, without a broker around them."""

from dataclasses import replace

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.groups import Group, Member
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.groups.sessions import BUSY_NS, RETRY_NS, MemberSessions

TIMEOUT_NS = 15 * SECOND_NS
A = BrokerId("a")


def at(seconds: float) -> Instant:
    return Instant(int(seconds * SECOND_NS))


def group(*members: str, coordinator: str = "a", since: int = 5, joined: int = 5) -> Group:
    return Group(
        group_id="g",
        group_epoch=MetadataIndex(9),
        coordinator=BrokerId(coordinator),
        coordinator_epoch=MetadataIndex(since),
        is_incremental=False,
        members=tuple(
            Member(member_id=one, member_epoch=MetadataIndex(joined), streams=("s",))
            for one in members
        ),
    )


FOUND = group("m1", "m2")
MOVED = replace(FOUND, coordinator_epoch=MetadataIndex(8))
"""The same, with another coordinator since its members joined."""


def state_of(*groups: Group) -> ClusterState:
    return ClusterState(groups={one.group_id: one for one in groups})


def sessions_of(found: Group, seconds: float = 100) -> MemberSessions:
    sessions = MemberSessions(A)
    sessions.on_state(state_of(found), at(seconds))
    return sessions


def expired(sessions: MemberSessions, *seconds: float) -> list[str]:
    """Members whose expiry is proposed at the last of these times; the others are checks."""
    found: list[str] = []
    for one in seconds:
        found = [command.member_id for command in sessions.expired(TIMEOUT_NS, at(one))]
    return found


def test_members_expire_one_by_one_after_their_last_heartbeat() -> None:
    sessions = sessions_of(group("m1", "m2"))
    sessions.on_heartbeat(FOUND, "m1", at(110))
    assert sessions.next_deadline(TIMEOUT_NS) == at(107.5)
    assert expired(sessions, 107, 114) == []
    (command,) = sessions.expired(TIMEOUT_NS, at(115))
    assert (command.member_id, command.member_epoch) == ("m2", 5)
    assert (command.coordinator, command.coordinator_epoch) == (A, 5)
    assert expired(sessions, 115.5) == []
    assert expired(sessions, 116) == ["m2"]  # asked again after `RETRY_NS`
    assert RETRY_NS == SECOND_NS
    assert expired(sessions, 120, 125) == ["m2", "m1"]


def test_a_heartbeat_ends_a_wait_for_an_expiry() -> None:
    sessions = sessions_of(group("m1"))
    assert expired(sessions, 107, 115) == ["m1"]
    sessions.on_heartbeat(FOUND, "m1", at(115.1))
    assert expired(sessions, 120, 126) == []
    assert len(sessions) == 1


def test_only_the_coordinator_watches() -> None:
    sessions = sessions_of(group("m1", coordinator="b"))
    assert len(sessions) == 0
    assert sessions.next_deadline(TIMEOUT_NS) is None
    sessions.on_heartbeat(FOUND, "m1", at(101))
    assert len(sessions) == 0


def test_sessions_follow_members_and_end_with_the_group() -> None:
    sessions = sessions_of(group("m1", "m2"))
    sessions.on_groups(state_of(group("m2", "m3")), ["g"], at(101))
    assert len(sessions) == 2
    sessions.on_groups(state_of(), ["g"], at(102))
    assert len(sessions) == 0


def test_a_member_that_joins_again_begins_a_whole_session() -> None:
    sessions = sessions_of(group("m1"))
    sessions.on_groups(state_of(group("m1", joined=7)), ["g"], at(110))
    assert expired(sessions, 107, 114, 124) == []
    assert expired(sessions, 125) == ["m1"]


def test_a_new_coordinator_epoch_begins_whole_sessions() -> None:
    sessions = sessions_of(group("m1"))
    sessions.on_groups(state_of(group("m1", since=8)), ["g"], at(110))
    assert expired(sessions, 107, 114, 124) == []
    (command,) = sessions.expired(TIMEOUT_NS, at(125))
    assert command.coordinator_epoch == 8
    again = state_of(replace(group("m1", since=8), group_epoch=MetadataIndex(10)))
    sessions.on_groups(again, ["g"], at(126))
    assert expired(sessions, 126) == ["m1"]


def test_a_late_check_expires_nobody() -> None:
    sessions = sessions_of(group("m1", "m2"))
    assert expired(sessions, 107, 115) == ["m1", "m2"]
    assert expired(sessions, 140) == []
    assert expired(sessions, 147, 154) == []
    assert expired(sessions, 155) == ["m1", "m2"]


def expired_of_short(sessions: MemberSessions, *seconds: float) -> list[str]:
    """As `expired`, with sessions of 1 s."""
    found: list[str] = []
    for one in seconds:
        found = [command.member_id for command in sessions.expired(SECOND_NS, at(one))]
    return found


def test_members_of_a_classic_group_have_time_to_find_a_new_coordinator() -> None:
    assert BUSY_NS == 10 * SECOND_NS
    sessions = sessions_of(MOVED)
    assert expired_of_short(sessions, *range(101, 110)) == []
    assert expired_of_short(sessions, 110) == ["m1", "m2"]


def test_members_of_a_classic_group_have_time_to_act_on_a_change() -> None:
    sessions = sessions_of(group("m1"))
    sessions.on_heartbeat(FOUND, "m1", at(100.5))  # the answer names another epoch
    assert expired_of_short(sessions, 101, 102, 103) == []
    sessions.on_heartbeat(FOUND, "m1", at(103.1))  # and the member has acted on it
    assert sessions.next_deadline(SECOND_NS) == at(103.5)
    assert expired_of_short(sessions, 104) == []
    assert expired_of_short(sessions, 104.1) == ["m1"]


def test_members_that_join_are_silent_for_a_session_at_most() -> None:
    joined = replace(group("m1", joined=9), group_epoch=MetadataIndex(9))
    assert expired_of_short(sessions_of(joined), 101) == ["m1"]
    sessions = sessions_of(joined)
    sessions.on_heartbeat(joined, "m1", at(100.5))  # nothing is new since it joined
    assert expired_of_short(sessions, 101) == []
    assert expired_of_short(sessions, 101.5) == ["m1"]


def test_members_of_an_incremental_group_are_never_silent_for_longer() -> None:
    incremental = replace(MOVED, is_incremental=True)
    assert expired_of_short(sessions_of(incremental), 101) == ["m1", "m2"]
    sessions = sessions_of(incremental)
    for one in ("m1", "m2"):
        sessions.on_heartbeat(incremental, one, at(100.5))
    assert expired_of_short(sessions, 101, 101.5) == ["m1", "m2"]
