"""The reconciler of clusters on models: from nothing to ready, and through every kind of change."""

import pytest

from liftbridge_operator.cluster.planning.observation import StuckCause
from liftbridge_operator.kube.errors import (
    FencedError,
    ForbiddenError,
    InvalidError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    PODS,
    SERVICES,
    SETS,
)
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld

GIB = 1 << 30
REST_PASSES = 8


async def ready_world(spec=None, *, streams=1):
    """A cluster at rest."""
    world = ReconciledWorld(spec)
    await world.until_ready()
    names = sorted(world.stage.api.pods)[:3]
    for number in range(streams):
        world.create_stream(f"s{number}", *names, min_isr=min(2, len(names)))
    await world.go_on(REST_PASSES)
    assert world.is_ready
    return world


def revisions(world):
    return {pod.revision for pod in world.stage.api.pods.values()}


def written(world, since=0):
    """Writes, in order, without those of the status."""
    return [
        (one.verb, one.kind.kind) for one in world.kube.writes[since:] if "status" not in one.verb
    ]


async def test_cluster_comes_up_from_nothing():
    world = ReconciledWorld()
    await world.until_ready()
    assert world.status["readyReplicas"] == 3
    assert world.status["clusterId"] == "id-1"
    assert len(world.stage.brokers.histories) == 1
    assert world.condition("Available") == ("True", "Serving")
    assert set(world.kube.names_of(SERVICES)) == {"c-brokers", "c-internal"}
    assert [reason for reason, _ in world.events] == ["Bootstrapped"]


async def test_identity_is_written_before_anything_of_the_cluster_exists():
    world = ReconciledWorld()
    await world.go_on(3)
    kinds = [one.kind.kind for one in world.kube.writes if "status" not in one.verb]
    assert kinds[0] == "ConfigMap"
    assert world.kube.writes[1].name == "c-identity"
    assert "StatefulSet" in kinds
    assert (
        "ownerReferences"
        not in (await world.kube.get(CONFIG_MAPS, NAMESPACE, "c-identity"))["metadata"]
    )


async def test_cluster_at_rest_costs_no_write():
    world = await ready_world()
    before = len(world.kube.writes)
    await world.go_on(60)
    assert world.kube.writes[before:] == []


async def test_cluster_that_waits_for_somebody_costs_no_write():
    world = await ready_world({"disruption": {"mode": "Approval"}})
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.status.get("waits", []) != [])
    before = len(world.kube.writes)
    await world.go_on(60)
    assert world.kube.writes[before:] == []


async def test_new_template_reaches_every_pod_one_by_one():
    world = await ready_world()
    former = revisions(world)
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    assert not world.is_ready
    most_away = 0
    while not world.is_ready:
        await world.go_on()
        pods = world.stage.api.pods.values()
        most_away = max(most_away, 3 - sum(pod.is_ready for pod in pods))
        assert world.passes < 400
    assert most_away == 1
    assert len(revisions(world)) == 1
    assert not revisions(world) & former
    assert world.status["image"] == "liftbridge-broker:new"
    assert "disruption" not in world.status
    told = [reason for reason, _ in world.events]
    assert told.count("PlanPublished") == 1
    assert told.count("BrokerRestarting") == told.count("BrokerRestarted") == 3


async def test_restart_is_recorded_with_its_token_before_the_pod_goes():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.kube.deletions != [])
    told = world.status["disruption"]
    assert told["pod"] == world.kube.deletions[0].name
    kept = await world.kube.get(CONFIG_MAPS, NAMESPACE, "c-restart")
    assert kept["data"]["restart-id"] == told["restartId"]
    order = [(one.verb, one.kind.kind) for one in world.kube.writes]
    assert order.index(("apply", "ConfigMap")) < order.index(("delete", "Pod"))


async def test_operator_that_starts_anew_goes_on_with_the_restart():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.kube.deletions != [])
    world.restart()
    await world.until_ready()
    assert len(revisions(world)) == 1
    pods = [one.name for one in world.kube.deletions if one.kind == PODS]
    assert sorted(pods) == ["c-0", "c-1", "c-2"]


async def test_lost_token_is_made_up_for_by_replicas_in_sync():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.kube.deletions != [])
    world.kube.remove(CONFIG_MAPS, NAMESPACE, "c-restart")
    await world.until_ready()
    assert len(revisions(world)) == 1


async def test_cluster_grows_by_learners():
    world = await ready_world()
    world.edit(lambda spec: spec.update(replicas=5))
    await world.until_ready()
    assert sorted(world.stage.api.pods) == [f"c-{one}" for one in range(5)]
    await world.until(lambda: world.stage.brokers.voter_count == 5)
    assert world.kube.deletions == []


async def test_cluster_shrinks_when_nothing_is_left_on_who_leaves():
    world = await ready_world({"replicas": 5})
    world.create_stream("moved", "c-4", "c-3", "c-0", min_isr=2)
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until_ready()
    assert sorted(world.stage.api.pods) == ["c-0", "c-1", "c-2"]
    assert world.stage.brokers.voter_count == 3
    assert sorted(world.stage.brokers.registered) == ["c-0", "c-1", "c-2"]
    kept = {one["name"] for one in world.status["retainedVolumes"]}
    assert kept == {"liftbridge-data-c-3", "liftbridge-data-c-4"}
    claims = {one["metadata"]["name"] for one in world.kube.all_of(CLAIMS)}
    assert len(claims) == 5
    told = [reason for reason, _ in world.events]
    assert told.count("BrokerRemoved") == 2
    assert "BrokerCordoned" in told


async def test_volume_of_a_broker_that_left_is_deleted_where_that_is_asked_for():
    data = {"data": {"size": "1Gi"}, "retention": {"whenScaled": "Delete"}}
    world = await ready_world({"replicas": 4, "storage": data})
    assert len(world.kube.names_of(CLAIMS)) == 4
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until(lambda: len(world.kube.names_of(CLAIMS)) == 3)
    assert world.is_ready
    assert ("BrokerRemoved", "c-3 has left; its volume is deleted.") in world.events
    claims = [one.name for one in world.kube.deletions if one.kind == CLAIMS]
    assert claims == ["liftbridge-data-c-3"]


async def test_volume_that_was_kept_is_used_again():
    world = await ready_world({"replicas": 4})
    world.edit(lambda spec: spec.update(replicas=3))
    await world.until_ready()
    world.edit(lambda spec: spec.update(replicas=4))
    await world.until_ready()
    assert world.status["retainedVolumes"] == []
    assert len(world.stage.brokers.histories) == 1


async def test_volumes_grow_and_pods_stay():
    world = await ready_world()
    uids = {pod.name: pod.uid for pod in world.stage.api.pods.values()}
    world.edit(lambda spec: spec["storage"]["data"].update(size="2Gi"))
    await world.until_ready()
    await world.until(lambda: world.condition("StorageReady") == ("True", "Bound"))
    assert {claim.capacity_bytes for claim in world.stage.api.claims.values()} == {2 * GIB}
    assert {pod.name: pod.uid for pod in world.stage.api.pods.values()} == uids
    made = world.kube.all_of(SETS)[0]["spec"]["volumeClaimTemplates"][0]
    assert made["spec"]["resources"]["requests"]["storage"] == str(2 * GIB)
    assert [one.propagation.value for one in world.kube.deletions] == ["Orphan"]
    assert "remaking" not in world.status


REFUSALS = {
    "AdmissionDenied": ForbiddenError("violates PodSecurity", status=403),
    "MissingRights": ForbiddenError('cannot create resource "statefulsets"', status=403),
    "UnsupportedChange": InvalidError("spec.volumeClaimTemplates: no", status=422),
}


@pytest.mark.parametrize("reason", REFUSALS)
async def test_set_stays_while_the_one_in_its_place_would_be_refused(reason):
    world = await ready_world()

    def admit(verb, body):
        if verb == "create" and body["kind"] == SETS.kind:
            raise REFUSALS[reason]

    world.kube.admit = admit
    world.edit(lambda spec: spec["storage"]["data"].update(size="2Gi"))
    await world.until(lambda: world.condition("Stalled") == ("True", reason))
    await world.go_on(20)
    assert world.kube.deletions == []
    assert world.condition("Stalled") == ("True", reason)
    world.kube.admit = None
    await world.until_ready()
    assert [one.propagation.value for one in world.kube.deletions] == ["Orphan"]


async def test_quota_that_the_set_itself_fills_is_no_reason_to_keep_it():
    world = await ready_world()

    def admit(verb, body):
        if verb == "create" and body["kind"] == SETS.kind and world.kube.all_of(SETS):
            raise ForbiddenError("exceeded quota: count/statefulsets.apps", status=403)

    world.kube.admit = admit
    world.edit(lambda spec: spec["storage"]["data"].update(size="2Gi"))
    await world.until_ready()
    await world.until(lambda: world.condition("StorageReady") == ("True", "Bound"))
    assert [one.propagation.value for one in world.kube.deletions] == ["Orphan"]


ROOTS = {
    StuckCause.IMAGE_PULL: "ImagePullBackOff: image liftbridge-broker:bad of container broker",
    StuckCause.CRASH_LOOP: "CrashLoopBackOff: container broker ends",
    StuckCause.CONFIG: "CreateContainerConfigError: container broker",
}


@pytest.mark.parametrize("cause", ROOTS)
async def test_root_cause_of_a_bad_template_is_told_and_kept(cause):
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:bad"))
    await world.until(lambda: world.status.get("plan") is not None)
    world.stage.kube.bad_revisions[world.status["plan"]["revision"]] = cause
    await world.until(lambda: world.condition("Stalled") == ("True", "BadRevision"))
    await world.until(lambda: world.status["readyReplicas"] == 3)
    world.restart()
    await world.go_on(5)
    said = {one["type"]: one["message"] for one in world.status["conditions"]}
    assert ROOTS[cause] in said["Stalled"]
    assert ROOTS[cause] in said["Ready"]
    (reverted,) = [text for reason, text in world.events if reason == "RollReverted"]
    assert ROOTS[cause] in reverted
    world.edit(lambda spec: spec.update(image="liftbridge-broker:mended"))
    await world.until_ready()
    assert "failedRevision" not in world.status


@pytest.mark.parametrize("cause", [StuckCause.IMAGE_PULL, StuckCause.CRASH_LOOP])
async def test_bad_template_is_taken_back_and_said(cause):
    world = await ready_world()
    good = revisions(world)
    world.edit(lambda spec: spec.update(image="liftbridge-broker:bad"))
    await world.until(lambda: world.status.get("plan") is not None)
    world.stage.kube.bad_revisions[world.status["plan"]["revision"]] = cause
    await world.until(lambda: world.condition("Stalled") == ("True", "BadRevision"))
    told = {reason for reason, _ in world.events}
    assert {"RollReverted"} <= told
    await world.until(lambda: revisions(world) == good and world.status["readyReplicas"] == 3)
    assert world.condition("Ready") == ("False", "Blocked")
    assert world.condition("Available") == ("True", "Serving")
    world.edit(lambda spec: spec.update(image="liftbridge-broker:mended"))
    await world.until_ready()
    assert len(revisions(world)) == 1


async def test_suspended_cluster_keeps_volumes_and_comes_back():
    world = await ready_world()
    world.edit(lambda spec: spec.update(suspend=True))
    await world.until(lambda: not world.stage.api.pods)
    await world.go_on(3)
    assert world.condition("Ready") == ("False", "Suspended")
    world.edit(lambda spec: spec.update(suspend=False))
    await world.until_ready()
    assert len(world.stage.brokers.histories) == 1


async def test_resource_created_again_adopts_the_volumes():
    world = await ready_world()
    uids = {one["metadata"]["uid"] for one in world.kube.all_of(CLAIMS)}
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
    assert {one["metadata"]["uid"] for one in world.kube.all_of(CLAIMS)} == uids
    assert len(world.stage.brokers.histories) == 1
    assert world.status["clusterId"] == "id-1"


async def test_paused_cluster_is_left_alone():
    world = await ready_world()
    world.edit(lambda spec: spec.update(paused=True, image="liftbridge-broker:new"))
    before = len(world.kube.writes)
    await world.go_on(10)
    assert written(world, before) == []
    assert world.condition("Paused") == ("True", "Paused")
    assert world.condition("Ready") == ("Unknown", "Paused")


async def test_change_waits_for_its_approval_and_goes_on_with_it():
    world = await ready_world({"disruption": {"mode": "Approval"}})
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until(lambda: world.condition("Stalled") == ("True", "ApprovalRequired"))
    assert world.kube.deletions == []
    plan = world.status["plan"]
    assert [one["action"] for one in plan["steps"]] == ["Restart"] * 3
    assert plan["needsApproval"]
    world.annotate(approve=plan["hash"])
    await world.until_ready()
    told = [reason for reason, _ in world.events]
    assert told.count("ApprovalRequired") == told.count("PlanApproved") == 1
    assert len(revisions(world)) == 1


async def test_restart_is_asked_for_by_an_annotation():
    world = await ready_world()
    world.annotate(restart="once more")
    await world.until(lambda: world.kube.deletions != [])
    await world.until_ready()
    assert sorted(one.name for one in world.kube.deletions) == ["c-0", "c-1", "c-2"]
    assert world.status["lastRestartRequest"] == "once more"


async def test_changed_service_is_changed_back():
    world = await ready_world()
    world.kube.edit(
        SERVICES, NAMESPACE, "c-internal", lambda body: body["spec"]["ports"][0].update(port=1)
    )
    await world.go_on(2)
    assert [reason for reason, _ in world.events][-1] == "DriftRepaired"
    live = await world.kube.get(SERVICES, NAMESPACE, "c-internal")
    assert [one["port"] for one in live["spec"]["ports"] if one["name"] != "nats"] == [9292]


async def test_service_of_a_listener_that_is_gone_is_removed():
    world = await ready_world()
    world.edit(lambda spec: spec.update(listeners=[{"name": "main"}]))
    await world.until_ready()
    assert set(world.kube.names_of(SERVICES)) == {"c-brokers", "c-main"}


async def test_service_of_somebody_else_is_left_alone():
    world = ReconciledWorld()
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "c-internal", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "other"}},
    }
    world.kube.put(foreign)
    await world.until(lambda: world.condition("Stalled") == ("True", "Conflict"))
    await world.go_on(5)
    live = await world.kube.get(SERVICES, NAMESPACE, "c-internal")
    assert live["spec"] == foreign["spec"]
    assert world.kube.all_of(SETS) == []


async def test_set_of_somebody_else_is_left_alone():
    world = ReconciledWorld()
    world.kube.put(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "c", "namespace": NAMESPACE},
            "spec": {"replicas": 0, "template": {"metadata": {}, "spec": {}}},
        }
    )
    await world.go_on(5)
    assert world.condition("Stalled") == ("True", "Conflict")
    assert written(world) == []


async def test_foreign_identity_stops_everything():
    world = ReconciledWorld()
    world.kube.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c-identity", "namespace": NAMESPACE},
            "data": {"something": "else"},
        }
    )
    await world.go_on(5)
    assert world.condition("Stalled") == ("True", "Conflict")
    assert written(world) == []


async def test_process_that_does_not_lead_writes_nothing():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    before = len(world.kube.writes)
    world.fence.error = FencedError("the Lease is too old")
    for _ in range(5):
        with pytest.raises(FencedError):
            await world.go_on()
    assert world.kube.writes[before:] == []
    assert world.kube.deletions == []


class Meddler:
    """The API server, with a user who changes the resource right after each read of it."""

    def __init__(self, world):
        self._world = world
        self._kube = world.kube
        self.count = 0

    def __getattr__(self, name):
        return getattr(self._kube, name)

    async def get(self, kind, namespace, name):
        body = await self._kube.get(kind, namespace, name)
        if kind == CLUSTERS:
            self.count += 1
            self._world.annotate(note=str(self.count))
        return body


async def test_nothing_is_done_on_a_resource_that_has_changed_since():
    world = await ready_world()
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    before = len(world.kube.writes)
    status = world.status
    world.restart(Meddler(world))
    await world.go_on(6)
    assert world.status == status
    assert {one.verb for one in world.kube.writes[before:]} == {"apply_status"}
    world.restart()
    await world.until_ready()


async def test_clock_of_a_broker_that_is_off_holds_no_restart_up():
    world = await ready_world()
    world.admin.clock_off_ms = -600_000
    world.edit(lambda spec: spec.update(image="liftbridge-broker:new"))
    await world.until_ready()
    assert len(revisions(world)) == 1


async def test_silent_brokers_make_everything_unknown():
    world = await ready_world()
    world.admin.is_silent = True
    await world.go_on(40)
    assert world.condition("Available") == ("Unknown", "MetadataUnknown")
    assert world.condition("Ready") == ("Unknown", "MetadataUnknown")
    assert world.condition("DisruptionAllowed") == ("Unknown", "RiskUnknown")
    assert {one["what"] for one in world.status["waits"]} == {"MetadataUnknown"}
    world.admin.is_silent = False
    await world.until_ready()


async def test_specification_that_cannot_be_read_is_said_and_nothing_done():
    world = await ready_world()
    before = len(world.kube.writes)
    world.edit(lambda spec: spec.update(replicas=1_000))
    await world.go_on(3)
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.condition("Ready") == ("False", "InvalidSpec")
    assert written(world, before) == []


async def test_former_templates_are_forgotten_at_rest():
    world = await ready_world()
    for number in range(2):
        world.edit(lambda spec, number=number: spec.update(image=f"liftbridge-broker:{number}"))
        await world.until_ready()
    await world.go_on(REST_PASSES)
    kept = {
        one["metadata"]["name"]
        for one in world.kube.all_of(CONFIG_MAPS)
        if "-revision-" in one["metadata"]["name"]
    }
    assert kept == {f"c-revision-{revision}" for revision in revisions(world)}


async def test_deleted_resource_is_forgotten():
    world = await ready_world()
    world.kube.remove(CLUSTERS, NAMESPACE, NAME)
    assert await world.reconciler.reconcile(world.key) is None


async def test_unanswered_write_ends_the_pass_and_the_next_goes_on():
    world = ReconciledWorld()
    world.kube.fail(UnavailableError("no answer"), verb="create", kind=SETS)
    with pytest.raises(UnavailableError):
        await world.go_on(10)
    await world.until_ready()
    assert world.status["readyReplicas"] == 3


async def test_quota_that_is_exceeded_is_said():
    world = ReconciledWorld()
    world.kube.fail(ForbiddenError("exceeded quota: pods", status=403), verb="create", kind=SETS)
    await world.go_on(3)
    assert world.condition("Stalled") == ("True", "QuotaExceeded")
    await world.until_ready()
