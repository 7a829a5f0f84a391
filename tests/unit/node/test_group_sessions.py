"""Sessions of members at their coordinator, without a broker around them."""

from dataclasses import replace

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.groups import Group, Member
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.groups.sessions import RETRY_NS, MemberSessions

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
    sessions.on_heartbeat("g", "m1", at(110))
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
    sessions.on_heartbeat("g", "m1", at(115.1))
    assert expired(sessions, 120, 126) == []
    assert len(sessions) == 1


def test_only_the_coordinator_watches() -> None:
    sessions = sessions_of(group("m1", coordinator="b"))
    assert len(sessions) == 0
    assert sessions.next_deadline(TIMEOUT_NS) is None
    sessions.on_heartbeat("g", "m1", at(101))
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
