"""What is told of a pipeline, from what was seen of its workload, its pods and its archive."""

from dataclasses import replace

import pytest

from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import PipelineConditionType as Type
from liftbridge_operator.model.catalogue.names import Reason
from liftbridge_operator.model.pipeline import PipelineSpec
from liftbridge_operator.pipelines.conditions import Progress, Seen, conditions
from liftbridge_operator.pipelines.observation import Ended, Run, Workload, run_of, workload_of
from liftbridge_operator.pipelines.positions import Place, Position
from liftbridge_testkit.pipelines_memory import ARCHIVE

CONTINUOUS = PipelineSpec.model_validate(ARCHIVE)
ONCE = PipelineSpec.model_validate(ARCHIVE | {"mode": "Once"})
SCHEDULED = PipelineSpec.model_validate(
    ARCHIVE | {"mode": "Scheduled", "schedule": {"cron": "@hourly"}}
)
METRICS = PipelineSpec.model_validate(ARCHIVE | {"type": "Metrics", "mode": "Once"})
SUSPENDED = PipelineSpec.model_validate(ARCHIVE | {"suspend": True})

UP = Workload("Deployment/p-pipeline", is_current=True, active=1)
DOWN = replace(UP, active=0)
JOB = Workload("Job/p-pipeline-1", is_current=True, active=1)
DONE = replace(JOB, active=0, is_complete=True)
FAILED = replace(JOB, active=0, is_failed=True)
CRON = Workload("CronJob/p-pipeline", is_current=True, active=0)

RUNNING = Run("p-1", "2026-11-24T12:00:00Z", None, "")
PENDING = replace(RUNNING, began="")
STUCK = replace(PENDING, stuck="ImagePullBackOff: not there")
BROKEN = replace(PENDING, ended=Ended("2026-11-24T11:00:00Z", 4, "timed out"))
LOST = replace(PENDING, ended=Ended("2026-11-24T11:00:00Z", 5, "offsets 3 to 9 are gone"))
ENDED = replace(PENDING, ended=Ended("2026-11-24T11:00:00Z", 0, ""))

FURTHER = Progress({Place("orders", 0): Position(0, 9, 8)}, is_caught_up=True)
BEHIND = Progress({Place("orders", 0): Position(0, 9, 2)})
REST = Seen(CONTINUOUS, None, UP, (RUNNING,), FURTHER)


def unknown(reason, **values):
    return Progress(unknown=Claim(reason, values))


def blocked(reason, **values):
    obstacle = Claim(reason, values)
    return Seen(CONTINUOUS, obstacle, None, (), unknown(Reason.NOT_FOUND, stream="orders"))


SEEN = {
    "at rest": REST,
    "behind": replace(REST, progress=BEHIND),
    "behind between two runs": replace(REST, spec=SCHEDULED, workload=CRON, progress=BEHIND),
    "behind after a single run": replace(REST, spec=ONCE, workload=DONE, progress=BEHIND),
    "behind and suspended": replace(REST, spec=SUSPENDED, workload=DOWN, progress=BEHIND),
    "starting": replace(REST, workload=DOWN, runs=(PENDING,)),
    "stuck": replace(REST, workload=DOWN, runs=(STUCK,)),
    "failing": replace(REST, workload=DOWN, runs=(BROKEN,)),
    "records missing": replace(REST, workload=DOWN, runs=(LOST,)),
    "recovered": replace(REST, runs=(replace(LOST, began="x"),), is_recovered=True),
    "suspended": replace(REST, spec=SUSPENDED, workload=DOWN, runs=()),
    "job under way": replace(REST, spec=ONCE, workload=JOB),
    "job begins": replace(REST, spec=ONCE, workload=JOB, runs=(PENDING,)),
    "job done": replace(REST, spec=ONCE, workload=DONE, runs=(ENDED,)),
    "job done at the second try": replace(REST, spec=ONCE, workload=DONE, runs=(ENDED, BROKEN)),
    "job failed": replace(REST, spec=ONCE, workload=FAILED, runs=(BROKEN,)),
    "job failed, pods gone": replace(REST, spec=ONCE, workload=FAILED, runs=()),
    "waits for its moment": replace(REST, spec=SCHEDULED, workload=CRON, runs=(ENDED,)),
    "at its moment": replace(REST, spec=SCHEDULED, workload=replace(CRON, active=1)),
    "metrics": replace(REST, spec=METRICS, workload=JOB, progress=Progress()),
    "no cluster": blocked(Reason.CLUSTER_NOT_FOUND, cluster="shop/c"),
    "not let in": blocked(Reason.NOT_ALLOWED, cluster="shop/c", namespace="n"),
    "wrong": blocked(Reason.INVALID_SPEC, detail="x"),
    "unreadable": replace(blocked(Reason.INVALID_SPEC, detail="x"), spec=None),
    "foreign": blocked(Reason.CONFLICT, object="Deployment/p-pipeline"),
    "contested": blocked(Reason.CONTESTED, object="Job/p", detail="x changes it repeatedly"),
    "refused": blocked(Reason.REFUSED, object="Job/p", detail="quota"),
    "no stream": replace(REST, progress=unknown(Reason.NOT_FOUND, stream="orders")),
    "no stream, by a schedule": replace(
        REST, spec=SCHEDULED, workload=CRON, progress=unknown(Reason.NOT_FOUND, stream="orders")
    ),
    "no cursors": replace(REST, progress=unknown(Reason.CURSOR_UNKNOWN, cursor="c", detail="off")),
    "silent": replace(REST, progress=unknown(Reason.CLUSTER_UNREACHABLE, cluster="c", detail="x")),
}
CATALOGUE = load_catalogue()


def told(name):
    return {kind: claim.reason for kind, claim in conditions(SEEN[name]).items()}


@pytest.mark.parametrize("name", SEEN)
def test_every_condition_is_told_with_what_its_text_needs(name):
    found = conditions(SEEN[name])
    assert list(found) == [
        Type.READY,
        Type.PROGRESSING,
        Type.DEGRADED,
        Type.CAUGHT_UP,
        Type.DATA_LOSS,
    ]
    for kind, claim in found.items():
        spec = CATALOGUE.condition("StreamPipeline", kind).reasons[claim.reason]
        assert spec.text.fill(claim.values)


def test_every_reason_is_found_from_something_seen():
    produced = {(kind, reason) for name in SEEN for kind, reason in told(name).items()}
    known = {
        (spec.type, reason)
        for spec in CATALOGUE.of_resource("StreamPipeline")
        for reason in spec.reasons
        if reason != "NotReconciled"
    }
    assert known - {(str(kind), str(reason)) for kind, reason in produced} == set()


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("at rest", Type.READY, Reason.RUNNING),
        ("behind", Type.CAUGHT_UP, Reason.BEHIND),
        ("starting", Type.READY, Reason.STARTING),
        ("stuck", Type.DEGRADED, Reason.POD_STUCK),
        ("failing", Type.READY, Reason.RUN_FAILED),
        ("failing", Type.DATA_LOSS, Reason.NONE),
        ("records missing", Type.DATA_LOSS, Reason.RECORDS_MISSING),
        ("recovered", Type.DATA_LOSS, Reason.NONE),
        ("recovered", Type.READY, Reason.RUNNING),
        ("suspended", Type.READY, Reason.SUSPENDED),
        ("job done at the second try", Type.DEGRADED, Reason.NONE),
        ("job failed, pods gone", Type.READY, Reason.RUN_FAILED),
        ("waits for its moment", Type.READY, Reason.SCHEDULED),
        ("at its moment", Type.PROGRESSING, Reason.RUN_UNDER_WAY),
        ("metrics", Type.CAUGHT_UP, Reason.NOT_MEASURED),
        ("behind between two runs", Type.CAUGHT_UP, Reason.NOT_MEASURED),
        ("behind after a single run", Type.CAUGHT_UP, Reason.NOT_MEASURED),
        ("behind and suspended", Type.CAUGHT_UP, Reason.NOT_MEASURED),
        ("no stream, by a schedule", Type.CAUGHT_UP, Reason.NOT_FOUND),
        ("no cluster", Type.PROGRESSING, Reason.BLOCKED),
    ],
)
def test_what_is_seen_is_told(name, kind, reason):
    assert told(name)[kind] == reason


# -- objects as values --------------------------------------------------------------------------


def pod(state=None, last=None, conditions_=()):
    status = {"name": "spark", "state": state or {}, "lastState": last or {}}
    return {
        "metadata": {"name": "p-1"},
        "status": {"containerStatuses": [status], "conditions": list(conditions_)},
    }


def test_run_that_was_started_again_keeps_its_last_end():
    ended = {"exitCode": 5, "finishedAt": "t", "message": "line one\nline two\n"}
    run = run_of(pod({"running": {"startedAt": "u"}}, {"terminated": ended}))
    assert run == Run("p-1", "u", Ended("t", 5, "line one line two"), "")


def test_run_that_waits_for_a_person_is_stuck():
    waiting = {"reason": "ErrImagePull", "message": "not there"}
    assert run_of(pod({"waiting": waiting})).stuck == "ErrImagePull: not there"
    assert run_of(pod({"waiting": {"reason": "ContainerCreating"}})).stuck == ""
    away = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    assert run_of(pod(conditions_=[away])).stuck == "Unschedulable: m"


def test_long_message_keeps_its_end():
    ended = {"exitCode": 1, "finishedAt": "t", "message": "x" * 1_000 + " the cause"}
    found = run_of(pod({"terminated": ended})).ended
    assert found.message.startswith("…")
    assert found.message.endswith("the cause")
    assert len(found.message) < 500


@pytest.mark.parametrize("status", [{}, {"containerStatuses": None}, {"conditions": None}])
def test_pod_without_a_status_is_one_that_does_not_run_yet(status):
    assert run_of({"metadata": {"name": "p-1"}, "status": status}) == Run("p-1", "", None, "")


@pytest.mark.parametrize(
    ("status", "is_current", "active"),
    [
        ({}, False, 0),
        ({"observedGeneration": 2, "updatedReplicas": 1, "readyReplicas": 1}, True, 1),
        ({"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1}, False, 1),
        ({"observedGeneration": 2, "readyReplicas": 1}, True, 0),
    ],
)
def test_deployment_is_current_once_its_controller_has_seen_it(status, is_current, active):
    metadata = {"name": "p-pipeline", "generation": 2}
    found = workload_of({"kind": "Deployment", "metadata": metadata, "status": status})
    assert found == Workload("Deployment/p-pipeline", is_current, active)
