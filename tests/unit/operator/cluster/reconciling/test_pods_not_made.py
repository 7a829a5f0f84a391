"""Why pods are not made is told in the words of the StatefulSet controller, of its events.

Each thing that Kubernetes says against a pod or its claim, with each set of pods that are missing,
and each event that is not the one to tell.
"""

import asyncio

import pytest

from liftbridge_operator.cluster.observing import failed_creates
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import ForbiddenError, InvalidError, UnavailableError
from liftbridge_operator.kube.kinds import EVENTS, SETS
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, ReconciledWorld

MINUTE_PASSES = 24
REST_PASSES = 50
FORBIDDEN = 'pods "{pod}" is forbidden: '
CAUSES = {
    "quota": FORBIDDEN + "exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2",
    "webhook": 'admission webhook "rule.example" denied the request: no such image',
    "security": FORBIDDEN + 'violates PodSecurity "restricted:latest": unrestricted capabilities',
    "account": FORBIDDEN + 'error looking up service account n/c: serviceaccount "c" not found',
    "limits": FORBIDDEN + "maximum memory usage per Container is 1Gi, but limit is 2Gi",
}
MISSING = (("c-2",), ("c-1",), ("c-0", "c-1", "c-2"))
OLD_MS = 3_000_000


def note(pod, cause, what="Pod {pod}"):
    said = f"create {what} in StatefulSet c failed error: {cause}"
    return said.replace("{pod}", pod)


class World(ReconciledWorld):
    """With a controller that writes events, as often as it tries."""

    cause = ""
    what = "Pod {pod}"
    told_ms = 0

    def tick(self, ms=2_500):
        super().tick(ms)
        if self.stage.kube.against:
            missing = {f"c-{one}" for one in range(3)} - self.stage.api.pods.keys()
            for pod in sorted(missing):
                self.write(pod, note(pod, self.cause, self.what))

    def write(self, name, text, *, reason="FailedCreate", uid="", ms=0):
        self.kube.put(
            {
                "apiVersion": EVENTS.api_version,
                "kind": EVENTS.kind,
                "metadata": {"name": f"c.{name}", "namespace": NAMESPACE},
                "eventTime": None,
                "deprecatedLastTimestamp": moment_text(ms or self.now_ms),
                "reason": reason,
                "type": "Warning",
                "note": text,
                "regarding": {"kind": SETS.kind, "name": "c", "uid": uid or self.uid},
            },
            "kube-controller-manager",
        )

    @property
    def uid(self):
        return self.kube.all_of(SETS)[0]["metadata"]["uid"]

    def lose(self, *pods):
        """Pods go, and none is made in their place."""
        self.stage.kube.against = "against"
        for pod in pods:
            self.stage.brokers.kill(pod)
            self.stage.kube.force_delete(self.stage.api.pods[pod])

    async def until_named(self):
        await self.until(lambda: self.condition("Ready") == ("False", "PodMissing"), MINUTE_PASSES)
        assert self.condition("Stalled") == ("True", "PodMissing")

    def said(self, kind="Ready"):
        return next(one["message"] for one in self.status["conditions"] if one["type"] == kind)


async def ready_world():
    world = World()
    await world.until_ready()
    await world.go_on(8)
    assert world.is_ready
    return world


@pytest.mark.parametrize("pods", MISSING, ids="+".join)
@pytest.mark.parametrize("cause", CAUSES)
async def test_cause_is_told_while_pods_are_missing_and_no_longer(cause, pods):
    world = await ready_world()
    world.cause = CAUSES[cause]
    world.lose(*pods)
    await world.until_named()
    for kind in ("Ready", "Stalled"):
        assert CAUSES[cause].replace("{pod}", pods[0]) in world.said(kind)
    await world.go_on(REST_PASSES)
    assert CAUSES[cause].replace("{pod}", pods[0]) in world.said()
    world.restart()
    await world.go_on(2)
    assert CAUSES[cause].replace("{pod}", pods[0]) in world.said()
    world.stage.kube.against = ""
    await world.until_ready()
    assert world.condition("Stalled") == ("", "")
    assert "failed error" not in str(world.status)


async def test_claim_that_cannot_be_made_is_told():
    world = await ready_world()
    world.cause, world.what = "exceeded quota: small", "Claim data-{pod} for Pod {pod}"
    world.lose("c-2")
    await world.until_named()
    assert "exceeded quota: small" in world.said()


async def test_another_cause_takes_the_place_of_the_first():
    world = await ready_world()
    world.cause = CAUSES["quota"]
    world.lose("c-2")
    await world.until_named()
    assert "exceeded quota" in world.said()
    world.cause = CAUSES["webhook"]
    await world.go_on(2)
    assert "rule.example" in world.said()
    assert "exceeded quota" not in world.said()


async def test_event_of_another_pod_is_told_when_there_is_none_of_its_own():
    world = await ready_world()
    world.lose("c-1", "c-2")
    world.write = lambda *_args, **_named: None
    World.write(world, "c-0", note("c-0", CAUSES["quota"]), ms=world.now_ms + 1_000)
    await world.until_named()
    assert note("c-0", CAUSES["quota"]) in world.said()


OTHERS = {
    "another set": {"uid": "uid-of-another"},
    "another reason": {"reason": "SuccessfulCreate"},
    "another time": {"ms": OLD_MS},
}


@pytest.mark.parametrize("other", OTHERS)
async def test_event_that_is_not_the_one_is_not_told(other):
    world = await ready_world()
    world.lose("c-2")
    values = dict(OTHERS[other])
    if "ms" in values:
        values["ms"] = world.now_ms - values["ms"]
    world.write = lambda *_args, **_named: None
    World.write(world, "other", note("c-2", CAUSES["quota"]), **values)
    await world.until_named()
    assert "exceeded quota" not in world.said()
    assert "`kubectl describe statefulset c` shows the cause" in world.said()


ODD = {
    "no note": {"note": None},
    "no time": {"deprecatedLastTimestamp": None},
    "no regarding": {"regarding": None},
    "odd time": {"deprecatedLastTimestamp": "yesterday", "series": {"lastObservedTime": "x"}},
    "nothing": {"note": "", "reason": ""},
}


@pytest.mark.parametrize("odd", ODD)
async def test_event_of_an_odd_form_is_no_obstacle(odd):
    world = await ready_world()
    world.cause = CAUSES["quota"]
    world.lose("c-2")
    world.write("odd", note("c-2", "odd"))
    world.kube.edit(EVENTS, NAMESPACE, "c.odd", lambda body: body.update(ODD[odd]))
    await world.until_named()
    assert "exceeded quota" in world.said()


async def test_long_cause_is_cut():
    world = await ready_world()
    world.cause = "word " * 1_000
    world.lose("c-2")
    await world.until_named()
    assert len(world.said()) < failed_creates.TEXT_MAX + 100


class SilentKube:
    """Lists of events get no answer."""

    def __init__(self, kube):
        self._kube = kube

    def __getattr__(self, name):
        return getattr(self._kube, name)

    async def list_all(self, kind, namespace, **named):
        if kind == EVENTS:
            await asyncio.Event().wait()
        return await self._kube.list_all(kind, namespace, **named)


REFUSED = {
    "right": ForbiddenError("events.events.k8s.io is forbidden: cannot list", status=403),
    "selector": InvalidError("field label not supported", status=400),
    "store": UnavailableError("etcdserver: no leader", status=503),
}


@pytest.mark.parametrize("way", REFUSED)
async def test_events_that_cannot_be_read_are_told_and_break_nothing(way):
    world = await ready_world()

    class Refusing(SilentKube):
        async def list_all(self, kind, namespace, **named):
            if kind == EVENTS:
                raise REFUSED[way]
            return await self._kube.list_all(kind, namespace, **named)

    world.cause = CAUSES["quota"]
    world.restart(Refusing(world.kube))
    world.lose("c-2")
    await world.until_named()
    assert REFUSED[way].message in world.said()
    assert "`kubectl describe statefulset c`" in world.said()
    world.stage.kube.against = ""
    await world.until_ready()


async def test_events_that_are_not_answered_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(failed_creates, "READ_S", 0.0)
    world = await ready_world()
    world.restart(SilentKube(world.kube))
    world.lose("c-2")
    await world.until_named()
    assert "no answer" in world.said()


async def test_events_are_read_of_nobody_whose_pods_are_there():
    world = World()
    read = []

    class Counting(SilentKube):
        async def list_all(self, kind, namespace, **named):
            read.append(kind)
            return await self._kube.list_all(kind, namespace, **named)

    world.restart(Counting(world.kube))
    await world.until_ready()
    read.clear()
    await world.go_on(8)
    assert EVENTS not in read
