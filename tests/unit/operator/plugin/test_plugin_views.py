"""What `status` and `plan` show, also of resources that nobody has looked at."""

import json

import pytest

from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.kube.errors import ForbiddenError, NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS, STREAMS
from liftbridge_operator.plugin import describe, lookup
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.tables import age, counted, table
from liftbridge_testkit.kube.person import PersonKube, broker, cluster, condition, plan, stream

NOW = moment_ms("2026-11-21T10:05:30Z")


def kept(*resources):
    kube = PersonKube()
    for one in resources:
        kube.put(one)
    return kube


def seen(resource):
    """The resource as it is read, with uid and generation."""
    return kept(resource).all_of(CLUSTERS)[0]


def status_lines(resource, streams=()):
    return describe.status(seen(resource), streams, NOW).text.splitlines()


def line_with(lines, text):
    found = [line for line in lines if text in line]
    assert len(found) == 1, (text, found)
    return found[0]


# -- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2026-11-21T10:05:30Z", "0s"),
        ("2026-11-21T10:05:31Z", "0s"),  # another clock
        ("2026-11-21T10:04:20Z", "1m10s"),
        ("2026-11-21T10:00:30Z", "5m"),
        ("2026-11-21T07:05:00Z", "3h"),
        ("2026-11-19T07:05:00Z", "2d3h"),
        ("2026-11-19T10:05:00Z", "2d"),
        (None, "-"),
        ("yesterday", "-"),
    ],
)
def test_ages_have_two_units_at_most(moment, text):
    assert age(moment, NOW) == text


def test_columns_are_as_wide_as_they_must_be_and_nothing_is_a_dash():
    assert table(("A", "LONG"), [("wide", ""), ("x", "y")]) == ["A     LONG", "wide  -", "x     y"]
    assert [counted(one, "step") for one in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


# -- status -----------------------------------------------------------------------------------


def test_status_of_a_cluster_that_is_well():
    lines = status_lines(cluster(), [stream("created", observedGeneration=1)])
    assert lines[0] == "shop/orders  Ready: True (Reconciled)"
    assert "3 of 3 ready, 3 of the target revision" in line_with(lines, "  Brokers ")
    assert "leads the metadata group" in line_with(lines, "orders-0  yes")
    assert "1Gi Bound" in line_with(lines, "orders-2")
    assert line_with(lines, "Reconciled  5m").startswith("Ready")
    assert "Partitions: 4, of which 0 offline" in line_with(lines, "Partitions:")
    assert not any("Waiting for" in line or "Plan" in line for line in lines)


def test_status_tells_waits_with_their_age_their_end_and_what_to_do():
    wait = {
        "what": "IsrNotFull",
        "object": "s/0",
        "since": "2026-11-21T10:00:00Z",
        "endsWhen": "orders-1 is in sync",
        "runbook": "Look at its disk.",
    }
    lines = status_lines(cluster(waits=[wait]))
    assert "  IsrNotFull s/0, for 5m30s, until orders-1 is in sync" in lines
    assert "      Look at its disk." in lines


def test_status_tells_a_restart_under_way_and_the_plan():
    under_way = {"pod": "orders-1", "since": "2026-11-21T10:05:00Z", "blockers": ["CatchingUp: s"]}
    lines = status_lines(cluster(disruption=under_way, plan=plan()))
    assert "Restart of orders-1, for 30s." in lines
    assert "  CatchingUp: s" in lines
    assert "is being restarted" in line_with(lines, "orders-1  yes")
    told = line_with(lines, "Plan abc123")
    assert "1 step, waits for approval" in told
    assert "kubectl liftbridge plan orders" in told


def test_status_shows_partitions_that_lack_something():
    worst = [{"stream": "s", "partition": 3, "problem": "Offline", "missing": ["orders-1"]}]
    lines = status_lines(cluster(partitions={"total": 9, "offline": 1, "worst": worst}))
    assert line_with(lines, "s/3").split() == ["s/3", "Offline", "orders-1"]
    assert "Partitions: unknown" in "\n".join(status_lines(cluster(partitions=None)))


def test_status_that_is_not_about_the_present_says_so():
    lines = status_lines(cluster(observedGeneration=0))
    assert lines[0] == "shop/orders  Ready: Unknown (Reconciled)"
    assert "has not reconciled generation 1 yet: this is of 0" in lines[1]
    lines = status_lines({**cluster(), "status": {"observedGeneration": -1}})
    assert "no operator has reconciled this cluster yet" in lines[1]


@pytest.mark.parametrize("status", [{}, None])
def test_resource_without_any_status_is_shown(status):
    bare = {**cluster(), "status": status}
    assert status_lines(bare)[0] == "shop/orders  Ready: Unknown"
    assert "there is nothing to do" in describe.plan(seen(bare)).text


def test_status_says_what_people_did_to_the_cluster():
    resource = cluster(spec={"paused": True, "suspend": True}, brokers=[broker(1, cordoned=True)])
    resource["metadata"]["annotations"] = {"liftbridge.io/drain": "orders-1"}
    lines = status_lines(resource)
    assert [line for line in lines if line.startswith("  ! ")] == [
        "  ! the cluster is paused: the operator changes nothing.",
        "  ! the cluster is suspended: no broker runs.",
        "  ! drained: orders-1.",
    ]
    assert line_with(lines, "cordoned").startswith("orders-1")


def test_streams_that_are_not_ready_come_first_and_the_rest_is_counted():
    many = [stream(f"s{one:03}") for one in range(60)]
    bad = stream("zz", conditions=[condition("Ready", "False", "Conflict", "Who?")])
    kube = kept(*many, bad)
    lines = describe.status(seen(cluster()), kube.all_of(STREAMS), NOW).text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("RESOURCE"))
    assert lines[first + 1].split()[:4] == ["shop/zz", "zz", "False", "Conflict"]
    assert lines[first + 1].endswith("Who?")
    assert lines[-1] == "and 11 streams more"


def test_streams_that_may_not_be_listed_are_told_apart_from_none():
    assert "you are not allowed to list them" in describe.status(seen(cluster()), None, NOW).text
    assert describe.status(seen(cluster()), None, NOW).document["streams"] is None


def test_document_has_the_status_as_it_is():
    made = describe.status(seen(cluster(plan=plan())), [stream("s")], NOW).document
    assert json.loads(json.dumps(made))["status"]["plan"]["hash"] == "abc123"
    assert (made["name"], made["isCurrent"]) == ("orders", True)
    assert made["streams"][0]["stream"] == "s"


def test_overview_has_a_line_for_each_cluster():
    kube = kept(
        cluster(plan=plan()), cluster("billing", "pay", readyReplicas=2, observedGeneration=0)
    )
    made = describe.overview(kube.all_of(CLUSTERS), NOW)
    lines = made.text.splitlines()
    assert lines[1].split()[:5] == ["pay", "billing", "Unknown", "NotObserved", "2/3"]
    assert "abc123" in lines[2]
    assert len(made.document["clusters"]) == 2
    assert describe.overview([], NOW).text == "There is no LiftbridgeCluster."


# -- plan -------------------------------------------------------------------------------------


def test_plan_shows_steps_risks_and_how_to_approve_it():
    risk = {"kind": "Metadata", "text": "Nobody decides.", "accepted": False}
    made = describe.plan(seen(cluster(plan=plan(risks=[risk], stepCount=25))))
    lines = made.text.splitlines()
    assert lines[0] == "shop/orders: plan abc123, waits for approval."
    assert line_with(lines, "Restart").split() == ["1", "Restart", "orders-2", "spec"]
    assert "and 24 steps more" in lines
    assert "  Metadata (not accepted): Nobody decides." in lines
    assert lines[-1] == "Approve it: kubectl liftbridge approve orders --hash abc123"
    assert made.document["plan"]["stepCount"] == 25


def test_what_is_held_is_shown_with_how_to_take_it():
    held = {"revision": "3f9c21b0a7de", "causes": ["renderer 1 becomes 2", "image a becomes b"]}
    resource = cluster(held=held)
    planned = describe.plan(seen(resource))
    for lines in (status_lines(resource), planned.text.splitlines()):
        assert line_with(lines, "Held since").endswith(": renderer 1 becomes 2; image a becomes b.")
        assert "`kubectl liftbridge restart orders`" in line_with(lines, "3f9c21b0a7de")
    assert planned.document["held"] == held
    assert not [line for line in status_lines(cluster()) if "Held" in line]


def test_plan_that_is_approved_or_needs_nobody_says_so():
    approved = describe.plan(seen(cluster(plan=plan(approvedHash="abc123")))).text
    assert "plan abc123, approved." in approved
    assert "Approve it" not in approved
    assert (
        "starts automatically" in describe.plan(seen(cluster(plan=plan(needsApproval=False)))).text
    )
    former = describe.plan(seen(cluster(plan=plan(approvedHash="old")))).text
    assert "waits for approval" in former


def test_plan_of_a_former_specification_says_so():
    text = describe.plan(seen(cluster(plan=plan(), observedGeneration=0))).text
    assert text.startswith("! The operator has not reconciled generation 1 yet")


# -- which cluster ----------------------------------------------------------------------------


async def test_only_cluster_needs_no_name():
    kube = kept(cluster())
    assert lookup.name_of(await lookup.cluster(kube, "shop", "")) == "orders"
    with pytest.raises(PluginError, match="namespace empty: there is no") as caught:
        await lookup.cluster(kube, "empty", "")
    assert caught.value.code is ExitCode.REFUSED


async def test_several_clusters_are_listed_when_a_name_is_needed():
    kube = kept(*(cluster(f"c{one:02}") for one in range(12)))
    with pytest.raises(PluginError, match=r"c00, c01.* and 2 more; name one of them") as caught:
        await lookup.cluster(kube, "shop", "")
    assert caught.value.code is ExitCode.USAGE
    with pytest.raises(PluginError, match="no LiftbridgeCluster 'x' in namespace shop; there are"):
        await lookup.cluster(kube, "shop", "x")


async def test_definitions_that_are_not_installed_are_told():
    kube = kept()
    kube.fail(NotFoundError("the server could not find it", status=404), "list")
    with pytest.raises(PluginError, match="is the operator installed"):
        await lookup.clusters(kube, "shop")


async def test_streams_of_other_namespaces_are_found_where_they_may_be_read():
    other = stream("b", namespace="web")
    other["spec"]["clusterRef"]["namespace"] = "shop"
    foreign = stream("c", namespace="web")
    kube = kept(cluster(), stream("a"), other, foreign, stream("d", "billing"))
    resource = kube.all_of(CLUSTERS)[0]
    assert [lookup.name_of(one) for one in await lookup.streams(kube, resource)] == ["a", "b"]
    kube.fail(ForbiddenError("not everywhere", status=403), "list", STREAMS)
    assert [lookup.name_of(one) for one in await lookup.streams(kube, resource)] == ["a"]
    kube.forbidden.add(STREAMS)
    assert await lookup.streams(kube, resource) is None
