"""Whoever refuses a write, and however: it is named with its cause, and holds up nothing else.

Each kind of object that the operator writes, with each answer by which an API server refuses: no
pass fails because of it, and what protects brokers goes on.
"""

import json

import pytest

from liftbridge_operator.kube.answers import error_of
from liftbridge_operator.kube.errors import ForbiddenError, InvalidError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    NODES,
    PROMETHEUS_RULES,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    SETS,
    VOLUMES,
)
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld

MINUTE_PASSES = 24
REST_PASSES = 8
OUTSIDE = {"listeners": [{"name": "outside", "port": 9293, "type": "NodePort"}]}
MONITORED = {
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
}
DELETED = {"whenScaled": "Delete", "whenDeleted": "Retain"}
MONITORS = (SERVICE_MONITORS, PROMETHEUS_RULES)

WAYS = {
    "quota": (403, "exceeded quota: compute, used: 5, limited: 5", "QuotaExceeded"),
    "right": (403, 'User "operator" cannot patch resource "x" in API group ""', "MissingRights"),
    "rule": (403, 'admission webhook "rule.example" denied the request: no', "AdmissionDenied"),
    "odd rule": (400, 'admission webhook "rule.example" denied the request: no', "AdmissionDenied"),
    "rule that does not answer": (
        500,
        'Internal error occurred: failed calling webhook "rule.example": connection refused',
        "AdmissionDenied",
    ),
    "schema": (422, "spec: Invalid value: no", "UnsupportedChange"),
}
"""Status and words of the API server, and the reason by which they are told."""


def refused(way):
    status, words, _ = WAYS[way]
    text = json.dumps({"kind": "Status", "message": words})
    return error_of("PATCH", "/object", status, text.encode())


def refuse(world, way, *kinds):
    """Every write of these kinds is refused from now on."""
    names = {one.kind for one in kinds}

    def admit(_verb, body):
        if body["kind"] in names:
            raise refused(way)

    world.kube.admit = admit


def give_port(service):
    """What the API server does when a Service is written."""
    if service["kind"] == SERVICES.kind and service["spec"]["type"] == "NodePort":
        service["spec"]["ports"][0].setdefault("nodePort", 30_001)


async def ready_world(spec=None):
    world = ReconciledWorld(spec)
    world.kube.stores = give_port
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods)[:3], min_isr=1)
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def lose(world, kind):
    """Somebody deletes all objects of a kind."""
    for name in world.kube.names_of(kind):
        world.kube.remove(kind, NAMESPACE, name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind", [SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES, BUDGETS], ids=lambda one: one.kind
)
async def test_refused_write_is_named_and_holds_nothing_else_up(kind, way):
    world = await ready_world()
    lose(world, kind)
    refuse(world, way, kind)
    await world.go_on(2)
    assert world.condition("Ready") == ("False", WAYS[way][2])
    world.stage.kube.lose_node(world.stage.api.pods["c-1"].node)
    await world.go_on(MINUTE_PASSES)
    assert world.condition("Stalled") == ("True", WAYS[way][2])
    budgets = [one["spec"]["maxUnavailable"] for one in world.kube.all_of(BUDGETS)]
    assert budgets == ([] if kind == BUDGETS else [0])


@pytest.mark.parametrize("way", WAYS)
async def test_restart_whose_token_cannot_be_kept_is_named(way):
    world = await ready_world()
    world.annotate(**{"restart-pods": world.status["brokers"][1]["podUID"]})
    refuse(world, way, CONFIG_MAPS)
    await world.until(lambda: world.condition("Ready") == ("False", WAYS[way][2]), MINUTE_PASSES)
    lose(world, SERVICES)
    await world.go_on(2)
    assert world.kube.names_of(SERVICES) != []
    world.kube.admit = None
    await world.until_ready()
    assert "lastRestart" in world.status["brokers"][1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MONITORS, ids=lambda one: one.kind)
async def test_refused_monitor_is_told_with_its_cause(kind, way):
    world = await ready_world(MONITORED)
    lose(world, kind)
    refuse(world, way, kind)
    await world.go_on(2)
    reason = "MissingRights" if way == "right" else "Refused"
    assert world.condition("MonitoringReady") == ("False", reason)
    assert world.is_ready


async def test_set_that_is_made_again_does_not_wait_for_what_its_pods_do_without():
    world = await ready_world()
    policy = world.kube.look(NETWORK_POLICIES, NAMESPACE, NAME)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other"}
    policy["metadata"] |= {"labels": {}, "ownerReferences": [owner]}
    world.kube.put(policy)
    await world.until(lambda: world.condition("Ready") == ("False", "Blocked"))
    world.edit(lambda spec: spec["storage"]["data"].update(size="2Gi"))
    await world.until(lambda: world.kube.deletions != [], MINUTE_PASSES)
    await world.go_on(REST_PASSES)
    assert world.kube.names_of(SETS) == [NAME]
    assert world.condition("Stalled") == ("True", "Conflict")


@pytest.mark.parametrize("is_suspended", [True, False])
async def test_port_that_is_taken_holds_up_neither_the_way_down_nor_the_way_back(is_suspended):
    world = await ready_world(OUTSIDE)
    taken = InvalidError("spec.ports[0].nodePort: provided port is already allocated", status=422)
    world.kube.remove(SERVICES, NAMESPACE, "c-outside-1")

    def admit(_verb, body):
        if body["kind"] == SERVICES.kind and body["metadata"]["name"] == "c-outside-1":
            raise taken

    world.kube.admit = admit
    await world.until(lambda: world.condition("Ready") == ("False", "PortTaken"))
    if is_suspended:
        world.edit(lambda spec: spec.update(suspend=True))
        await world.until(lambda: not world.stage.api.pods, MINUTE_PASSES)
        world.edit(lambda spec: spec.update(suspend=False))
    else:
        world.kube.edit(SETS, NAMESPACE, NAME, lambda body: body["spec"].update(replicas=0))
        for _ in range(MINUTE_PASSES):
            world.tick()
        assert world.stage.api.pods == {}
    await world.until(
        lambda: [one.is_ready for one in world.stage.api.pods.values()] == [True] * 3,
        2 * MINUTE_PASSES,
    )
    assert world.condition("Ready") == ("False", "PortTaken")


class ForbiddingKube:
    """Reads of one kind are refused, and all reads are written down."""

    def __init__(self, kube):
        self.kube = kube
        self.reads = set()
        self.forbidden = None

    def __getattr__(self, name):
        call = getattr(self.kube, name)

        async def read(kind, *rest, **named):
            self.reads.add((name, kind))
            if (name, kind) == self.forbidden:
                verb = name.removesuffix("_all")
                text = f'User "operator" cannot {verb} resource "{kind.plural}" in API group ""'
                raise ForbiddenError(text, status=403)
            return await call(kind, *rest, **named)

        return read if name in ("get", "list_all") else call


NOT_NEEDED = frozenset({NODES, VOLUMES})
"""Kinds that the chart need not give rights to."""


async def test_whatever_may_not_be_read_is_named_and_nothing_is_left_as_it_was():
    world = await ready_world(OUTSIDE)
    kube = ForbiddingKube(world.kube)
    world.restart(kube)
    world.annotate(**{"restart-pods": world.status["brokers"][1]["podUID"]})
    await world.until(lambda: "lastRestart" in world.status["brokers"][1])
    await world.until_ready()
    before = {name: value for name, value in world.status.items() if name != "conditions"}
    cases = [one for one in kube.reads if one[1] not in (CLUSTERS, *NOT_NEEDED)]
    found = {}
    for verb, kind in sorted(cases, key=str):
        world.restart(kube)
        kube.forbidden = (verb, kind)
        await world.go_on(2)
        if world.is_ready:
            continue  # not asked at rest
        told = next(one for one in world.status["conditions"] if one["type"] == "Ready")
        is_told = told["reason"] == "MissingRights" and kind.plural in told["message"]
        found[verb, kind.plural] = is_told and world.condition("Stalled")[0] == "True"
        kube.forbidden = None
        await world.until_ready()
        assert world.condition("Stalled") == ("", "")
        now = {name: value for name, value in world.status.items() if name != "conditions"}
        assert now == before
    assert len(found) >= 6
    assert [one for one, is_told in found.items() if not is_told] == []


@pytest.mark.parametrize("way", WAYS)
async def test_volume_that_would_go_with_its_pod_is_named_while_the_set_cannot_be_changed(way):
    world = await ready_world()
    policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
    world.kube.edit(
        SETS,
        NAMESPACE,
        NAME,
        lambda body: body["spec"].update(persistentVolumeClaimRetentionPolicy=policy),
    )
    refuse(world, way, SETS)
    await world.until(lambda: world.condition("Ready") == ("False", WAYS[way][2]), MINUTE_PASSES)
    world.edit(lambda spec: spec.update(suspend=True))
    await world.go_on(MINUTE_PASSES)
    assert len(world.stage.api.pods) == 3
    assert world.condition("Stalled") == ("True", WAYS[way][2])


@pytest.mark.parametrize("way", WAYS)
async def test_what_cannot_be_tidied_away_is_named_until_it_can(way):
    world = await ready_world({"replicas": 4})
    world.edit(lambda spec: spec.update(replicas=3) or spec["storage"].update(retention=DELETED))
    await world.until(lambda: world.status["replicas"] == 3)
    refuse(world, way, CLAIMS)
    await world.until(lambda: world.condition("Ready") == ("False", WAYS[way][2]), MINUTE_PASSES)
    assert world.condition("Stalled") == ("True", WAYS[way][2])
    world.kube.admit = None
    await world.until_ready()
    await world.until(lambda: len(world.kube.names_of(CLAIMS)) == 3, MINUTE_PASSES)
    assert world.is_ready


@pytest.mark.parametrize("names", [("c-2",), ("c-0", "c-1", "c-2")])
async def test_pods_that_cannot_be_made_are_named_with_what_says_why(names):
    world = await ready_world()
    world.stage.kube.against = "exceeded quota"
    for name in names:
        world.stage.brokers.kill(name)
        world.stage.kube.force_delete(world.stage.api.pods[name])
    await world.go_on()
    assert not world.is_ready
    await world.until(lambda: world.condition("Ready") == ("False", "PodMissing"), MINUTE_PASSES)
    assert world.condition("Stalled") == ("True", "PodMissing")
    assert "kubectl describe statefulset c" in str(world.status["conditions"])
    await world.go_on(REST_PASSES)
    assert world.condition("Stalled") == ("True", "PodMissing")
    world.restart()
    await world.until(lambda: world.condition("Ready") == ("False", "PodMissing"), MINUTE_PASSES)
    world.stage.kube.against = ""
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")
