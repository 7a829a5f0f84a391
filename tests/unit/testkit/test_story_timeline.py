"""What is asked of the timeline of a story is answered by what was seen, and by nothing else."""

import math
from typing import Any

import pytest

from liftbridge_testkit.kube.gaps import Span
from liftbridge_testkit.kube.kstatus import is_waited_for, kstatus, stale_claims
from liftbridge_testkit.kube.timeline import (
    Down,
    Isr,
    Planned,
    Seen,
    Timeline,
    container_restarts,
    downs,
    isr_below,
    most_down,
    planned,
    reasons,
    reduced,
    restart_spans,
    stale_statuses,
    unexplained_waits,
    untrue_statuses,
)


def pod(
    at: float, number: int, *, ready: bool = True, going: bool = False, image: str = "b:1"
) -> Seen:
    metadata = {"uid": f"u{number}", "labels": {}} | (
        {"deletionTimestamp": "2026-11-21T12:00:00Z"} if going else {}
    )
    body = {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "n1", "containers": [{"name": "broker", "image": image}]},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "broker", "restartCount": number}],
            "initContainerStatuses": [{"name": "nats", "restartCount": 2 * number}],
        },
    }
    return Seen(at, "Pod", f"c-{number}", reduced(body))


def gone(at: float, number: int) -> Seen:
    return Seen(at, "Pod", f"c-{number}", None)


def replicas(at: float, count: int) -> Seen:
    body = {"kind": "StatefulSet", "metadata": {"generation": 1}, "spec": {"replicas": count}}
    return Seen(at, "StatefulSet", "c", reduced(body))


def told(
    at: float,
    *,
    generation: int = 1,
    observed: int = 1,
    ready: str = "True",
    reason: str = "Reconciled",
    of: int | None = None,
    waits: list[dict[str, str]] | None = None,
    **spec: Any,
) -> Seen:
    condition: dict[str, Any] = {"type": "Ready", "status": ready, "reason": reason}
    condition |= {"observedGeneration": of if of is not None else observed}
    body = {
        "kind": "LiftbridgeCluster",
        "metadata": {"generation": generation, "name": "c"},
        "spec": {"replicas": 2, "nats": {}} | spec,
        "status": {
            "observedGeneration": observed,
            "conditions": [condition],
            "waits": waits,
            "brokers": [{"id": "c-0"}],
        },
    }
    return Seen(at, "LiftbridgeCluster", "c", reduced(body))


def timeline(*seen: Seen) -> Timeline:
    return Timeline("c", sorted(seen, key=lambda one: one.at))


UP = (replicas(0, 2), pod(1, 0), pod(1, 1))


def test_broker_is_down_from_its_going_until_it_is_ready_again() -> None:
    found = downs(
        timeline(*UP, pod(5, 0, going=True), gone(6, 0), pod(7, 0, ready=False), pod(9, 0))
    )
    assert found == [Down("c-0", 5, 9)]


def test_broker_that_was_never_ready_or_left_for_good_is_not_down() -> None:
    grown = [replicas(4, 3), pod(5, 2, ready=False), pod(6, 2)]
    assert downs(timeline(*UP, *grown)) == []
    # The watch of the set may lag behind that of the pods.
    shrunk = [pod(8, 2, going=True), replicas(9, 2), gone(10, 2)]
    assert downs(timeline(*UP, *grown, *shrunk)) == []
    assert downs(timeline(*UP, *grown, pod(8, 2, going=True))) == [Down("c-2", 8, math.inf)]


def test_pods_of_others_are_passed_over() -> None:
    other = [pod(2, 0)._replace(name="nats-0"), pod(3, 0, going=True)._replace(name="nats-0")]
    assert downs(timeline(*UP, *other)) == []


def test_brokers_that_are_down_at_once_are_named() -> None:
    found = [Down("c-0", 5, 9), Down("c-1", 8, 12), Down("c-2", 12, 13)]
    assert most_down(found) == ["c-0", "c-1"]
    assert most_down(found, begin=9) == ["c-1"]
    assert most_down(found, begin=8.5) == ["c-0", "c-1"]
    assert most_down([]) == []


def test_restarts_share_the_time_of_a_roll() -> None:
    found = [Down("c-2", 5, 9), Down("c-0", 15, 19), Down("c-1", 50, 60)]
    assert restart_spans(found, 2, 30) == [Span("c-2", 2, 9), Span("c-0", 9, 30)]
    assert restart_spans(found, 61, 70) == []
    # One that does not come back ends with the roll.
    assert restart_spans([Down("c-2", 5, math.inf)], 2, 30) == [Span("c-2", 2, 30)]


def test_few_replicas_in_sync_are_told_within_intervals() -> None:
    story = timeline(*UP)
    story.isr = [
        Isr(1, {"s/0": 3, "s/1": 3}, ()),
        Isr(5, {"s/0": 2, "s/1": 1}, ("s/1",)),
        Isr(9, {"s/0": 1, "s/1": 3}, ()),
    ]
    spans = [Span("roll", 4, 8)]
    assert isr_below(story, 2, spans) == ["roll: s/1 had 1 in sync at 5.0"]
    assert isr_below(story, 3, [Span("all", 0, 2)]) == []


def test_containers_that_were_started_again_are_counted() -> None:
    assert container_restarts(timeline(*UP)) == {"c-1/broker": 1, "c-1/nats": 2}


def test_reasons_are_told_in_order() -> None:
    story = timeline(
        told(1, ready="False", reason="Bootstrapping"),
        told(2, ready="False", reason="Bootstrapping"),
        told(3),
    )
    assert reasons(story, "Ready") == [("False", "Bootstrapping"), ("True", "Reconciled")]
    assert reasons(story, "Stalled") == []


# -- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "status", "is_over"),
    [
        (told(1), "Current", True),
        (told(1, generation=2), "InProgress", False),
        (told(1, ready="False"), "InProgress", False),
        (told(1, generation=2, observed=2, of=1), "Current", False),
        (told(1, generation=2, observed=1, of=2), "InProgress", True),
    ],
)
def test_tools_take_a_status_as_their_rules_say(seen: Seen, status: str, *, is_over: bool) -> None:
    assert seen.body is not None
    assert kstatus(seen.body) == status
    assert is_waited_for(seen.body) is is_over


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ({"metadata": {"generation": 1, "deletionTimestamp": "t"}}, "Terminating"),
        ({"status": {"conditions": [{"type": "Stalled", "status": "True"}]}}, "Failed"),
        ({"status": {"conditions": [{"type": "Reconciling", "status": "True"}]}}, "InProgress"),
        ({"status": {"observedGeneration": -1}}, "InProgress"),
        ({"status": {}}, "Current"),
    ],
)
def test_kstatus_follows_its_rules(extra: dict[str, Any], status: str) -> None:
    assert kstatus({"metadata": {"generation": 1}} | extra) == status


def test_status_that_is_done_for_another_generation_is_told() -> None:
    assert stale_statuses(timeline(told(1), told(2, generation=2), told(3, ready="False"))) == []
    (early,) = stale_statuses(timeline(told(1, generation=2, observed=2, of=1)))
    assert early == "LiftbridgeCluster c, generation 2: ready by a condition of 1"
    (late,) = stale_statuses(timeline(told(1, generation=2, observed=1, of=2)))
    assert late == "LiftbridgeCluster c, generation 2: done by a status of 1"
    assert stale_claims({"metadata": {"generation": 1}, "status": {}}) == [
        "generation 1: current without a condition Ready"
    ]


def test_cluster_that_is_current_before_its_pods_are_is_told() -> None:
    assert untrue_statuses(timeline(*UP, told(2))) == []
    assert untrue_statuses(timeline(replicas(0, 2), pod(1, 0), told(2))) != []
    assert untrue_statuses(timeline(*UP, told(2, image="b:2"))) != []
    rolled = [pod(5, 0, image="b:2"), pod(6, 1, image="b:2"), told(7, image="b:2")]
    assert untrue_statuses(timeline(*UP, *rolled)) == []
    # What was so a moment before, as far as the operator could know.
    assert untrue_statuses(timeline(*UP, pod(4, 0, ready=False), told(6))) == []
    assert untrue_statuses(timeline(*UP, pod(4, 0, ready=False), told(40))) != []


def test_cluster_that_stays_current_while_a_pod_goes_is_not_told_again() -> None:
    story = timeline(*UP, told(2), pod(30, 0, ready=False), told(60))
    assert untrue_statuses(story) == []


def test_first_plan_of_an_interval_is_told() -> None:
    def with_plan(at: float, *pods: str, generation: int = 2) -> Seen:
        seen = told(at, generation=2, observed=2, ready="False")
        assert seen.body is not None
        steps = [{"action": "Restart", "object": pod, "cause": "spec"} for pod in pods]
        seen.body["status"]["plan"] = {"steps": steps, "generation": generation}
        return seen

    story = timeline(
        with_plan(1, "c-9"),
        told(3, generation=2, ready="False"),
        with_plan(4),
        with_plan(5, "c-8", generation=1),
        with_plan(6, "c-0", "c-1"),
        with_plan(7, "c-1"),
    )
    story.marks = [Span("roll", 2, 8), Span("calm", 20, 30)]
    both = frozenset({("Restart", "c-0"), ("Restart", "c-1")})
    assert planned(story, "roll") == Planned(6, both)
    assert planned(story, "calm") == Planned(math.inf, frozenset())


def test_long_silence_is_told() -> None:
    waiting = [{"what": "GateReading"}]
    silent = [told(1, ready="False"), told(90)]
    assert len(unexplained_waits(timeline(*silent))) == 1
    assert unexplained_waits(timeline(told(1, ready="False", waits=waiting), told(90))) == []
    assert unexplained_waits(timeline(told(1, ready="False"), told(30))) == []
    assert unexplained_waits(timeline(told(1), told(90, ready="False"))) == []
