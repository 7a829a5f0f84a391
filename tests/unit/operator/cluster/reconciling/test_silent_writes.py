"""A write that hangs, as when an admission webhook does, is named and holds up nothing else.

Each kind of object that the operator writes for a cluster, with each way in which no usable answer
comes while reads are answered.
"""

import itertools

import pytest

from liftbridge_operator.kube.answers import error_of
from liftbridge_operator.kube.errors import UnansweredError, UnavailableError
from liftbridge_operator.kube.kinds import (
    CLAIMS,
    CLUSTERS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
)
from liftbridge_testkit.operator_sim.reconciled import ReconciledWorld
from liftbridge_testkit.operator_sim.secured import (
    KINDS,
    MARK,
    MONITORS,
    SPEC,
    disturb,
    lose,
    secret_store,
)

MINUTE_PASSES = 24
WORDS = 'failed calling webhook "rule.example": Post "https://rule": context deadline exceeded'
WAYS = {
    "gateway": (504, "Timeout: request did not complete within 34s", "NoAnswer"),
    "webhook": (500, f"Internal error occurred: {WORDS}", "AdmissionDenied"),
    "nothing": (0, "TimeoutError", "NoAnswer"),
}
"""Status and words, and the reason by which they are told."""


class World(ReconciledWorld):
    """With somebody who lets writes hang, and with real Secrets where it is about them."""

    def __init__(self, kind):
        self.has_secrets = kind == SECRETS
        super().__init__(SPEC)

    def restart(self, kube=None):
        if not self.has_secrets:
            return super().restart(kube)
        self.issue = secret_store(self)
        return super().restart(kube)

    def hang(self, way, kind):
        """Writes of a kind hang; their names. All but the first of a pass are not sent."""
        status, words, _ = WAYS[way]
        asked = []
        hung = set()

        def admit(verb, body):
            if body["kind"] != kind.kind:
                return
            asked.append(body["metadata"]["name"])
            message = error_of(verb, asked[-1], status, words.encode()).message
            is_sent = self.passes not in hung
            hung.add(self.passes)
            raise UnansweredError(message, status=status, is_sent=is_sent)

        self.kube.admit = admit
        return asked


def marks(body):
    return body["metadata"]["labels"]


async def ready_world(kind):
    world = World(kind)
    await world.until_ready()
    await world.go_on(8)
    assert world.is_ready
    return world


async def test_all_kinds_that_are_written_are_tried():
    world = await ready_world(SECRETS)
    world.annotate(**{"restart-pods": world.status["brokers"][1]["podUID"]})
    await world.until(lambda: "lastRestart" in world.status["brokers"][1])
    for kind in (PODS, CLAIMS):
        disturb(world, kind)
    await world.go_on(2)
    assert {one.kind for one in world.kube.writes} == {CLUSTERS, *KINDS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
async def test_write_that_hangs_is_named_and_the_pass_goes_on(kind, way):
    world = await ready_world(kind)
    other = NETWORK_POLICIES if kind == SERVICES else SERVICES
    before = world.kube.names_of(other)
    asked = world.hang(way, kind)
    disturb(world, kind)
    lose(world, other)
    await world.go_on(2)
    reason = WAYS[way][2]
    assert asked != []
    assert world.kube.names_of(other) == before
    told = ("MonitoringReady", "Refused") if kind in MONITORS else ("Ready", reason)
    assert world.condition(told[0]) == ("False", told[1])
    said = next(one["message"] for one in world.status["conditions"] if one["type"] == told[0])
    assert any(name in said for name in {*asked, "Secret of the cluster", kind.qualified})
    await world.go_on(MINUTE_PASSES)
    assert world.kube.names_of(other) == before
    assert world.condition(told[0]) == ("False", told[1])
    world.kube.admit = None
    await world.until_ready()
    await world.until(lambda: world.condition("MonitoringReady")[0] == "True", 6 * MINUTE_PASSES)
    assert world.is_ready
    assert world.condition("Stalled") == ("", "")


@pytest.mark.parametrize("way", WAYS)
async def test_pod_whose_end_hangs_is_named_and_restarted_later(way):
    world = await ready_world(PODS)
    world.annotate(**{"restart-pods": world.status["brokers"][1]["podUID"]})
    world.hang(way, PODS)
    await world.until(
        lambda: world.condition("Stalled") == ("True", WAYS[way][2]), 2 * MINUTE_PASSES
    )
    lose(world, SERVICES)
    await world.go_on(2)
    assert world.kube.names_of(SERVICES) != []
    world.kube.admit = None
    await world.until(lambda: "lastRestart" in world.status["brokers"][1], 6 * MINUTE_PASSES)
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")


@pytest.mark.parametrize("kind", [one for one in KINDS if one != SECRETS], ids=lambda one: one.kind)
async def test_status_that_hangs_ends_the_pass_by_its_name_and_all_else_is_brought(kind):
    world = await ready_world(kind)
    whole = {kind: world.kube.names_of(kind) for kind in KINDS}
    world.edit(lambda spec: spec.update(disruption={"reportAfter": "11m"}))  # there is news to say
    asked = world.hang("nothing", CLUSTERS)
    disturb(world, kind)
    for _ in range(4):
        with pytest.raises(UnansweredError, match="apply c: TimeoutError"):
            await world.go_on()
    assert set(asked) == {"c"}
    assert not [one for one in world.kube.all_of(kind) if MARK not in marks(one)]
    world.kube.admit = None
    await world.go_on()
    assert world.condition("Stalled") == ("True", "NoAnswer")
    assert "LiftbridgeCluster/c: apply c: TimeoutError" in str(world.status["conditions"])
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")
    assert {kind: world.kube.names_of(kind) for kind in KINDS} == whole


class LeavingKube:
    """The API server is there for so many calls, and then away for reads and writes alike."""

    def __init__(self, kube):
        self.kube = kube
        self.left = None

    def __getattr__(self, name):
        call = getattr(self.kube, name)

        async def answered(*args, **kwargs):
            if self.left == 0:
                raise UnavailableError("connection refused")
            if self.left is not None:
                self.left -= 1
            return await call(*args, **kwargs)

        return answered


async def test_api_server_that_goes_away_at_any_call_of_a_pass_refuses_nothing():
    world = await ready_world(SERVICES)
    kube = LeavingKube(world.kube)
    world.restart(kube)
    await world.go_on(2)
    for count in itertools.count():
        world.stage.now += 60_000  # whoever disturbs more often is named as a rival
        disturb(world, SERVICES)
        disturb(world, NETWORK_POLICIES)
        kube.left = count
        try:
            await world.reconciler.reconcile(world.key)
        except UnavailableError:
            is_done = False
        else:
            is_done = True
        kube.left = None
        for _ in range(2):
            assert world.is_ready
            assert world.condition("Stalled") == ("", "")
            await world.go_on(1)
        assert not [one for one in world.kube.all_of(SERVICES) if MARK not in marks(one)]
        if is_done:
            break
    assert count > 15
