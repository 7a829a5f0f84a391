"""Passes over pipelines: what is brought, kept, taken away, asked and told."""

import asyncio
from datetime import timedelta
from random import Random

import pytest

from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.kube.errors import ForbiddenError, InvalidError
from liftbridge_operator.kube.kinds import (
    CLUSTERS,
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.pipelines.port import CursorError, SilentError
from liftbridge_operator.pipelines.reconciler import (
    ASK_SECONDS,
    CONNECTED_SECONDS,
    LOOK_SECONDS,
    RECOVERED_MS,
)
from liftbridge_operator.pipelines.subject import Means
from liftbridge_operator.process.dispatcher import PASS_SECONDS_MAX
from liftbridge_operator.process.queue import WorkQueue
from liftbridge_testkit.pipelines_memory import KEY, PipelineWorld

ONCE = {"mode": "Once"}
HOURLY = {"mode": "Scheduled", "schedule": {"cron": "@hourly"}}
EXECUTORS = {"runtime": "Executors", "executors": {"instances": 2}}


@pytest.fixture
def world():
    return PipelineWorld()


async def test_continuous_pipeline_becomes_a_deployment_and_tells_how_far_it_is(world):
    world.put()
    again = await world.look()
    assert again.seconds == LOOK_SECONDS
    assert world.workloads() == [("Deployment", "p-pipeline")]
    assert world.kube.names_of(SERVICE_ACCOUNTS) == ["p-pipeline"]
    assert world.kube.names_of(CONFIG_MAPS) == ["p-pipeline"]
    assert world.reason("Ready") == "Starting"
    world.up()
    await world.look()
    assert (world.reason("Ready"), world.reason("CaughtUp")) == ("Running", "CaughtUp")
    assert world.status["lag"] == 0
    assert world.status["cursor"] == "archive/shop/p"
    assert world.brokers.asked[-1] == ("orders", "archive/shop/p")
    assert world.board.reasons == {"p": "Running"}


@pytest.mark.parametrize("changes", [{}, ONCE, HOURLY, EXECUTORS], ids=str)
async def test_at_rest_nothing_is_written(world, changes):
    world.put(**changes)
    await world.look(2)
    world.kube.writes.clear()
    world.clock.seconds += 600
    await world.look(3)
    assert world.kube.writes == []


async def test_lag_is_told_by_partition_and_moves_the_last_commit(world):
    world.brokers.put("orders", 1, high_watermark=10, archived=3)
    world.put()
    await world.look()
    first, second = world.status["partitions"]
    assert (first["lag"], second["lag"], world.status["lag"]) == (0, 6, 6)
    assert world.reason("CaughtUp") == "Behind"
    world.clock.seconds += LOOK_SECONDS
    world.brokers.put("orders", 1, high_watermark=10, archived=9)
    await world.look()
    after = world.status["partitions"]
    assert after[0]["lastCommit"] == first["lastCommit"]
    assert after[1]["lastCommit"] > second["lastCommit"]
    assert world.reason("CaughtUp") == "CaughtUp"


async def test_archive_of_a_stream_that_grows_keeps_up(world):
    world.put(interval="10s")
    for number in range(8):
        committed = 1_000 * (number + 1)
        world.brokers.put("orders", 0, high_watermark=committed, archived=committed - 300)
        await world.look()
        world.clock.seconds += LOOK_SECONDS
    assert world.status["lag"] == 299
    assert world.reason("CaughtUp") == "CaughtUp"


@pytest.mark.parametrize("days", [0, 3])
async def test_failure_is_forgotten_as_soon_though_the_clock_was_set_back(world, days):
    world.put()
    await world.look()
    world.up()
    world.put_pod("p-pipeline-x", exit_code=1)
    world.clock.seconds += 10
    world.put_pod("p-pipeline-y", is_running=True)
    await world.look()
    assert world.reason("Ready") == "RunFailed"
    world.clock.set_back = timedelta(days=days)
    await world.look()
    told = [moment_ms(one["lastTransitionTime"]) for one in world.status["conditions"]]
    assert max(told) <= world.clock.wall().timestamp() * 1_000
    world.clock.seconds += RECOVERED_MS / 1_000 - 1
    await world.look()
    assert world.reason("Ready") == "RunFailed"
    world.clock.seconds += 2
    await world.look()
    assert world.reason("Ready") == "Running"


async def test_another_process_of_the_operator_goes_on_with_what_was_told(world):
    world.put()
    await world.look()
    world.brokers.put("orders", 0, high_watermark=99, archived=9)
    other = world.operator()
    await other.reconcile(KEY)
    assert world.reason("CaughtUp") == "CaughtUp"
    world.clock.seconds += 600
    await other.reconcile(KEY)
    assert world.reason("CaughtUp") == "Behind"


@pytest.mark.parametrize("records_per_s", [0, 100])
async def test_own_writes_do_not_bring_further_questions_to_the_brokers(world, records_per_s):
    world.put()
    await world.look()
    queue = WorkQueue(Random(1))
    queue.add(KEY, world.clock.now())
    world.kube.writes.clear()
    world.brokers.asked.clear()
    began = world.clock.now()
    while world.clock.now() < began + 4 * LOOK_SECONDS:
        if queue.take(world.clock.now()) is None:
            world.clock.seconds = max(world.clock.now() + 0.01, queue.next_s())
            continue
        committed = 10 + int((world.clock.now() - began) * records_per_s)
        world.brokers.put("orders", 0, high_watermark=committed, archived=9)
        before = len(world.kube.writes)
        again = await world.reconciler.reconcile(KEY)
        if len(world.kube.writes) > before:
            queue.add(KEY, world.clock.now())  # as the watch does
        world.clock.seconds += 0.05
        queue.succeed(KEY, world.clock.now(), again)
    assert 3 <= len(world.brokers.asked) <= 5
    assert len(world.kube.writes) == (len(world.brokers.asked) if records_per_s else 0)


async def test_brokers_that_never_answer_leave_the_rest_of_the_status(world):
    world.put()
    waits = []

    def at_once(seconds):
        waits.append(seconds)
        return asyncio.timeout(0)

    async def never(body, first):
        await asyncio.Event().wait()

    await world.operator(connect=never, deadline=at_once).reconcile(KEY)
    assert waits == [ASK_SECONDS]
    assert ASK_SECONDS < PASS_SECONDS_MAX / 2
    assert (world.reason("Ready"), world.reason("CaughtUp")) == ("Starting", "ClusterUnreachable")


@pytest.mark.parametrize("changes", [ONCE, HOURLY, {"suspend": True}], ids=str)
async def test_lag_of_an_archive_that_need_not_keep_up_is_told_and_not_judged(world, changes):
    world.put(**changes)
    for number in range(4):
        world.brokers.put("orders", 0, high_watermark=12 + number, archived=9)
        await world.look()
        assert world.status["lag"] == 2 + number
        assert world.reason("CaughtUp") == "NotMeasured"
        world.clock.seconds += LOOK_SECONDS


async def test_slow_brokers_are_asked_less_often(world):
    world.put()

    def slow():
        world.clock.seconds += 10.0

    world.brokers.before_answer = slow
    await world.look()
    world.clock.seconds += 10 * 10.0 - 11.0
    await world.look()
    assert len(world.brokers.asked) == 1
    world.clock.seconds += 1.0
    await world.look()
    assert len(world.brokers.asked) == 2


async def test_another_pipeline_of_the_same_name_is_asked_for_anew(world):
    world.put()
    await world.look()
    world.kube.remove(*KEY)
    world.put()
    await world.look()
    assert len(world.brokers.asked) == 2


# -- what is brought and taken away -------------------------------------------------------------


async def test_one_workload_takes_the_place_of_another(world):
    seen = []
    for changes in ({}, ONCE, HOURLY, ONCE, {}):
        world.put(**changes)
        await world.look()
        seen.append([kind for kind, _ in world.workloads()])
    assert seen == [["Deployment"], ["Job"], ["CronJob"], ["Job"], ["Deployment"]]


async def test_executors_bring_a_name_and_rights_which_go_again(world):
    world.put(**EXECUTORS)
    await world.look()
    assert world.kube.names_of(SERVICES) == world.kube.names_of(ROLE_BINDINGS) == ["p-pipeline"]
    world.put()
    await world.look()
    assert world.kube.names_of(SERVICES) == world.kube.names_of(ROLE_BINDINGS) == []


async def test_binding_to_another_role_takes_the_place_of_the_one_before(world):
    world.put(**EXECUTORS)
    await world.look()
    other = world.operator(Means("liftbridge-spark:1", "other-executors"))
    await other.reconcile(KEY)
    binding = world.kube.look(ROLE_BINDINGS, "shop", "p-pipeline")
    assert binding["roleRef"]["name"] == "other-executors"
    assert (world.reason("Ready"), world.events.told) == ("Starting", [])


async def test_without_a_role_to_give_no_right_to_bindings_is_asked_for(world):
    world.put()
    world.kube.fail(ForbiddenError("no right"), verb="list", kind=ROLE_BINDINGS)
    other = world.operator(Means("liftbridge-spark:1", ""))
    await other.reconcile(KEY)
    assert world.reason("Ready") == "Starting"


async def test_changed_specification_of_a_single_run_runs_again(world):
    world.put(**ONCE)
    await world.look()
    before = world.workloads()
    world.put(**ONCE, image="other:2")
    await world.look()
    assert len(world.workloads()) == 1
    assert world.workloads() != before


async def test_suspending_a_single_run_leaves_what_it_runs(world):
    world.put(**ONCE)
    await world.look()
    ((_, name),) = world.workloads()
    template = world.kube.look(JOBS, "shop", name)["spec"]["template"]
    world.put(**ONCE, suspend=True)
    await world.look()
    live = world.kube.look(JOBS, "shop", name)
    assert (live["spec"]["suspend"], live["spec"]["template"]) == (True, template)
    assert world.reason("Ready") == "Suspended"


async def test_another_operator_leaves_a_single_run_as_it_began(world):
    world.put(**ONCE)
    await world.look(2)
    other = world.operator(Means("liftbridge-spark:2", "executors"))
    world.kube.writes.clear()
    await other.reconcile(KEY)
    assert [one for one in world.kube.writes if one.kind == JOBS] == []


async def test_change_that_was_asked_for_is_no_drift(world):
    world.put()
    await world.look()
    world.put(image="other:2")
    await world.look()
    assert world.events.told == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (DEPLOYMENTS, lambda live: live["spec"].update(replicas=3)),
        (DEPLOYMENTS, lambda live: live["spec"]["strategy"].update(type="RollingUpdate")),
        (
            DEPLOYMENTS,
            lambda live: live["spec"]["template"]["spec"]["containers"][0].update(image="other"),
        ),
        (
            DEPLOYMENTS,
            lambda live: live["spec"]["template"]["spec"]["containers"][0]["resources"][
                "limits"
            ].update(memory="9Gi"),
        ),
        (CONFIG_MAPS, lambda live: live["data"].update({"spark-defaults.conf": ""})),
    ],
)
async def test_what_somebody_else_changed_is_changed_back(world, kind, change):
    world.put()
    await world.look()
    before = world.kube.look(kind, "shop", "p-pipeline")
    world.kube.edit(kind, "shop", "p-pipeline", change)
    await world.look()
    after = world.kube.look(kind, "shop", "p-pipeline")
    assert after.get("spec") == before.get("spec")
    assert after.get("data") == before.get("data")
    assert world.events.told == [("p", EventReason.DRIFT_REPAIRED)]


async def test_amounts_in_the_words_of_the_api_server_are_the_same(world):
    def reworded(body):
        if body["kind"] == DEPLOYMENTS.kind:
            resources = body["spec"]["template"]["spec"]["containers"][0]["resources"]
            resources["requests"] = {"cpu": "500m", "memory": "1Gi"}

    world.kube.stores = reworded
    world.put(resources={"requests": {"cpu": "0.5", "memory": "1024Mi"}})
    await world.look()
    before = world.kube.changes
    await world.look()
    world.kube.writes.clear()
    await world.look(2)
    assert (world.kube.changes, world.kube.writes, world.events.told) == (before, [], [])


async def test_objects_of_somebody_else_are_never_touched(world):
    metadata = {"name": "p-pipeline", "namespace": "shop"}
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    world.kube.put({**other, "spec": {"replicas": 7}})
    world.put()
    await world.look()
    assert world.kube.look(DEPLOYMENTS, "shop", "p-pipeline")["spec"] == {"replicas": 7}
    assert world.reason("Ready") == "Conflict"
    assert world.reason("Progressing") == "Blocked"


@pytest.mark.parametrize("error", [ForbiddenError("quota"), InvalidError("no such zone")])
async def test_what_the_api_server_refuses_is_told_with_what_it_says(world, error):
    world.put(**HOURLY)
    world.kube.fail(error, verb="apply", kind=CRON_JOBS)
    await world.look()
    assert world.reason("Ready") == "Refused"
    assert str(error) in world.message("Ready")
    await world.look()
    assert world.reason("Ready") == "Scheduled"


# -- clusters -----------------------------------------------------------------------------------


async def test_without_its_cluster_what_runs_is_left_alone(world):
    world.put()
    await world.look()
    world.kube.remove(CLUSTERS, "shop", "c")
    world.kube.writes.clear()
    await world.look()
    assert world.reason("Ready") == "ClusterNotFound"
    assert world.workloads() == [("Deployment", "p-pipeline")]


@pytest.mark.parametrize(
    ("allowed", "reason"), [([], "NotAllowed"), (["shop"], "Starting"), (["*"], "Starting")]
)
async def test_cluster_of_another_namespace_lets_in_whom_it_names(world, allowed, reason):
    world.put_cluster("other", streams={"allowedNamespaces": allowed})
    world.put(clusterRef={"name": "c", "namespace": "other"})
    await world.look()
    assert world.reason("Ready") == reason


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(SilentError("x"), "ClusterUnreachable"), (CursorError("off"), "CursorUnknown")],
)
async def test_brokers_that_do_not_tell_leave_what_was_known(world, trouble, reason):
    world.put()
    await world.look()
    before = world.status["partitions"]
    world.brokers.trouble = trouble
    world.clock.seconds += LOOK_SECONDS
    await world.look()
    assert world.reason("CaughtUp") == reason
    assert world.status["partitions"] == before


async def test_stream_that_is_not_there_is_told(world):
    world.put(source={"streams": ["absent"]})
    await world.look()
    assert world.reason("CaughtUp") == "NotFound"


async def test_broker_that_has_answered_is_asked_first_when_connections_have_aged(world):
    world.put()
    await world.look()
    world.brokers.answered = "b-1:9292"
    world.clock.seconds += CONNECTED_SECONDS + LOOK_SECONDS
    await world.look()
    assert world.connections == ["", "b-1:9292"]


async def test_connections_are_made_anew_for_another_generation_and_closed_at_the_end(world):
    world.put()
    await world.look(2)
    assert len(world.connections) == 1
    world.put_cluster(replicas=3)
    await world.look()
    assert len(world.connections) == 2
    world.brokers.is_closed = False
    world.kube.remove(*KEY)
    assert await world.look() is None
    assert world.brokers.is_closed
    assert world.board.reasons == {}


# -- runs ---------------------------------------------------------------------------------------


async def test_missing_records_are_told_until_a_pod_has_run_for_long(world):
    world.put()
    world.put_pod(exit_code=5, message="orders/0: offsets 3 to 9 are gone")
    await world.look()
    assert world.reason("DataLoss") == "RecordsMissing"
    assert "offsets 3 to 9" in world.message("DataLoss")
    assert world.status["lastRun"]["exitCode"] == 5
    assert world.events.told == [("p", EventReason.RUN_FAILED)]
    await world.look()
    assert len(world.events.told) == 1  # told once
    world.kube.edit(
        PODS,
        "shop",
        "p-pipeline-x",
        lambda live: live["status"]["containerStatuses"][0].update(
            state={
                "running": {
                    "startedAt": (world.clock.wall() + timedelta(seconds=1)).strftime(
                        "%Y-%m-%dT%H:%M:%SZ"
                    )
                }
            }
        ),
    )
    world.up()
    world.clock.seconds += 400
    await world.look()
    assert (world.reason("DataLoss"), world.reason("Ready")) == ("None", "Running")


async def test_single_run_that_is_done_is_looked_at_no_more(world):
    world.put(**ONCE)
    await world.look()
    ((_, name),) = world.workloads()
    world.brokers.put("orders", 0, high_watermark=30, archived=29)
    done = [{"type": "Complete", "status": "True"}]
    world.kube.edit(JOBS, "shop", name, lambda live: live.update(status={"conditions": done}))
    assert await world.look() is None
    assert world.reason("Ready") == "Complete"
    assert world.status["partitions"][0]["archivedOffset"] == 29


async def test_failure_of_a_single_run_whose_pods_are_gone_is_told_once(world):
    world.put(**ONCE)
    await world.look()
    ((_, name),) = world.workloads()
    failed = [{"type": "Failed", "status": "True"}]
    world.kube.edit(JOBS, "shop", name, lambda live: live.update(status={"conditions": failed}))
    await world.look(3)
    assert world.reason("Ready") == "RunFailed"
    assert world.events.told == [("p", EventReason.RUN_FAILED)]


async def test_specification_that_cannot_be_read_changes_nothing(world):
    world.put()
    await world.look()
    world.put(later=1)
    world.kube.writes.clear()
    assert await world.look() is None
    assert {one.verb for one in world.kube.writes} == {"apply_status"}
    assert "only a newer operator knows spec.later" in world.message("Ready")


async def test_pipeline_that_goes_is_left_to_its_owner_references(world):
    world.put()
    await world.look()

    def going(live):
        live["metadata"]["deletionTimestamp"] = "2026-11-24T12:00:00Z"

    world.kube.edit(*KEY, going)
    world.kube.writes.clear()
    assert await world.look() is None
    assert world.kube.writes == []
