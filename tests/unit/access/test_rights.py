"""What rules allow, compared with a plain reading of each rule; subjects with wildcards."""

from itertools import product
from random import Random
from typing import Final

import pytest

from liftbridge_broker.access.gate import PRINCIPALS_MAX, Gate
from liftbridge_broker.access.principals import ANONYMOUS, Principal
from liftbridge_broker.access.rights import CACHE_COUNT_MAX, contains, may_begin, overlaps
from liftbridge_broker.access.rule_set import RuleSet
from liftbridge_broker.access.rules import (
    OPERATIONS,
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    check_rule,
    super_rules,
    text_of,
)
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import matches
from liftbridge_testkit.access_reading import allows

NAMES: Final = ("a", "a.b", "a.b.c", "ab", "b", "b.a", "cluster", "a/b")
WIDE: Final = ("*", ">", "a.*", "a.>", "*.b", "a.*.c", "*.*", "b.>")
PRINCIPALS: Final = (
    ANONYMOUS,
    Principal("alice"),
    Principal("alfred", ("ops",)),
    Principal("bob", ("ops", "dev")),
)


def rule(
    principal: str = "alice",
    kind: ResourceKind = ResourceKind.STREAM,
    name: str = "a",
    operations: int = Operation.READ,
    match: NameMatch = NameMatch.EXACT,
    *,
    is_denied: bool = False,
    is_group: bool = False,
) -> AccessRule:
    return AccessRule(principal, is_group, kind, match, name, is_denied, int(operations))


def _random_rule(random: Random) -> AccessRule:
    kind = random.choice(list(ResourceKind))
    matches_of = {
        ResourceKind.CLUSTER: (NameMatch.EXACT,),
        ResourceKind.SUBJECT: (NameMatch.EXACT, NameMatch.PATTERN),
    }
    match = random.choice(matches_of.get(kind, tuple(NameMatch)))
    names = {
        NameMatch.EXACT: ("cluster",) if kind is ResourceKind.CLUSTER else NAMES,
        NameMatch.PREFIX: ("", "a", "a.", "ab"),
        NameMatch.PATTERN: WIDE,
    }[match]
    return rule(
        random.choice(("*", "al*", "alice", "bob", "ops", "o*")),
        kind,
        random.choice(names),
        random.choice((*OPERATIONS[kind], Operation.ALL)),
        match,
        is_denied=not random.randrange(3),
        is_group=not random.randrange(3),
    )


@pytest.mark.parametrize("seed", range(25))
def test_answers_are_those_of_a_plain_reading_of_the_rules(seed: int) -> None:
    random = Random(seed)
    rules = [_random_rule(random) for _ in range(random.randrange(1, 12))]
    unique = {one.key: one for one in rules}
    gate = Gate()
    gate.enforce([RuleSet(unique.values())])
    for who in PRINCIPALS:
        for kind, operations in OPERATIONS.items():
            for name in NAMES:
                for operation in operations:
                    expected = allows([*unique.values()], who, operation, kind, name)
                    assert gate.allows(who, operation, kind, name) == expected, (who, kind, name)


def test_a_subject_with_wildcards_needs_a_rule_for_all_of_it_and_no_deny_of_any_part() -> None:
    subjects = [f"{one}.{two}" for one in "ab" for two in ("a", "b", "c.d", "c")] + ["a", "b"]
    for wide in WIDE:
        part = [one for one in subjects if matches(wide, one)]
        for other in (*WIDE, *NAMES[:6]):
            if contains(other, wide):
                assert all(matches(other, one) for one in part), (other, wide)
            if any(matches(other, one) for one in part):
                assert overlaps(other, wide), (other, wide)
        assert contains(wide, wide)
        assert contains(">", wide)
    assert not contains("a.*", "a.>")
    assert not contains("a.*.*", "a.>")
    assert contains("a.>", "a.*.c")

    allow = rule(kind=ResourceKind.SUBJECT, name="a.>", match=NameMatch.PATTERN, operations=256)
    deny = rule(kind=ResourceKind.SUBJECT, name="a.b", operations=256, is_denied=True)
    gate = Gate()
    gate.enforce([RuleSet([allow, deny])])
    alice = Principal("alice")
    for subject, is_allowed in (("a.c", True), ("a.*", False), ("a.*.c", True), (">", False)):
        found = gate.allows(alice, Operation.ATTACH, ResourceKind.SUBJECT, subject)
        assert found == is_allowed, subject


def test_a_pattern_is_denied_with_any_part_of_what_it_matches() -> None:
    tokens = ("a", "b", "ab", "c")
    names = [".".join(some) for count in (1, 2, 3) for some in product(tokens, repeat=count)]
    prefixes = {name[:length] for name in names for length in range(len(name) + 1)}
    for wide in (*WIDE, "a.b.>", "ab.*", "*.*.*"):
        matched = [name for name in names if matches(wide, name)]
        for prefix in prefixes:
            is_part = any(name.startswith(prefix) for name in matched)
            assert may_begin(wide, prefix) == is_part, (wide, prefix)

    reads = rule(match=NameMatch.PREFIX, name="")
    for denied, pattern, is_denied in (
        (rule(name="a.secret", is_denied=True), "a.>", True),
        (rule(name="a.secret", is_denied=True), "b.>", False),
        (rule(name="a.se", match=NameMatch.PREFIX, is_denied=True), "a.*", True),
        (rule(name="a.*.x.>", match=NameMatch.PATTERN, is_denied=True), "*.b.>", True),
        (rule(name="a.s", operations=Operation.PUBLISH, is_denied=True), "a.>", False),
    ):
        gate = Gate()
        gate.enforce([RuleSet([reads, denied])])
        alice = Principal("alice")
        assert gate.allows(alice, Operation.READ, ResourceKind.STREAM, pattern)
        found = gate.denies_part(alice, Operation.READ, ResourceKind.STREAM, pattern)
        assert found == is_denied, (denied.name, pattern)


@pytest.mark.parametrize("kind", ResourceKind)
def test_whoever_is_denied_everything_is_not_known(kind: ResourceKind) -> None:
    alice = Principal("alice")
    everything = [one for one in super_rules("alice") if one.kind is kind]
    for operations, is_known in ((OPERATIONS[kind][0], True), (Operation.ALL, False)):
        gate = Gate()
        denied = [one._replace(is_denied=True, operations=operations) for one in everything]
        gate.enforce([RuleSet([*everything, *denied])])
        assert gate.knows(alice) == (is_known and len(OPERATIONS[kind]) > 1)


def test_every_rule_set_in_force_must_allow() -> None:
    alice, bob = Principal("alice"), Principal("bob")
    gate = Gate()
    assert not gate.is_closed
    assert gate.allows(bob, Operation.READ, ResourceKind.STREAM, "a")
    gate.enforce([RuleSet([rule(), rule("bob")]), RuleSet([rule()])])
    assert gate.is_closed
    assert gate.allows(alice, Operation.READ, ResourceKind.STREAM, "a")
    assert gate.knows(alice)
    assert not gate.allows(bob, Operation.READ, ResourceKind.STREAM, "a")
    assert not gate.knows(bob)
    assert not gate.knows(ANONYMOUS)


def test_answers_follow_a_change_and_caches_are_bounded() -> None:
    rules, gate = RuleSet([rule(match=NameMatch.PREFIX, name="")]), Gate()
    gate.enforce([rules])
    for number in range(CACHE_COUNT_MAX + 2):
        assert gate.allows(Principal("alice"), Operation.READ, ResourceKind.STREAM, f"s{number}")
    for number in range(PRINCIPALS_MAX + 2):
        assert not gate.allows(Principal(f"p{number}"), Operation.READ, ResourceKind.STREAM, "a")
    (change,) = rules.with_changes((), [rule(match=NameMatch.PREFIX, name="")])
    rules.put(change)
    gate.enforce([rules])
    assert not gate.allows(Principal("alice"), Operation.READ, ResourceKind.STREAM, "s0")
    assert not len(rules)


def test_operations_are_added_and_taken_away_each_by_itself() -> None:
    rules = RuleSet([rule(operations=Operation.READ | Operation.PUBLISH)])
    granted = [rule(operations=Operation.ALTER)]
    revoked = [rule(operations=Operation.READ), rule("bob")]
    (changed,) = rules.with_changes(granted, revoked)
    assert changed.operations == Operation.PUBLISH | Operation.ALTER
    assert rules.with_changes([rule()], ()) == ()
    assert rules.with_changes([rule()], [rule()])[0].operations == Operation.PUBLISH


def test_super_users_may_do_everything() -> None:
    rules = RuleSet(super_rules("root"))
    assert rules.has_granter
    rights = rules.rights_of(Principal("root"))
    for kind, operations in OPERATIONS.items():
        name = "cluster" if kind is ResourceKind.CLUSTER else "anything"
        assert all(rights.allows(operation, kind, name) for operation in operations)
    assert rights.allows(Operation.ATTACH, ResourceKind.SUBJECT, ">")


def test_nobody_may_change_rules_when_every_such_rule_is_denied() -> None:
    grants = rule(
        kind=ResourceKind.CLUSTER, name="cluster", operations=Operation.GRANT, principal="o*"
    )
    assert RuleSet([grants]).has_granter
    denied = grants._replace(principal="*", is_denied=True)
    assert not RuleSet([grants, denied]).has_granter


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (rule(""), "principal ''"),
        (rule("a" * 513), "512 bytes"),
        (rule("a\n"), "printable"),
        (rule(operations=0), "operations of a rule for a stream: must be some of create"),
        (rule(operations=Operation.JOIN), "must be some of create"),
        (rule(name=""), "Name cannot be empty"),
        (rule(name="a*"), "Name is invalid"),
        (rule(name="a*", match=NameMatch.PREFIX), "must not contain"),
        (rule(name="a.b", match=NameMatch.PATTERN), "has no wildcard"),
        (rule(name="a.b*", match=NameMatch.PATTERN), "whole token"),
        (rule(name="a.*", match=NameMatch.PATTERN), "name a prefix, or a pattern with"),
        (
            rule(kind=ResourceKind.SUBJECT, operations=256, name="a.", match=NameMatch.PREFIX),
            "named exactly, or by a pattern",
        ),
        (rule(name="s" * 256, match=NameMatch.PREFIX), "255 bytes"),
        (rule(kind=ResourceKind.CLUSTER, operations=Operation.GRANT), "must be 'cluster'"),
        (rule(kind=ResourceKind.SUBJECT, operations=256, name="a.*"), "name it as a pattern"),
        (rule(kind=ResourceKind.GROUP, operations=Operation.JOIN, name=""), "must not be empty"),
        (rule(kind=ResourceKind.CURSOR, name="orders"), "STREAM/CURSOR"),
    ],
)
def test_a_rule_that_nothing_can_meet_is_refused(wrong: AccessRule, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said.replace("*", r"\*")):
        check_rule(wrong)


def test_a_rule_reads_as_a_line() -> None:
    denied = rule("ops", name="a.", match=NameMatch.PREFIX, is_denied=True, is_group=True)
    assert text_of(denied) == "deny group ops read stream:a.*"
