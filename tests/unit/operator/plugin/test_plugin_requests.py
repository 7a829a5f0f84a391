"""What the plugin asks for is what the operator does: commands over a reconciled cluster."""

import pytest

from liftbridge_operator.kube.errors import ConflictError, UnavailableError
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.plugin import commands
from liftbridge_operator.plugin.exits import ExitCode, PluginError
from liftbridge_operator.plugin.session import Session
from liftbridge_testkit.kube.person import NAME as ORDERS
from liftbridge_testkit.kube.person import PersonKube, broker, cluster, plan
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld


class Person:
    """Somebody at a terminal, for whom time passes only while a command waits."""

    def __init__(self, kube, namespace="shop", *, consents=True, meanwhile=None):
        self.told, self.asked, self.passed_ms = [], [], 0
        self.meanwhile = meanwhile
        self.session = Session(
            kube,
            namespace,
            report=self.told.append,
            confirm=lambda question: self.asked.append(question) or consents,
            now_ms=lambda: 1_800_000_000_000 + self.passed_ms,
            sleep=self.sleep,
        )

    async def sleep(self, seconds):
        self.passed_ms += round(seconds * 1_000)
        if self.meanwhile is not None:
            await self.meanwhile()


async def ready_world(**disruption):
    """A cluster at rest with a stream that its first broker leads, and a person beside it."""
    world = ReconciledWorld({"disruption": disruption} if disruption else None)
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods), min_isr=2)
    await world.go_on(8)
    assert world.is_ready
    return world, Person(world.kube, NAMESPACE, meanwhile=world.go_on)


def uids(world):
    return {name: pod.uid for name, pod in world.stage.api.pods.items()}


# -- with the operator ------------------------------------------------------------------------


async def test_restart_of_all_is_done_and_seen_to_be():
    world, person = await ready_world()
    before = uids(world)
    answer = await commands.restart(person.session, NAME, [], is_sure=False, wait_s=600)
    assert answer.document["isDone"]
    assert person.asked == [f"{NAMESPACE}/{NAME}: restart all brokers?"]
    assert {name for name, uid in uids(world).items() if before[name] == uid} == set()
    assert world.is_ready
    again = await commands.restart(person.session, NAME, [], is_sure=True, wait_s=600)
    assert again.document["isDone"]


async def test_restart_of_one_leaves_the_others_alone():
    world, person = await ready_world()
    before = uids(world)
    await commands.restart(person.session, NAME, ["1"], is_sure=True, wait_s=600)
    after = uids(world)
    assert {name for name in before if before[name] != after[name]} == {f"{NAME}-1"}
    assert world.status.get("plan") is None
    assert any("restarted yet" in line for line in person.told)
    assert ("BrokerRestarting", f"Restarting {NAME}-1: a restart was requested.") in world.events


async def test_request_for_a_restart_that_is_done_is_forgotten_with_the_next():
    world, person = await ready_world()
    await commands.restart(person.session, NAME, ["1"], is_sure=True, wait_s=600)
    await commands.restart(person.session, NAME, [f"{NAME}-2"], is_sure=True, wait_s=600)
    assert "," not in world.resource["metadata"]["annotations"]["liftbridge.io/restart-pods"]


async def test_approved_plan_is_carried_out_and_no_other():
    world, person = await ready_world(mode="Approval")
    before = uids(world)
    await commands.restart(person.session, NAME, ["2"], is_sure=True, wait_s=0)
    await world.go_on(20)
    assert uids(world) == before
    meant = world.status["plan"]["hash"]
    await commands.restart(person.session, NAME, ["1"], is_sure=True, wait_s=0)
    await world.go_on(20)
    with pytest.raises(PluginError, match=f", not {meant}"):
        await commands.approve(person.session, NAME, meant, is_sure=True)
    answer = await commands.approve(person.session, NAME, "", is_sure=False)
    assert answer.document["hash"] == world.status["plan"]["hash"] != meant
    assert "Restart" in person.told[-1]
    await world.until(lambda: world.is_ready)
    after = uids(world)
    assert {name for name in before if before[name] != after[name]} == {f"{NAME}-1", f"{NAME}-2"}
    assert world.status.get("plan") is None


async def test_drained_broker_leads_nothing_until_the_drain_ends():
    world, person = await ready_world()
    first = f"{NAME}-0"
    answer = await commands.drain(
        person.session, [first], "", is_everywhere=False, is_over=False, wait_s=600
    )
    assert "no leaderships and no new replicas" in answer.text
    partition = next(iter(world.stage.brokers.partitions.values()))
    assert first not in (partition.leader, world.stage.brokers.leader)
    assert first in partition.replicas
    assert world.stage.brokers.registered[first].is_cordoned
    await world.go_on(20)
    assert partition.leader != first
    await commands.drain(person.session, [first], "", is_everywhere=False, is_over=True, wait_s=600)
    await world.until(lambda: partition.leader == first)
    assert "liftbridge.io/drain" not in world.resource["metadata"]["annotations"]


async def test_brokers_of_a_node_are_drained():
    world, person = await ready_world()
    node = world.stage.api.pods[f"{NAME}-1"].node
    answer = await commands.drain(
        person.session, [], node, is_everywhere=True, is_over=False, wait_s=600
    )
    mine = sorted(name for name, pod in world.stage.api.pods.items() if pod.node == node)
    assert answer.document["clusters"][0]["brokers"] == mine
    assert f"(on {node})" in answer.text


# -- refusals ---------------------------------------------------------------------------------


def person_of(*resources, **options):
    kube = PersonKube()
    for one in resources:
        kube.put(one)
    return kube, Person(kube, **options)


def annotations(kube):
    return kube.all_of(CLUSTERS)[0]["metadata"].get("annotations", {})


async def approve(person, shown="", *, is_sure=True):
    return await commands.approve(person.session, ORDERS, shown, is_sure=is_sure)


async def restart(person, *brokers, wait_s=0.0, is_sure=True):
    return await commands.restart(person.session, ORDERS, brokers, is_sure=is_sure, wait_s=wait_s)


async def drain(person, *brokers, node="", is_over=False, wait_s=0.0, is_everywhere=False):
    return await commands.drain(
        person.session,
        brokers,
        node,
        is_everywhere=is_everywhere,
        is_over=is_over,
        wait_s=wait_s,
    )


async def test_nothing_is_approved_without_consent():
    kube, person = person_of(cluster(plan=plan()), consents=False)
    with pytest.raises(PluginError, match="nothing was done"):
        await approve(person, is_sure=False)
    assert annotations(kube) == {}
    assert person.asked == ["Approve plan abc123?"]


async def test_plan_that_changes_while_it_is_looked_at_is_not_approved():
    kube, person = person_of(cluster(plan=plan()))

    def change(body):
        body["status"]["plan"]["hash"] = "def456"

    def consent(question):
        kube.edit(CLUSTERS, "shop", ORDERS, change)
        return bool(question)

    session = Session(kube, "shop", report=person.told.append, confirm=consent)
    with pytest.raises(PluginError, match="now def456, not abc123"):
        await commands.approve(session, ORDERS, "", is_sure=False)
    assert annotations(kube) == {}


async def test_other_change_of_the_resource_holds_no_approval_up():
    kube, person = person_of(cluster(plan=plan()))
    kube.fail(ConflictError("changed", status=409), "patch")
    assert "is approved" in (await approve(person, "abc123")).text
    assert annotations(kube) == {"liftbridge.io/approve": "abc123"}


async def test_plan_of_a_former_specification_is_not_approved():
    _, person = person_of(cluster(plan=plan(), observedGeneration=0))
    with pytest.raises(PluginError, match="has not reconciled generation 1 yet"):
        await approve(person)


async def test_without_a_plan_there_is_nothing_to_approve():
    _, person = person_of(cluster())
    with pytest.raises(PluginError, match="there is nothing to do"):
        await approve(person, "abc123")


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"needsApproval": False}, "needs no approval"), ({"approvedHash": "abc123"}, "already")],
)
async def test_approval_that_changes_nothing_is_not_written(changes, text):
    kube, person = person_of(cluster(plan=plan(**changes)))
    assert text in (await approve(person)).text
    assert kube.writes == []


async def test_risk_that_nobody_accepted_is_approved_also_where_plans_go_on_by_themselves():
    risk = {"kind": "PartitionsWithOneReplica", "text": "Away.", "accepted": False}
    kube, person = person_of(cluster(plan=plan(needsApproval=False, risks=[risk])))
    await approve(person)
    assert annotations(kube) == {"liftbridge.io/approve": "abc123"}


@pytest.mark.parametrize(
    ("spec", "text"), [({"suspend": True}, "spec.suspend"), ({"paused": True}, "spec.paused")]
)
async def test_cluster_on_which_nothing_would_be_done_is_not_asked(spec, text):
    kube, person = person_of(cluster(spec=spec))
    with pytest.raises(PluginError, match=text):
        await restart(person)
    with pytest.raises(PluginError, match=text):
        await drain(person, "orders-1")
    assert kube.writes == []


async def test_restart_of_what_is_not_there_is_refused():
    _, person = person_of(cluster(brokers=[broker(0), broker(1, podUID=None), broker(2)]))
    with pytest.raises(PluginError, match="no broker orders-7; its brokers: orders-0"):
        await restart(person, "7")
    with pytest.raises(PluginError, match="orders-1 has no pod"):
        await restart(person, "1")
    with pytest.raises(PluginError, match="has no broker 99999"):
        await restart(person, "9" * 9_000)
    with pytest.raises(PluginError, match="no broker billing-0"):
        await restart(person, "billing-0")


async def test_same_restart_is_asked_for_once():
    kube, person = person_of(cluster())
    await restart(person, "1")
    await restart(person, "1")
    assert annotations(kube) == {"liftbridge.io/restart-pods": "pod-1"}
    assert len(kube.writes) == 1


async def test_resource_that_always_changes_is_given_up():
    kube, person = person_of(cluster())
    for _ in range(20):
        kube.fail(ConflictError("changed", status=409), "patch")
    with pytest.raises(PluginError, match="changes too fast"):
        await restart(person)


async def test_resource_that_was_created_again_is_another_one():
    kube, person = person_of(cluster())
    first = kube.all_of(CLUSTERS)[0]

    class Recreated:
        async def get(self, *place):
            return await kube.get(*place)

        async def list_all(self, *place):
            return await kube.list_all(*place)

        async def patch(self, *place, **options):
            kube.remove(CLUSTERS, "shop", ORDERS)
            kube.put(cluster())
            return await kube.patch(*place, **options)

    session = Session(Recreated(), "shop", report=person.told.append, confirm=bool)
    with pytest.raises(PluginError, match="recreated"):
        await commands.restart(session, ORDERS, [], is_sure=True, wait_s=0)
    assert first["metadata"]["uid"] != kube.all_of(CLUSTERS)[0]["metadata"]["uid"]


async def test_all_brokers_are_never_drained():
    kube, person = person_of(cluster())
    await drain(person, "orders-0", "orders-1")
    with pytest.raises(PluginError, match="already drained: orders-0, orders-1"):
        await drain(person, "orders-2")
    assert annotations(kube) == {"liftbridge.io/drain": "orders-0,orders-1"}
    await drain(person, "orders-0", is_over=True)
    assert annotations(kube) == {"liftbridge.io/drain": "orders-1"}
    await drain(person, "orders-1", is_over=True)
    assert annotations(kube) == {}


async def test_drain_that_one_cluster_refuses_is_asked_of_none():
    small = cluster("small", spec={"replicas": 1}, brokers=[{"id": "small-0", "node": "node-1"}])
    kube, person = person_of(cluster(), small)
    with pytest.raises(PluginError, match="shop/small: all brokers would be drained"):
        await drain(person, node="node-1")
    assert kube.writes == []


async def test_brokers_that_are_no_more_are_drained_no_more():
    resource = cluster()
    resource["metadata"]["annotations"] = {"liftbridge.io/drain": "orders-9"}
    kube, person = person_of(resource)
    await drain(person, "orders-1")
    assert annotations(kube) == {"liftbridge.io/drain": "orders-1"}


@pytest.mark.parametrize(
    ("brokers", "options", "text"),
    [
        ((), {}, "either BROKER or --node"),
        (("orders-1",), {"node": "node-1"}, "either BROKER or --node"),
        (("orders-1",), {"is_everywhere": True}, "--all-namespaces needs --node"),
        (("orders",), {}, "'orders' is not a broker name"),
        (("-1",), {}, "'-1' is not a broker name"),
        (("orders-" + "9" * 9_000,), {}, "is not a broker name such as"),
    ],
)
async def test_drain_of_nobody_is_wrong_usage(brokers, options, text):
    _, person = person_of(cluster())
    with pytest.raises(PluginError, match=text) as caught:
        await drain(person, *brokers, **options)
    assert caught.value.code is ExitCode.USAGE


async def test_drain_of_a_node_without_brokers_is_refused():
    _, person = person_of(cluster())
    with pytest.raises(PluginError, match=r"runs on node elsewhere \(1 cluster checked\)"):
        await drain(person, node="elsewhere")


async def test_what_does_not_happen_in_time_is_told_with_what_it_waits_for():
    wait = {"what": "IsrNotFull", "object": "s/0", "endsWhen": "orders-1 is in sync"}
    leading = [broker(0), broker(1, cordoned=True), broker(2)]
    _, person = person_of(cluster(waits=[wait], brokers=leading))
    with pytest.raises(
        PluginError, match="orders-1 still leads 2 partitions; the operator waits"
    ) as caught:
        await drain(person, "orders-1", wait_s=5)
    assert caught.value.code is ExitCode.TIMED_OUT
    assert person.passed_ms == 5_000
    assert person.told == ["shop/orders: orders-1 still leads 2 partitions"]


async def test_wait_outlasts_an_api_server_that_is_away():
    kube, person = person_of(cluster())

    async def come_back():
        if person.passed_ms == 1_000:
            kube.fail(UnavailableError("refused"), "get")
        if person.passed_ms == 3_000:
            gone = [broker(0), broker(1, podUID="new"), broker(2)]
            kube.edit(CLUSTERS, "shop", ORDERS, lambda body: body["status"].update(brokers=gone))

    person.meanwhile = come_back
    await restart(person, "1", wait_s=10)
    assert "the API server does not answer: refused" in "".join(person.told)


async def test_cluster_that_is_deleted_ends_the_wait():
    kube, person = person_of(cluster())

    async def remove():
        kube.remove(CLUSTERS, "shop", ORDERS)

    person.meanwhile = remove
    with pytest.raises(PluginError, match="no LiftbridgeCluster 'orders'"):
        await restart(person, "1", wait_s=10)


async def test_broker_that_is_back_is_proven_to_be():
    under_way = {"pod": "orders-1", "since": "2026-11-21T10:00:00Z"}
    gone = [broker(0), broker(1), broker(2)]
    kube, person = person_of(cluster(brokers=gone, disruption=under_way))

    async def go_on():
        gone[1]["podUID"] = "new"
        gone[1]["ready"] = person.passed_ms > 1_000
        change = {"brokers": gone, "disruption": under_way if person.passed_ms < 3_000 else None}
        kube.edit(CLUSTERS, "shop", ORDERS, lambda body: body["status"].update(change))

    person.meanwhile = go_on
    await restart(person, "1", wait_s=10)
    assert [line.partition(": ")[2] for line in person.told] == [
        "orders-1 not restarted yet",
        "orders-1 not ready yet",
        "orders-1 is not yet proven to be back",
    ]
