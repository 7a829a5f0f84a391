"""Resources of access rules as text: what is written down is read as the same."""

import pytest

from liftbridge_client.access_model import (
    AccessRule,
    Resource,
    message_of,
    resource_of,
    rules_of,
)
from liftbridge_client.errors import UsageError
from liftbridge_proto.ext.v1 import access_pb2 as pb


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("cluster", Resource("cluster", "cluster")),
        ("stream:orders", Resource("stream", "orders")),
        ("stream:orders*", Resource("stream", "orders", "prefix")),
        ("stream:a.*", Resource("stream", "a.", "prefix")),
        ("stream:*", Resource("stream", "", "prefix")),
        ("stream:a.*.b", Resource("stream", "a.*.b", "pattern")),
        ("stream:a.>", Resource("stream", "a.>", "pattern")),
        ("subject:*", Resource("subject", "*", "pattern")),
        ("subject:a.*", Resource("subject", "a.*", "pattern")),
        ("subject:>", Resource("subject", ">", "pattern")),
        ("subject:a:b", Resource("subject", "a:b")),
        ("cursor:orders/*", Resource("cursor", "orders/", "prefix")),
        ("group:g", Resource("group", "g")),
    ],
)
def test_text_and_resource_are_the_same(text: str, resource: Resource) -> None:
    assert resource_of(text) == resource
    assert str(resource) == text


@pytest.mark.parametrize("text", ["", "orders", "stream:", "cluster:x", "queue:x"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be stream:NAME"):
        resource_of(text)


def test_a_rule_is_the_same_after_the_wire() -> None:
    resource = Resource("stream", "a", "prefix")
    rule = AccessRule("ops", resource, ["set-readonly", "all"], is_denied=True, is_group=True)
    assert rules_of([message_of(rule)]) == [rule]
    with pytest.raises(UsageError, match="FLY"):
        message_of(rule._replace(operations=["fly"]))  # type: ignore[list-item] # is refused


def test_words_of_later_versions_have_their_numbers() -> None:
    message = pb.AccessRule(principal="p", name="n")
    message.ParseFromString(message.SerializeToString() + b"\x18\x63\x3a\x01\x1e")
    (rule,) = rules_of([message])
    assert str(rule.resource) == "99:n"
    assert rule.operations == ["30"]
