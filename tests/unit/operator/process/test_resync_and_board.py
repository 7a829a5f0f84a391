"""Nothing is forgotten between two lists, and metrics tell what was told last."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest
from prometheus_client import generate_latest

from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.kinds import (
    CLUSTERS,
    CONFIG_MAPS,
    JOBS,
    PIPELINES,
    PODS,
    STREAMS,
)
from liftbridge_operator.process.metrics import ConditionBoard, Metrics, load_metrics
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.process.resync import RETRY_S, SPREAD, Resync
from liftbridge_operator.process.watches import Owners, key_of
from liftbridge_testkit.kube.clock import ManualClock
from liftbridge_testkit.kube.memory import MemoryKube

A, B = Key(CLUSTERS, "n", "a"), Key(CLUSTERS, "m", "b")
INTERVAL_S = 600.0


class World:
    def __init__(self, *namespaces):
        self.kube = MemoryKube()
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.requested = []
        self.resync = Resync(
            self.kube,
            self,
            kinds=(CLUSTERS, STREAMS),
            namespaces=namespaces,
            interval_s=INTERVAL_S,
            clock=self.clock,
            rng=Random(1),
            metrics=self.metrics,
        )

    def request(self, key, after_s=0.0):
        self.requested.append((key, after_s))

    def put(self, key):
        metadata = {"name": key.name, "namespace": key.namespace}
        named = {"apiVersion": key.kind.api_version, "kind": key.kind.kind}
        self.kube.put(named | {"metadata": metadata, "spec": {}})

    def taken(self):
        keys = [key for key, _ in self.requested]
        self.requested.clear()
        return keys


@asynccontextmanager
async def running(world):
    task = asyncio.get_running_loop().create_task(world.resync.run())
    try:
        await world.clock.advance()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_resources_are_asked_for_at_once_and_later_spread():
    world = World()
    world.put(A)
    world.put(B)
    async with running(world):
        assert world.resync.is_complete
        assert world.requested == [(B, 0.0), (A, 0.0)]
        world.requested.clear()
        await world.clock.advance(INTERVAL_S)
        assert {key for key, _ in world.requested} == {A, B}
        assert all(0 < after <= SPREAD * INTERVAL_S for _, after in world.requested)


async def test_resource_that_vanished_unseen_gets_one_more_pass():
    world = World()
    world.put(A)
    async with running(world):
        world.taken()
        world.kube.remove(CLUSTERS, "n", "a")
        await world.clock.advance(INTERVAL_S)
        assert world.taken() == [A]
        await world.clock.advance(INTERVAL_S)
        assert world.taken() == []


async def test_only_the_given_namespaces_are_listed():
    world = World("n")
    world.put(A)
    world.put(B)
    async with running(world):
        assert world.taken() == [A]


async def test_hastened_list_comes_at_once_and_is_not_spread():
    world = World()
    world.put(A)
    async with running(world):
        world.taken()
        world.resync.hasten()
        await world.clock.advance(1.0)
        assert world.requested == [(A, 0.0)]
        world.taken()
        await world.clock.advance(INTERVAL_S - 2)
        assert world.taken() == []
        await world.clock.advance(2)
        assert world.taken() == [A]


async def test_failed_list_is_tried_again_soon():
    world = World()
    world.put(A)
    world.kube.fail(UnavailableError("away"), verb="list", kind=STREAMS)
    async with running(world):
        assert not world.resync.is_complete
        await world.clock.advance(RETRY_S)
        assert world.resync.is_complete
    labels = {"kind": "Stream", "result": "failed"}
    name = "liftbridge_operator_resyncs_total"
    assert world.metrics.registry.get_sample_value(name, labels) == 1


@pytest.mark.parametrize(
    ("kind", "labels", "key"),
    [
        (CLUSTERS, {}, Key(CLUSTERS, "n", "x")),
        (STREAMS, {"liftbridge.io/cluster": "c"}, Key(STREAMS, "n", "x")),
        (PODS, {"liftbridge.io/cluster": "c"}, Key(CLUSTERS, "n", "c")),
        (CONFIG_MAPS, {}, None),
        (PIPELINES, {}, Key(PIPELINES, "n", "x")),
        (JOBS, {"liftbridge.io/pipeline": "p"}, Key(PIPELINES, "n", "p")),
        (JOBS, {"liftbridge.io/cluster": "c"}, None),
    ],
)
def test_changes_lead_to_the_resource_they_are_part_of(kind, labels, key):
    assert key_of(kind, "n", "x", labels) == key


def test_who_takes_a_label_away_changes_what_the_label_named():
    owners = Owners()
    place = (CONFIG_MAPS, "n", "a-identity")
    assert owners.of(place, A) == (A,)
    assert owners.of(place, A) == (A,)
    assert owners.of(place, None) == (A,)
    assert owners.of(place, None) == ()
    assert owners.of(place, A) == (A,)
    assert owners.of(place, B) == (B, A)
    assert owners.of(place, B, is_gone=True) == (B,)
    assert owners.of(place, None) == ()


def condition(kind, status, reason):
    return {"type": kind, "status": status, "reason": reason}


def test_conditions_are_counted_and_told_of_each_cluster():
    metrics = Metrics()
    board = ConditionBoard(metrics)
    board.set_conditions(A, [condition("Ready", "True", "Reconciled")])
    board.set_conditions(B, [condition("Ready", "False", "Blocked")])
    for name in "xyz":
        board.set_conditions(Key(STREAMS, "n", name), [condition("Ready", "True", "Reconciled")])
    board.set_conditions(B, [condition("Ready", "True", "Reconciled")])
    board.forget(A)
    board.forget(A)
    value = metrics.registry.get_sample_value
    told = {"type": "Ready", "status": "True", "reason": "Reconciled"}
    name = "liftbridge_operator_resources"
    assert value(name, {"kind": "Stream", **told}) == 3
    assert value(name, {"kind": "LiftbridgeCluster", **told}) == 1
    name = "liftbridge_operator_cluster_condition"
    assert value(name, {"namespace": "m", "name": "b", **told}) == 1
    assert value(name, {"namespace": "n", "name": "a", **told}) is None


def test_metrics_have_values_from_closed_lists_alone():
    metrics = Metrics()
    metrics.count("passes_total", "Stream", "done")
    metrics.observe("pass_seconds", 0.2, "Stream")
    text = generate_latest(metrics.registry).decode()
    for spec in load_metrics().values():
        assert set(spec.values) <= set(spec.labels)
        assert spec.doc.endswith(".")
        assert f"# HELP {spec.full_name}" in text or spec.source == "read"
    assert 'liftbridge_operator_passes_total{kind="Stream",result="done"} 1.0' in text
    with pytest.raises(AssertionError):
        metrics.read("passes_total", list)
