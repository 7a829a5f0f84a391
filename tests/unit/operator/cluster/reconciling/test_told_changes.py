"""What people are told of changes: events, drift, restarts, and monitors that cannot be kept."""

import pytest

from liftbridge_operator.cluster.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.cluster.brokers.port import Refusal
from liftbridge_operator.cluster.planning.observation import StuckCause
from liftbridge_operator.cluster.reconciling.ports import Issued
from liftbridge_operator.cluster.reporting.account import Certificates
from liftbridge_operator.kube.errors import ForbiddenError, InvalidError, NotFoundError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PROMETHEUS_RULES,
    SERVICE_MONITORS,
    SERVICES,
    SETS,
)
from liftbridge_operator.kube.port import Propagation
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld

MONITORED = {"monitoring": {"serviceMonitor": {"enabled": True}}}
REST_PASSES = 8


async def ready_world(spec=None):
    world = ReconciledWorld(spec)
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods)[:3], min_isr=1)
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def told(world, reason):
    return [text for one, text in world.events if one == reason]


async def test_roll_is_told_from_its_beginning_to_its_end():
    world = await ready_world()
    former = world.status["currentRevision"]
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.status["revision"] != former)
    assert world.status["currentRevision"] == former != world.status["revision"]
    assert told(world, "RollCompleted") == []
    await world.until_ready()
    now = world.status["currentRevision"]
    assert now == world.status["revision"]
    assert told(world, "RollStarted") == [f"Restarting 3 brokers for revision {now}: spec.image."]
    assert told(world, "RollCompleted") == [f"All brokers have revision {now}."]
    order = [reason for reason, _ in world.events if reason.startswith(("Roll", "BrokerRes"))]
    assert order[:2] == ["RollStarted", "BrokerRestarting"]
    assert order[-2:] == ["BrokerRestarted", "RollCompleted"]
    reasons = {one["lastRestart"]["reason"] for one in world.status["brokers"]}
    assert reasons == {"RollingUpdate"}
    assert len({one["lastRestart"]["time"] for one in world.status["brokers"]}) == 3


async def test_restart_that_was_asked_for_is_told_as_such():
    world = await ready_world()
    world.annotate(restart="now")
    await world.until(lambda: told(world, "RollStarted") != [])
    assert told(world, "RollStarted")[0].endswith(": annotation liftbridge.io/restart.")


async def test_operator_with_another_default_restarts_nobody_and_says_what_waits():
    world = await ready_world()
    before, events = world.status["revision"], len(world.events)
    world.image_of = lambda spec: f"mirror/broker:{spec.version}"
    world.restart()
    await world.go_on(20)
    assert world.is_ready
    assert world.status["revision"] == before
    assert world.status["held"]["causes"] == [
        "image liftbridge-broker:0.1.0 becomes mirror/broker:0.1.0"
    ]
    assert (world.kube.deletions, world.events[events:]) == ([], [])
    assert "plan" not in world.status
    revision = world.status["held"]["revision"]
    world.edit(lambda spec: spec.update(config={"logLevel": "debug"}))
    await world.until(lambda: world.kube.deletions != [])
    await world.until_ready()
    assert "held" not in world.status
    assert told(world, "RollStarted")[0].endswith(
        ": spec.config.logLevel, image liftbridge-broker:0.1.0 becomes mirror/broker:0.1.0."
    )
    assert world.status["revision"] not in (before, revision)
    assert world.status["image"] == "mirror/broker:0.1.0"


async def test_restart_of_one_pod_is_told_as_asked_for():
    world = await ready_world()
    pods = {one["id"]: one["podUID"] for one in world.status["brokers"]}
    world.annotate(**{"restart-pods": pods["c-1"]})
    await world.until(lambda: "RestartRequested" in str(world.status["brokers"][1]))
    await world.until_ready()
    assert ["lastRestart" in one for one in world.status["brokers"]] == [False, True, False]


async def test_stuck_pod_that_is_replaced_is_told():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:bad"))
    await world.until(lambda: world.status.get("plan") is not None)
    world.stage.kube.bad_revisions[world.status["plan"]["revision"]] = StuckCause.CRASH_LOOP
    await world.until(lambda: told(world, "StuckPodReplaced") != [])
    await world.go_on(2)
    reasons = {one.get("lastRestart", {}).get("reason") for one in world.status["brokers"]}
    assert "NotRunning" in reasons


async def test_partitions_that_were_moved_are_counted():
    world = await ready_world({"replicas": 4})
    for number in range(2):
        world.create_stream(f"moved{number}", "c-3", "c-0", min_isr=1)
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until_ready()
    counts = [int(text.split()[0]) for text in told(world, "PartitionsMoved")]
    assert counts[0] == 2  # what comes afterwards evens the load out
    assert "c-3 now votes on metadata." not in told(world, "VoterPromoted")
    assert told(world, "BrokerCordoned") == ["c-3 gets no new replicas: it will be removed."]
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert told(world, "RetiredVolume") == [
        "liftbridge-data-c-3 was retired and is now the volume of a new member."
    ]


@pytest.mark.parametrize(
    ("extra", "detail"),
    [
        ({"clustering.replica.max.lag.time": "soon"}, "'soon' is not a valid duration"),
        ({"clustering.replica.max.lag.tim": "1s"}, "did you mean clustering.replica.max.lag.time"),
    ],
)
async def test_settings_that_brokers_refuse_reach_no_pod(extra, detail):
    world = await ready_world()
    world.edit(lambda spec: spec.update(config={"extra": extra}))
    await world.until(lambda: world.condition("Stalled") == ("True", "InvalidSpec"))
    await world.go_on(REST_PASSES)
    assert detail in told(world, "InvalidSpec")[0]
    assert world.kube.deletions == []
    assert world.condition("Available") == ("True", "Serving")
    world.edit(lambda spec: spec.pop("config"))
    await world.until_ready()
    assert world.kube.deletions == []


async def test_departure_that_is_taken_back_is_told():
    world = await ready_world({"replicas": 4})
    world.create_stream("kept", "c-3", "c-0", min_isr=1)
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until(lambda: told(world, "BrokerCordoned") != [])
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert told(world, "BrokerUncordoned") == ["c-3 may get replicas again."]
    assert told(world, "BrokerRemoved") == []


async def test_volumes_that_have_grown_are_told():
    world = await ready_world()
    world.edit(lambda spec: spec["storage"]["data"].update(size="2Gi"))
    await world.until_ready()
    await world.until(lambda: len(told(world, "VolumeExpanded")) == 3)
    assert "liftbridge-data-c-0 has grown to 2Gi." in told(world, "VolumeExpanded")
    assert len(told(world, "VolumeExpanding")) == 3


async def test_broker_that_started_anew_is_told_with_its_claim():
    world = await ready_world()
    pod = world.stage.api.pods["c-2"]
    (claim,) = [one for one in world.kube.all_of(CLAIMS) if one["metadata"]["name"].endswith("c-2")]
    world.stage.kube.destroy_node(pod.node)
    uid = claim["metadata"]["uid"]
    world.edit(lambda spec: spec.update(replaceBrokers=[{"broker": 2, "volumeUID": uid}]))
    await world.until(lambda: told(world, "BrokerReplaced") != [])
    await world.until_ready()
    assert told(world, "BrokerReplaced") == ["c-2 started over on claim liftbridge-data-c-2."]


async def test_adoption_suspension_and_resumption_are_told():
    world = await ready_world()
    world.edit(lambda spec: spec.update(suspend=True))
    await world.until(lambda: not world.stage.api.pods)
    world.edit(lambda spec: spec.update(suspend=False))
    await world.until_ready()
    assert len(told(world, "Suspended")) == len(told(world, "Resumed")) == 1
    assert told(world, "VolumesAdopted") == []
    spec = world.resource["spec"]
    world.kube.remove(CLUSTERS, NAMESPACE, NAME)
    await world.reconciler.reconcile(world.key)
    for kind in (SETS, SERVICES, BUDGETS):
        for one in world.kube.all_of(kind):
            world.kube.remove(kind, NAMESPACE, one["metadata"]["name"])
    for pod in list(world.stage.api.pods.values()):
        world.stage.api.put_pod(pod, is_terminating=True)
    world.put_resource(spec)
    await world.until_ready()
    assert told(world, "VolumesAdopted") == [
        "Found 3 volumes of cluster id-1; the cluster continues with them."
    ]


async def test_certificate_that_nobody_renews_is_told_once():
    world = await ready_world()
    issued = Certificates("Expiring", "shown", not_after_ms=world.now_ms + 10**8)

    async def issue(cluster, inputs, *, may_write, served, held):
        del cluster, inputs, may_write, held
        loaded = {} if served is None else served.loaded
        assert set(loaded) <= {"c-0", "c-1", "c-2"}
        return Issued(issued, TlsMaterial(b"ca", b"cert", b"key"))

    world.issue = issue
    world.restart()
    await world.go_on(5)
    assert len(told(world, "CertificateExpiring")) == 1
    assert world.condition("Degraded") == ("True", "CertificateExpiring")


async def test_links_and_disks_are_told_once():
    world = await ready_world()
    world.stage.without_nats.add("c-1")
    world.stage.full.add("c-2")
    await world.go_on(5)
    assert told(world, "NatsUnreachable") == ["Not connected to NATS: c-1."]
    assert told(world, "VolumeFull") == ["The volume of c-2 has no room left."]
    world.stage.without_nats.clear()
    world.stage.full.clear()
    await world.until_ready()
    assert len(told(world, "NatsUnreachable")) == 1


async def test_level_and_bound_of_moves_follow_the_specification():
    world = ReconciledWorld({"disruption": {"catchUpRate": "1Mi"}})
    world.stage.brokers.feature_level = 0
    await world.until_ready()
    assert world.stage.brokers.catch_up_rate == 1 << 20
    assert world.admin.calls.count("set_catch_up_rate") == 1
    assert "featureLevel" not in world.status
    assert "set_feature_level" not in world.admin.calls
    world.edit(lambda spec: spec.update(featureLevel=1))
    await world.until_ready()
    assert world.status["featureLevel"] == 1
    assert world.admin.calls.count("set_feature_level") == 1
    world.edit(lambda spec: spec["disruption"].pop("catchUpRate"))
    await world.until(lambda: world.stage.brokers.catch_up_rate == 0)


async def test_step_that_brokers_refuse_is_told_after_half_a_minute():
    world = await ready_world()
    world.stage.brokers.feature_level = 0

    async def refuse(leader, level):
        return Refusal("FAILED_PRECONDITION", f"{leader} does not know level {level}")

    raise_level, world.admin.set_feature_level = world.admin.set_feature_level, refuse
    world.edit(lambda spec: spec.update(featureLevel=1))
    await world.until(lambda: world.status["waits"] != [])
    (wait,) = world.status["waits"]
    assert (wait["what"], wait["object"]) == ("ActionRefused", "SetFeatureLevel")
    assert "does not know level 1" in wait["endsWhen"]
    assert wait["runbook"]
    assert not world.is_ready
    world.admin.set_feature_level = raise_level
    await world.until_ready()
    assert world.status["waits"] == []


async def test_level_that_was_raised_is_told():
    world = ReconciledWorld()
    world.stage.brokers.feature_level = 1
    await world.until_ready()
    assert world.status["featureLevel"] == 1
    world.stage.brokers.feature_level = 2  # by a person
    await world.go_on(2)
    assert told(world, "FeatureLevelRaised") == ["Feature level 2 is in effect."]


async def test_volumes_get_the_attributes_class_that_is_asked_for():
    world = await ready_world()
    world.edit(lambda spec: spec["storage"]["data"].update(volumeAttributesClassName="fast"))
    await world.until_ready()
    classes = {one["spec"]["volumeAttributesClassName"] for one in world.kube.all_of(CLAIMS)}
    assert classes == {"fast"}
    # The set is made again around its pods, so that new volumes have it as well.
    gone = [(one.kind, one.propagation) for one in world.kube.deletions]
    assert gone == [(SETS, Propagation.ORPHAN)]
    template = world.kube.all_of(SETS)[0]["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["volumeAttributesClassName"] == "fast"


# -- drift --------------------------------------------------------------------------------------


async def test_drift_is_kept_in_the_status():
    world = await ready_world()
    for number in range(2):
        world.kube.edit(
            SERVICES,
            NAMESPACE,
            "c-internal",
            lambda body, number=number: body["spec"]["ports"][0].update(port=number + 1),
        )
        await world.go_on(3)
    drift = world.status["drift"]
    assert drift["count"] == 2
    assert {(one["object"], one["manager"]) for one in drift["last"]} == {
        ("Service/c-internal", "kubectl")
    }
    before = len(world.kube.writes)
    await world.go_on(20)
    assert world.kube.writes[before:] == []
    world.restart()
    await world.go_on(3)
    assert world.status["drift"] == drift


def of_broker(body):
    containers = body["spec"]["template"]["spec"]["containers"]
    return next(one for one in containers if one["name"] == "broker")


DRIFTS = {
    "image": lambda body: of_broker(body).update(image="other:1"),
    "arguments": lambda body: of_broker(body).update(args=["--config=/tmp/other"]),
    "sidecar": lambda body: body["spec"]["template"]["spec"]["containers"].append(
        {"name": "spy", "image": "spy:1"}
    ),
    "strategy": lambda body: body["spec"].update(updateStrategy={"type": "RollingUpdate"}),
    "volumes": lambda body: body["spec"].update(
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Delete"}
    ),
}


@pytest.mark.parametrize("what", DRIFTS)
async def test_set_that_somebody_changed_is_changed_back_before_a_pod_is_made_of_it(what):
    world = await ready_world()
    before = world.kube.all_of(SETS)[0]["spec"]
    world.kube.edit(SETS, NAMESPACE, "c", DRIFTS[what])
    await world.go_on(2)
    assert world.kube.all_of(SETS)[0]["spec"] == before
    assert world.kube.deletions == []
    found = {(one["object"], one["manager"]) for one in world.status["drift"]["last"]}
    assert found == {("StatefulSet/c", "kubectl")}
    writes = len(world.kube.writes)
    await world.go_on(REST_PASSES)
    assert world.kube.writes[writes:] == []


async def test_budget_that_somebody_changed_is_changed_back():
    world = await ready_world()
    before = world.kube.all_of(BUDGETS)[0]["spec"]

    def loosen(body):
        body["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"

    world.kube.edit(BUDGETS, NAMESPACE, "c", loosen)
    await world.go_on(2)
    assert world.kube.all_of(BUDGETS)[0]["spec"] == before
    assert [one["object"] for one in world.status["drift"]["last"]] == ["PodDisruptionBudget/c"]


# -- monitors -----------------------------------------------------------------------------------


class Withheld:
    """The API server, which answers all calls about some kinds with an error."""

    def __init__(self, kube, error, *kinds):
        self._kube, self._error, self._kinds = kube, error, kinds

    def __getattr__(self, name):
        call = getattr(self._kube, name)

        async def checked(first, *args, **kwargs):
            kind = first["kind"] if isinstance(first, dict) else first.kind
            if kind in {one.kind for one in self._kinds}:
                raise self._error
            return await call(first, *args, **kwargs)

        return checked


MONITORS = (SERVICE_MONITORS, PROMETHEUS_RULES)
HINDRANCES = {
    "MissingRights": ForbiddenError(
        'User "operator" cannot list resource "servicemonitors"', status=403
    ),
    "NotInstalled": NotFoundError("the server could not find the requested resource"),
    "Refused": InvalidError("spec.endpoints: wrong", status=422),
}


@pytest.mark.parametrize("reason", HINDRANCES)
async def test_monitor_that_cannot_be_kept_is_told_and_stops_nothing(reason):
    world = ReconciledWorld(MONITORED)
    world.restart(Withheld(world.kube, HINDRANCES[reason], *MONITORS))
    await world.until_ready()
    assert world.condition("MonitoringReady") == ("False", reason)
    assert len(told(world, "MissingRights")) == (reason == "MissingRights")
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until_ready()
    assert world.status["image"] == "liftbridge-broker:new"
    assert world.kube.names_of(NETWORK_POLICIES) == ["c"]
    await world.go_on(REST_PASSES)
    before = len(world.kube.writes)
    await world.go_on(10)
    assert world.kube.writes[before:] == []
    world.restart()
    await world.go_on(2)
    assert world.condition("MonitoringReady") == ("True", "Kept")
    assert world.kube.names_of(SERVICE_MONITORS) == ["c"]


async def test_monitor_that_is_not_wanted_any_more_is_removed():
    world = await ready_world(MONITORED)
    assert world.condition("MonitoringReady") == ("True", "Kept")
    assert world.kube.names_of(SERVICE_MONITORS) == ["c"]
    world.edit(lambda spec: spec.pop("monitoring"))
    await world.until_ready()
    assert world.kube.names_of(SERVICE_MONITORS) == []
    assert world.condition("MonitoringReady") == ("True", "NotWanted")
    # From then on nobody asks for kinds that may not even be installed.
    world.restart(Withheld(world.kube, AssertionError("asked for"), *MONITORS))
    await world.go_on(3)
    assert world.is_ready


async def test_monitor_of_somebody_else_is_left_alone():
    world = ReconciledWorld(MONITORED)
    foreign = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": "c", "namespace": NAMESPACE},
        "spec": {"selector": {}},
    }
    world.kube.put(foreign)
    await world.until_ready()
    assert world.condition("MonitoringReady") == ("False", "Conflict")
    (live,) = world.kube.all_of(SERVICE_MONITORS)
    assert live["spec"] == foreign["spec"]
    assert world.kube.all_of(SETS) != []
    assert "c-identity" in world.kube.names_of(CONFIG_MAPS)


async def test_certificate_that_is_not_there_yet_is_waited_for():
    world = ReconciledWorld()
    issue = world.issue

    async def missing(cluster, inputs, *, may_write, served, held):
        del cluster, inputs, may_write, served, held
        return Issued(Certificates(secret="shown"), is_waiting=True)

    world.issue = missing
    world.restart()
    await world.until(lambda: world.status.get("waits", []) != [])
    assert [(one["what"], one["object"]) for one in world.status["waits"]] == [
        ("CertificateIssuing", "shown")
    ]
    assert world.kube.all_of(SETS) == []
    world.issue = issue
    world.restart()
    await world.until_ready()
