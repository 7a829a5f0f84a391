"""Policies of the original as rules: models in use, refusals that name the place, and bounds.

Expected answers are those of Casbin's documentation for the functions named in the matchers.
"""

from typing import Final

import pytest

from liftbridge_broker.access.casbin import FILE_BYTES_MAX, read_policy
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rule_set import RuleSet
from liftbridge_broker.access.rules import Operation, ResourceKind, super_rules
from liftbridge_broker.errors import InvalidRequestError

ALLOW: Final = "some(where (p.eft == allow))"
DENY: Final = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"
EXACT: Final = "r.sub == p.sub && r.obj == p.obj && r.act == p.act"


def model(
    matcher: str = EXACT, effect: str = ALLOW, policy: str = "sub, obj, act", roles: str = ""
) -> str:
    return f"""
# A comment.
[request_definition]
r = sub, obj, act

[policy_definition]
p = {policy}
{"[role_definition]" if roles else ""}
{"g = " + roles if roles else ""}
[policy_effect]
e = {effect}

[matchers]
m = {matcher}
"""


def may(rules: RuleSet, who: str, operation: Operation, name: str) -> bool:
    return rules.rights_of(Principal(who)).allows(operation, ResourceKind.STREAM, name)


def test_a_list_of_rights_as_in_the_documentation_of_the_original() -> None:
    policy = """
p, client1, *, FetchMetadata
p, client1, foo, CreateStream

p, client1, foo, Subscribe
p, client2, foo, Publish
p, client2, foo, SetCursor
p, client2, __cursors, Publish
p, client3, shop.a, PublishToSubject
p, client4, *, Publish
p, client5, a b, Publish
"""
    rules = RuleSet(read_policy(model(), policy))
    assert may(rules, "client1", Operation.CREATE, "foo")
    assert may(rules, "client1", Operation.READ, "foo")
    assert may(rules, "client1", Operation.DESCRIBE, "anything")
    assert not may(rules, "client1", Operation.PUBLISH, "foo")
    assert may(rules, "client2", Operation.PUBLISH, "foo")
    assert not may(rules, "client2", Operation.DESCRIBE, "bar")
    # Compared exactly, `*` and `a b` are names that no stream has.
    assert not rules.rights_of(Principal("client4")).allows(
        Operation.PUBLISH, ResourceKind.STREAM, "foo"
    )
    assert not may(rules, "client5", Operation.PUBLISH, "a b")

    def allows(who: str, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return rules.rights_of(Principal(who)).allows(operation, kind, name)

    # What the original does not check, so that its clients need no further lines.
    assert allows("client1", Operation.ATTACH, ResourceKind.SUBJECT, "any.*")
    assert allows("client1", Operation.JOIN, ResourceKind.GROUP, "any")
    assert allows("client2", Operation.PUBLISH, ResourceKind.SUBJECT, "_INBOX.x")
    assert not allows("client2", Operation.PUBLISH, ResourceKind.SUBJECT, "bank")
    assert allows("client2", Operation.SET, ResourceKind.CURSOR, "foo/any")
    assert not allows("client2", Operation.SET, ResourceKind.CURSOR, "foo2/any")
    assert allows("client3", Operation.PUBLISH, ResourceKind.SUBJECT, "shop.a")
    assert not allows("client3", Operation.PUBLISH, ResourceKind.SUBJECT, "shop.b")


def test_key_match_is_a_prefix_up_to_the_first_star() -> None:
    matcher = "keyMatch(r.sub, p.sub) && keyMatch(r.obj, p.obj) && keyMatch(r.act, p.act)"
    policy = "p, svc-*, orders.*x, Fetch*\np, bob, *, *"
    rules = RuleSet(read_policy(model(matcher), policy))
    assert may(rules, "svc-a", Operation.DESCRIBE, "orders.1")
    assert not may(rules, "svc-a", Operation.PUBLISH, "orders.1")
    assert not may(rules, "svc", Operation.DESCRIBE, "orders.1")
    assert may(rules, "bob", Operation.DELETE, "anything")
    for subject, is_allowed in (("shop.a", True), ("bank", False)):
        found = RuleSet(read_policy(model(matcher), "p, bob, shop.*, PublishToSubject"))
        rights = found.rights_of(Principal("bob"))
        assert rights.allows(Operation.PUBLISH, ResourceKind.SUBJECT, subject) is is_allowed


def test_roles_of_roles_get_the_rights() -> None:
    matcher = "g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"
    policy = "p, reader, foo, Subscribe\ng, staff, reader\ng, ann, staff\ng, reader, ann"
    rules = RuleSet(read_policy(model(matcher, roles="_, _"), policy))
    for who in ("reader", "staff", "ann"):
        assert may(rules, who, Operation.READ, "foo")
    assert not may(rules, "bob", Operation.READ, "foo")


@pytest.mark.parametrize(("effect", "is_read"), [(ALLOW, True), (DENY, False)])
def test_a_deny_counts_where_the_effect_says_so(effect: str, *, is_read: bool) -> None:
    policy = "p, ann, foo, Subscribe, allow\np, ann, foo, Subscribe, deny"
    found = read_policy(model(effect=effect, policy="sub, obj, act, eft"), policy)
    assert may(RuleSet(found), "ann", Operation.READ, "foo") is is_read


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("^(Publish|Subscribe)$", {"PUBLISH", "READ"}),
        ("(Publish)|(Subscribe)", {"PUBLISH", "READ"}),
        (".*", {"PUBLISH", "READ", "DELETE"}),
        ("Delete", {"DELETE"}),
        ("^Stream", set()),
    ],
)
def test_regular_expressions_of_words(expression: str, allowed: set[str]) -> None:
    matcher = "r.sub == p.sub && r.obj == p.obj && regexMatch(r.act, p.act)"
    rules = RuleSet(read_policy(model(matcher), f"p, ann, foo, {expression}"))
    checked = (Operation.PUBLISH, Operation.READ, Operation.DELETE)
    found = {one.name for one in checked if may(rules, "ann", one, "foo")}
    assert found == allowed


def test_super_users_and_wildcards_of_a_matcher() -> None:
    matcher = (
        'r.sub == "root" || r.sub == p.sub && (r.obj == p.obj || p.obj == "*") && '
        "(r.act == p.act || p.act == '*')"
    )
    found = read_policy(model(matcher), "p, ann, *, *")
    assert set(super_rules("root")) <= set(found)
    assert may(RuleSet(found), "ann", Operation.DELETE, "anything")


@pytest.mark.parametrize(
    ("text", "policy", "said"),
    [
        (model("true"), "", "'true': known are =="),
        (model("r.sub == p.sub && r.obj == p.obj"), "", "must compare subject, object and action"),
        (model(f"{EXACT} && r.sub == p.sub"), "", "known are"),
        (model(f"{EXACT} || {EXACT}"), "", "more than one list"),
        (model("g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"), "", "role_definition"),
        (model(effect="!some(where (p.eft == deny))"), "", "allow only what some line allows"),
        (model(effect="priority(p.eft) || deny"), "", "allow only"),
        (model(policy="sub, act"), "", "need subject, object and action"),
        (model(roles="_, _, _"), "", "must be g = _, _"),
        (model("x" * 2_000), "", "longer than 1024"),
        ("nonsense", "", "line 1"),
        ("[matchers]\nq = 1", "", "need subject"),
        (model(), "p, ann, foo", "policy, line 1"),
        (model(), "g, ann, staff", "policy, line 1"),
        (model(), "\np, ann, foo, Fly", "policy, line 2: 'Fly': must be one of CreateStream"),
        (model(), "p, ann, foo, Publish, maybe", "must be allow or deny"),
        (model(), "p, *, foo, Publish", "no name of a client"),
        (
            model("r.sub == p.sub && keyMatch(r.obj, p.obj) && r.act == p.act"),
            "p, ann, shop*, PublishToSubject",
            "must end in '.'",
        ),
        (model(), "x" * (FILE_BYTES_MAX + 1), "larger than"),
        (
            model("r.sub == p.sub && r.obj == p.obj && regexMatch(r.act, p.act)"),
            "p, ann, foo, (a+)+",
            "words separated",
        ),
        (
            model("keyMatch(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"),
            "\n".join(f"p, a{number}, s, Publish" for number in range(5_001)),
            "more than 5000 access rules",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_its_place(text: str, policy: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_policy(text, policy)
    assert said in str(caught.value)
