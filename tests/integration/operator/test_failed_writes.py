"""A write that the API server fails at once (5xx, 429) is named with all it said, and tried again.

Each kind of object that the operator writes, with each such status, whether or not the write was
done all the same, by the client that a real API server has.
"""

import itertools
from contextlib import asynccontextmanager
from random import Random

import pytest

from liftbridge_operator.kube.client import Bounds, KubeClient, connect
from liftbridge_operator.kube.errors import ConflictError, KubeError
from liftbridge_operator.kube.kinds import CLAIMS, PODS, SETS
from liftbridge_testkit.kube.http import ApiOverHttp
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld
from liftbridge_testkit.operator_sim.secured import (
    KINDS,
    MONITORS,
    SPEC,
    disturb,
    lose,
    secret_store,
)

MADE_BY_OTHERS = (CLAIMS, PODS)
SAID = "the store of the server is out of order"
STATUSES = (429, 500, 502, 503, 504)
MINUTE_PASSES = 24
PAUSE_MS = 60_000
TRIES_MAX = 20
"""Requests for one object in half a minute: four attempts at once, after 5 and after 15 seconds."""
BOUNDS = Bounds(request_s=5.0, attempts_max=4, silence_s=60.0)


class World(ReconciledWorld):
    """Over HTTP on request, with real Secrets."""

    api = None
    is_begun = False

    def restart(self, kube=None):
        if not self.is_begun and kube is None:
            return super().restart(kube)
        self.issue = secret_store(self, kube)
        return super().restart(kube)

    async def until(self, condition, passes_max=400):
        await super().until(condition, passes_max)

    async def go_on(self, passes=1):
        """As the dispatcher: a pass that ends by an error is followed by another one."""
        again = None
        for _ in range(passes):
            self.tick()
            self.passes += 1
            try:
                again = await self.reconciler.reconcile(self.key)
            except KubeError as error:
                self.ended.append(error)
        return again

    def __init__(self):
        self.ended = []
        super().__init__(SPEC)
        self.is_begun = True
        self.restart()

    @asynccontextmanager
    async def over_http(self, folder, monkeypatch):
        told = self.kube.on_change

        async def sleep(_seconds):
            return None

        async with ApiOverHttp(self.kube) as self.api:
            self.kube.on_change = told
            monkeypatch.setenv("KUBECONFIG", str(self.api.write_kubeconfig(folder)))
            async with connect(in_flight_max=8) as connections:
                client = KubeClient(
                    connections, fence=None, rng=Random(1), bounds=BOUNDS, sleep=sleep
                )
                self.restart(client)
                yield
        self.restart()

    def said(self, kind):
        for one in self.status["conditions"]:
            if one["type"] == kind:
                return one["message"]
        return ""

    def objects(self):
        return {(kind, name) for kind in KINDS for name in self.kube.names_of(kind)}


async def ready_world():
    world = World()
    await world.until_ready()
    await world.go_on(8)
    assert world.is_ready
    return world


CASES = [(kind, disturb) for kind in KINDS] + [
    (kind, lose) for kind in KINDS if kind not in (*MADE_BY_OTHERS, SETS)
]


def asked_of(world, kind):
    """Names of objects of a kind of which writes were asked for."""
    return {
        one.body["metadata"]["name"] if one.method == "POST" else one.path.rpartition("/")[2]
        for one in world.api.writes
        if f"/{kind.plural}" in one.path
    }


def is_named(world, kind, status):
    told = "MonitoringReady" if kind in MONITORS else "Ready"
    said = world.said(told)
    return (
        world.condition(told)[0] == "False"
        and f"/{kind.plural}/" in said
        and any(f"/{name}" in said for name in asked_of(world, kind))
        and f"HTTP {status}" in said
        and SAID in said
    )


async def until_well(world, before):
    """Nobody does anything, and all is as it was."""
    world.api.fail_all("", 0)
    world.stage.now += PAUSE_MS
    await world.until_ready()
    await world.until(lambda: world.condition("MonitoringReady")[0] == "True", MINUTE_PASSES)
    assert world.objects() == before
    assert world.condition("Stalled") == ("", "")


PLAYED = [(*case, status) for case, status in zip(CASES, itertools.cycle(STATUSES), strict=False)]
IDS = [f"{need.__name__} {kind.kind} {status}" for kind, need, status in PLAYED]


@pytest.mark.parametrize(("kind", "need", "status"), PLAYED, ids=IDS)
async def test_failed_write_is_named_while_it_lasts_and_over_with_it(
    kind, need, status, tmp_path, monkeypatch
):
    world = await ready_world()
    before = world.objects()
    async with world.over_http(tmp_path, monkeypatch):
        await world.go_on(2)
        world.api.requests.clear()
        world.api.fail_all(f"/{kind.plural}", status, SAID)
        need(world, kind)
        await world.go_on(3)
        for _ in range(8):
            assert is_named(world, kind, status), (world.said("Ready"), world.ended)
            await world.go_on()
        assert "already exists" not in str(world.status)
        assert len(world.api.writes) < TRIES_MAX * len(asked_of(world, kind))
        await until_well(world, before)
    assert world.ended == []


@pytest.mark.parametrize(("kind", "need", "status"), PLAYED, ids=IDS)
async def test_write_that_was_done_though_it_failed_is_not_done_again(
    kind, need, status, tmp_path, monkeypatch
):
    world = await ready_world()
    before = world.objects()
    async with world.over_http(tmp_path, monkeypatch):
        await world.go_on(2)
        world.api.fail_all(f"/{kind.plural}", status, SAID, is_done=True)
        need(world, kind)
        await world.go_on(4)
        assert "already exists" not in str(world.status)
        await until_well(world, before)
    # What was written by the first attempt is another object to the second one.
    assert {type(one) for one in world.ended} <= {ConflictError}
