"""Access control in the metadata: levels, the first super-users, and never without a way back."""

import pytest

from liftbridge_broker.access.rule_set import PATTERNS_MAX, RULES_MAX
from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    super_rules,
)
from liftbridge_broker.controller.callers.access import CHANGES_MAX, SUPER_USERS_MAX
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, ChangeRules, SetAccess
from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.records import Done, RulesChanged
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    CorruptionError,
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    LimitError,
)
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto.internal.v1 import metadata_pb2 as pb


def rule(name: str, principal: str = "alice", match: NameMatch = NameMatch.EXACT) -> AccessRule:
    return AccessRule(
        principal=principal,
        is_group=False,
        kind=ResourceKind.STREAM,
        match=match,
        name=name,
        is_denied=False,
        operations=int(Operation.READ),
    )


def take(state: ClusterState, command: Command) -> object:
    """Apply a command as it arrives, and check that a snapshot keeps the result."""
    index = MetadataIndex(state.applied_index + 1)
    answer = apply(state, index, decode_command(encode_command(command))).answer
    assert decode_state(encode_state(state)) == state
    return answer


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(feature_level=ACCESS_LEVEL)


@pytest.mark.parametrize(
    "command", [SetAccess(is_on=True, super_users=("root",)), ChangeRules(granted=(rule("a"),))]
)
def test_rules_wait_for_the_level_that_all_brokers_know(command: Command) -> None:
    state = ClusterState(feature_level=ACCESS_LEVEL - 1)
    assert isinstance(take(state, command), FailedPreconditionError)
    assert not state.access.is_on
    assert not len(state.access.rules)


def test_the_first_time_super_users_get_every_right(state: ClusterState) -> None:
    assert isinstance(take(state, SetAccess(is_on=True, super_users=("root", "root"))), Done)
    assert state.access.is_on
    assert tuple(state.access.rules) == super_rules("root")

    take(state, SetAccess(is_on=True, super_users=("eve",)))
    take(state, SetAccess(is_on=False))
    take(state, SetAccess(is_on=True, super_users=("eve",)))
    assert tuple(state.access.rules) == super_rules("root")


def test_rules_may_be_granted_before_it_is_turned_on(state: ClusterState) -> None:
    cluster = super_rules("root")[-1]
    read = cluster._replace(operations=int(Operation.DESCRIBE))
    take(state, ChangeRules(granted=(rule("a"), read)))
    assert isinstance(take(state, SetAccess(is_on=True, super_users=("root",))), Done)
    assert state.access.is_on
    assert set(state.access.rules) >= {rule("a"), *super_rules("root")[:-1]}
    (granting,) = (one for one in state.access.rules if one.kind is ResourceKind.CLUSTER)
    assert granting.operations == Operation.ALL | Operation.DESCRIBE


@pytest.mark.parametrize(
    ("users", "kind"),
    [
        ((), FailedPreconditionError),
        (("",), InvalidRequestError),
        (("*",), InvalidRequestError),
        (tuple(map(str, range(SUPER_USERS_MAX + 1))), LimitError),
    ],
)
def test_it_is_not_turned_on_without_anybody_to_change_the_rules(
    state: ClusterState, users: tuple[str, ...], kind: type[LiftbridgeError]
) -> None:
    assert isinstance(take(state, SetAccess(is_on=True, super_users=users)), kind)
    assert not state.access.is_on


def test_the_last_right_to_change_rules_is_not_taken_away(state: ClusterState) -> None:
    take(state, SetAccess(is_on=True, super_users=("root",)))
    cluster = super_rules("root")[-1]
    denied = cluster._replace(principal="*", is_denied=True)
    for change in (ChangeRules(revoked=(cluster,)), ChangeRules(granted=(denied,))):
        assert isinstance(take(state, change), FailedPreconditionError)
        assert tuple(state.access.rules) == super_rules("root")

    take(state, SetAccess(is_on=False))
    assert isinstance(take(state, ChangeRules(revoked=(cluster,))), RulesChanged)


def test_a_change_is_made_as_a_whole_or_not_at_all(state: ClusterState) -> None:
    assert isinstance(
        take(state, ChangeRules(granted=(rule("a"), rule("b*")))), InvalidRequestError
    )
    assert not len(state.access.rules)
    answer = take(state, ChangeRules(granted=(rule("a"), rule("b"))))
    assert answer == RulesChanged((rule("a"), rule("b")))
    assert take(state, ChangeRules(granted=(rule("a"),))) == RulesChanged(())
    gone = rule("a")._replace(operations=0)
    assert take(state, ChangeRules(revoked=(rule("a"),))) == RulesChanged((gone,))
    assert tuple(state.access.rules) == (rule("b"),)


def test_the_number_of_rules_is_bounded(state: ClusterState) -> None:
    many = tuple(rule(f"s{number}") for number in range(CHANGES_MAX + 1))
    assert isinstance(take(state, ChangeRules(granted=many)), LimitError)
    patterns = tuple(
        rule(f"s{number}.>", match=NameMatch.PATTERN) for number in range(PATTERNS_MAX)
    )
    take(state, ChangeRules(granted=patterns))
    more = ChangeRules(granted=(rule("t.>", match=NameMatch.PATTERN),))
    assert isinstance(take(state, more), LimitError)

    for number in range(PATTERNS_MAX, RULES_MAX):
        state.access.rules.put(rule(f"t{number}"))
    assert isinstance(take(state, ChangeRules(granted=(rule("more"),))), LimitError)
    assert isinstance(take(state, ChangeRules(granted=(rule(f"t{PATTERNS_MAX}"),))), RulesChanged)


def test_rules_of_a_later_version_stop_the_node() -> None:
    message = pb.Command()
    message.change_rules.granted.add(principal="a", name="b", operations=1, match=1)
    for kind in (0, 6):
        message.change_rules.granted[0].kind = kind  # type: ignore[assignment] # any number
        with pytest.raises(CorruptionError, match=f"kind {kind} is not known"):
            decode_command(message.SerializeToString(deterministic=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda access: access.rules.add().CopyFrom(access.rules[0]), "an access rule twice"),
        (lambda access: setattr(access.rules[0], "operations", 0), "must be some of"),
        (lambda access: access.ClearField("rules"), "nobody may change"),
        (lambda access: (access.Clear(), access.SetInParent()), "without content"),
    ],
)
def test_a_damaged_snapshot_is_refused(state: ClusterState, change: object, said: str) -> None:
    take(state, SetAccess(is_on=True, super_users=("root",)))
    message = pb.Snapshot.FromString(encode_state(state))
    assert callable(change)
    change(message.access)
    with pytest.raises(CorruptionError, match=said):
        decode_state(message.SerializeToString(deterministic=True))
