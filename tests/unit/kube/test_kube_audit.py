"""The audit log of the API server, read."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from liftbridge_testkit.kube.audit import main, parse, read, rights_used, writes

OPERATOR = "system:serviceaccount:liftbridge:operator"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def line(second=0, verb="patch", resource="pods", **changed):
    event = {
        "stage": "ResponseComplete",
        "requestReceivedTimestamp": f"2026-01-01T12:00:{second:02}.000000Z",
        "user": {"username": changed.pop("user", OPERATOR)},
        "verb": verb,
        "objectRef": {"resource": resource, "namespace": "ns", "name": "x"},
        "responseStatus": {"code": changed.pop("code", 200)},
    }
    event["objectRef"] |= changed.pop("ref", {})
    return json.dumps(event | changed)


def test_resources_are_written_as_in_rules():
    refs = [
        {"resource": "pods", "subresource": "eviction"},
        {"resource": "leases", "apiGroup": "coordination.k8s.io"},
        {"resource": "streams", "apiGroup": "liftbridge.io", "subresource": "status"},
    ]
    found = [request.resource for request in parse(line(ref=ref) for ref in refs)]
    assert found == ["pods/eviction", "leases.coordination.k8s.io", "streams.liftbridge.io/status"]


def test_only_ended_requests_about_objects_count():
    other = [line(stage="ResponseStarted"), line(objectRef=None)]
    assert [request.verb for request in parse([*other, line(verb="watch")])] == ["watch"]


def test_only_what_authorization_refused_is_forbidden():
    refusals = [line(code=403), line(annotations={"authorization.k8s.io/decision": "allow"})]
    refusals += [line(annotations={"authorization.k8s.io/decision": "forbid"})]
    assert [request.is_forbidden for request in parse(refusals)] == [False, False, True]


def test_writes_of_a_user_from_a_moment_on():
    lease = {"resource": "leases", "apiGroup": "coordination.k8s.io"}
    requests = list(
        parse(
            [
                line(second=1),
                line(second=5, verb="create"),
                line(second=6, verb="get"),
                line(second=7, user="admin"),
                line(second=8, ref=lease),
            ]
        )
    )
    since = START + timedelta(seconds=2)
    assert [request.verb for request in writes(requests, OPERATOR, since)] == ["create"]
    assert len(writes(requests, OPERATOR, since, leases=True)) == 2
    assert len(writes(requests, OPERATOR, START)) == 2


def test_rights_used_leave_out_what_was_refused():
    lines = [line(verb="list"), line(verb="list"), line(verb="delete", code=403)]
    assert rights_used(parse(lines), OPERATOR) == {("list", "pods"): 2}


def test_rotated_parts_are_read_first(tmp_path):
    path = tmp_path / "audit.log"
    path.write_text(line(second=9) + "\n", encoding="utf-8")
    (tmp_path / "audit-2026-01-01T12-00-05.000.log").write_text(line(second=3) + "\n")
    (tmp_path / "audit-2026-01-01T11-00-00.000.log").write_text(line(second=1) + "\n")
    assert [request.at.second for request in read(path)] == [1, 3, 9]


@pytest.mark.parametrize(("user", "count"), [("", 2), (OPERATOR, 1), ("nobody", 0)])
def test_command_prints_a_line_for_each_kind_of_request(tmp_path, user, count):
    path = tmp_path / "audit.log"
    path.write_text(line() + "\n" + line() + "\n" + line(user="admin") + "\n", encoding="utf-8")
    assert len(main(path, user).splitlines()) == count
