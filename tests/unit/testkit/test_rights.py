"""Rights that the operator has, used, and was denied; and those that no story used."""

from datetime import UTC, datetime, timedelta
from typing import Any

from liftbridge_testkit.kube.audit import Request
from liftbridge_testkit.kube.results import Result, report
from liftbridge_testkit.kube.rights import AGGREGATED, granted, rights

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def role(*rules: tuple[str, str, str], **labels: str) -> dict[str, Any]:
    """A role with rules of one group, one resource and one verb each."""
    found = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in rules
    ]
    return {"metadata": {"labels": labels}, "rules": found}


def request(verb: str, resource: str, code: int = 200, *, user: str = "op", at: int = 0) -> Request:
    """A request some seconds after noon; 403 is for want of the right."""
    return Request(NOON + timedelta(seconds=at), user, verb, resource, "n", "x", code, code == 403)


OPERATOR = role(
    ("", "pods", "get"),
    ("apps", "statefulsets", "patch"),
    ("liftbridge.io", "streams/status", "patch"),
)
PEOPLE = role(("liftbridge.io", "streams", "create"), **{f"{AGGREGATED}edit": "true"})


def test_rights_are_written_as_the_audit_log_has_them():
    assert granted([OPERATOR, PEOPLE]) == {
        "get pods",
        "patch statefulsets.apps",
        "patch streams.liftbridge.io/status",
    }


def test_what_was_used_and_what_was_denied():
    requests = [
        request("get", "pods", 404),
        request("patch", "statefulsets.apps", user="another"),
        request("delete", "pods", 403, at=-1),
        request("list", "nodes", 403, at=1),
    ]
    found = rights([OPERATOR], requests, "op", NOON)
    assert found.used == {"get pods"}
    assert found.denied == {"list nodes"}
    assert found.unused == ["patch statefulsets.apps", "patch streams.liftbridge.io/status"]


def test_apply_of_what_was_not_there_uses_the_right_to_create():
    role_ = role(("", "services", "create"), ("", "services", "patch"), ("", "pods", "create"))
    requests = [request("patch", "services", 201), request("patch", "pods", 200)]
    assert rights([role_], requests, "op", NOON).unused == ["create pods"]


def test_refused_in_a_namespace_that_goes_is_not_denied():
    refused = request("get", "pods", 403)._replace(is_forbidden=False)
    found = rights([OPERATOR], [refused], "op", NOON)
    assert found.used == {"get pods"}
    assert found.denied == frozenset()


def test_what_an_api_server_denies_before_it_is_ready_is_not_told():
    requests = [request("list", "nodes", 403, at=5), request("list", "secrets", 403, at=7)]
    start = (NOON + timedelta(seconds=4), NOON + timedelta(seconds=6))
    assert rights([OPERATOR], requests, "op", NOON, [start]).denied == {"list secrets"}


def test_what_is_denied_in_a_namespace_that_was_deleted_is_not_told():
    deleted = Request(NOON + timedelta(seconds=2), "admin", "delete", "namespaces", "", "n", 200)
    requests = [
        request("list", "nodes", 403, at=1),
        deleted,
        request("list", "secrets", 403, at=3),
        request("list", "pods", 403, at=3)._replace(namespace="other"),
    ]
    assert rights([OPERATOR], requests, "op", NOON).denied == {"list nodes", "list pods"}
    refused = deleted._replace(code=404)
    found = rights([OPERATOR], [refused, *requests[2:]], "op", NOON)
    assert found.denied == {"list secrets", "list pods"}


def test_report_tells_what_no_story_used():
    found = {
        "a": Result("a", "c", unused_rights=["get pods", "list nodes"]),
        "b": Result("b", "c", unused_rights=["list nodes"]),
    }
    page = report("c", ["a", "b"], found)
    assert "- `list nodes`" in page
    assert "get pods" not in page
