"""Which access rules are in force on a broker: by its settings, by the metadata, for operators."""

import pytest

from liftbridge_broker.access.principals import ANONYMOUS, Principal
from liftbridge_broker.access.rules import AccessRule, NameMatch, Operation, ResourceKind
from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.callers.commands import ChangeRules, SetAccess
from liftbridge_broker.server.access import Enforcement
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld, Member
from liftbridge_testkit.guarded_calls import (
    ROOT,
    STREAM,
    GuardedBroker,
    at_level,
    guarded_cluster,
)


@pytest.fixture
def three() -> tuple[ClusterWorld, list[GuardedBroker]]:
    return guarded_cluster()


def _may(control: AccessControl, who: Principal, name: str = STREAM) -> bool:
    return control.gate.allows(who, Operation.READ, ResourceKind.STREAM, name)


def _enforcement(member: Member, world: ClusterWorld, **options: object) -> Enforcement:
    found = Enforcement(
        AccessOptions(**options),  # type: ignore[arg-type] # as the caller says
        member,
        WorldClock(world),
        has_operators=True,
    )
    found.attach(member.node)
    return found


def test_a_broker_whose_settings_ask_for_it_turns_it_on_for_all(
    three: tuple[ClusterWorld, list[GuardedBroker]],
) -> None:
    world, everyone = three
    world.propose(SetAccess(is_on=False))
    world.run(200)
    assert not any(one.enforcement.clients.gate.is_closed for one in everyone)
    asking = _enforcement(world[2], world, is_enabled=True, super_users=("eve",))
    asking.look()
    asking.look()
    world.run(500)
    for number in (1, 3):
        assert world[number].node.state.access.is_on
        assert everyone[number - 1].enforcement.clients.gate.is_closed
    # There were rules: the super-users of the setting come too late.
    assert not _may(asking.clients, Principal("eve"))
    assert _may(asking.clients, Principal(ROOT))


def test_before_it_is_on_in_the_cluster_only_super_users_are_let_in() -> None:
    world = at_level(ClusterWorld(1))
    before = Enforcement(
        AccessOptions(is_enabled=True, super_users=(ROOT,)),
        world[1],
        WorldClock(world),
        has_operators=True,
    )
    for control in (before.clients, before.operators):
        assert _may(control, Principal(ROOT))
        assert not _may(control, ANONYMOUS)
    before.attach(world[1].node)
    assert _may(before.clients, Principal(ROOT))
    before.look()
    world.run(100)
    assert world[1].node.state.access.is_on


def test_why_it_is_not_on_is_reported_once() -> None:
    world = at_level(ClusterWorld(1))
    lonely = _enforcement(world[1], world, is_enabled=True)
    for _ in range(3):
        lonely.look()
        world.run(100)
    assert world[1].told_count("access_control_not_on") == 1
    assert not _may(lonely.clients, Principal(ROOT))

    world[1].node.state.feature_level = 3
    old = _enforcement(world[1], world, is_enabled=True, super_users=(ROOT,))
    old.look()
    world.run(100)
    assert world[1].told_count("access_control_not_on") == 2
    assert _may(old.clients, Principal(ROOT))
    assert not world[1].node.state.access.is_on


def test_super_users_of_the_settings_can_always_mend_the_rules() -> None:
    world = at_level(ClusterWorld(1))
    world.propose(SetAccess(is_on=True, super_users=("other",)))
    found = _enforcement(world[1], world, is_enabled=True, super_users=(ROOT,))
    assert _may(found.operators, Principal(ROOT))
    assert not _may(found.clients, Principal(ROOT))
    assert _may(found.operators, Principal("other"))


def test_super_users_of_the_operator_port_have_no_right_elsewhere() -> None:
    world = at_level(ClusterWorld(1))
    found = _enforcement(
        world[1], world, is_enabled=True, super_users=(ROOT,), admin_super_users=("robot", ROOT)
    )
    for _ in range(2):  # before access control is on in the cluster, and after
        assert _may(found.operators, Principal("robot"))
        assert not _may(found.clients, Principal("robot"))
        found.look()
        world.run(100)
    assert world[1].node.state.access.is_on


def test_no_deny_locks_super_users_out_of_the_operator_port() -> None:
    world = at_level(ClusterWorld(1))
    deny = AccessRule(
        principal="*",
        is_group=False,
        kind=ResourceKind.STREAM,
        match=NameMatch.PREFIX,
        name="",
        is_denied=True,
        operations=int(Operation.ALL),
    )
    world.propose(SetAccess(is_on=True, super_users=(ROOT,)))
    world.propose(ChangeRules(granted=(deny,)))
    world.run(100)
    found = _enforcement(world[1], world, super_users=(ROOT,), admin_super_users=("robot",))
    for name in (ROOT, "robot"):
        assert _may(found.operators, Principal(name))
        assert not _may(found.clients, Principal(name))


def test_a_plain_operator_port_trusts_whoever_reaches_it() -> None:
    world = at_level(ClusterWorld(1))
    plain = Enforcement(
        AccessOptions(is_enabled=True, super_users=(ROOT,)),
        world[1],
        WorldClock(world),
        has_operators=False,
    )
    assert _may(plain.operators, ANONYMOUS)
    assert not _may(plain.clients, ANONYMOUS)
