"""The API server in memory refuses, merges and tells as the real one does."""

import pytest

from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CLUSTERS, CONFIG_MAPS, PODS, SETS
from liftbridge_operator.kube.port import Preconditions, Propagation
from liftbridge_testkit.kube.fields import selects
from liftbridge_testkit.kube.memory import Deletion, MemoryKube, Write


def config(**data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "n"},
        "data": data,
    }


def broker_set(**spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": spec,
    }


def cluster(**extra):
    return {
        "apiVersion": "liftbridge.io/v1alpha1",
        "kind": "LiftbridgeCluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"replicas": 3},
    } | extra


async def test_apply_removes_what_it_no_longer_names_and_leaves_the_rest():
    kube = MemoryKube()
    await kube.apply(config(a="1", b="2"))
    kube.edit(CONFIG_MAPS, "n", "c", lambda one: one["data"].update(theirs="3"))
    found = await kube.apply(config(a="1"))
    assert found["data"] == {"a": "1", "theirs": "3"}


async def test_apply_that_changes_nothing_is_no_change():
    kube = MemoryKube()
    first = await kube.apply(config(a="1"))
    again = await kube.apply(config(a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert kube.changes == 1


async def test_apply_meets_a_field_that_somebody_changed():
    kube = MemoryKube()
    await kube.apply(config(a="1"))
    kube.edit(CONFIG_MAPS, "n", "c", lambda one: one["data"].update(a="2"))
    with pytest.raises(ApplyConflictError) as met:
        await kube.apply(config(a="1"))
    assert met.value.fields == (("kubectl", ".data.a"),)
    assert (await kube.apply(config(a="1"), force=True))["data"] == {"a": "1"}


async def test_items_with_keys_are_merged_and_removed_by_them():
    kube = MemoryKube()
    one, two = {"name": "broker", "image": "b:1"}, {"name": "nats", "image": "n:1"}
    await kube.apply(broker_set(template={"spec": {"containers": [one, two]}}))
    found = await kube.apply(
        broker_set(template={"spec": {"containers": [{"name": "broker", "image": "b:2"}]}})
    )
    assert found["spec"]["template"]["spec"]["containers"] == [{"name": "broker", "image": "b:2"}]


async def test_apply_with_another_uid_is_refused():
    kube = MemoryKube()
    with pytest.raises(ConflictError):
        await kube.apply(config() | {"metadata": {"name": "c", "namespace": "n", "uid": "u"}})


async def test_status_is_written_apart_and_creates_nothing():
    kube = MemoryKube()
    with pytest.raises(NotFoundError):
        await kube.apply_status(cluster(status={"observedGeneration": 1}))
    await kube.create(cluster(status={"observedGeneration": 9}))
    found = await kube.apply_status(cluster(status={"observedGeneration": 1}))
    assert found["status"] == {"observedGeneration": 1}
    assert found["metadata"]["generation"] == 1
    assert (await kube.get(CLUSTERS, "n", "c"))["spec"] == {"replicas": 3}


async def test_patches_compare_what_is_meant():
    kube = MemoryKube()
    seen = await kube.create(config(a="1"))
    meant = Preconditions.of(seen)
    changed = await kube.patch(
        CONFIG_MAPS, "n", "c", {"data": {"a": None, "b": "2"}}, preconditions=meant
    )
    assert changed["data"] == {"b": "2"}
    with pytest.raises(ConflictError):
        await kube.patch(CONFIG_MAPS, "n", "c", {"data": {"b": "3"}}, preconditions=meant)
    operations = [{"op": "add", "path": "/data/c~1d", "value": "4"}]
    now = Preconditions.of(changed)
    found = await kube.patch(CONFIG_MAPS, "n", "c", operations, preconditions=now)
    assert found["data"] == {"b": "2", "c/d": "4"}


async def test_deletion_compares_waits_for_finalizers_and_is_told():
    kube = MemoryKube()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c-0", "namespace": "n"}}
    seen = kube.put(pod)
    other = Preconditions("other", seen["metadata"]["resourceVersion"])
    with pytest.raises(ConflictError):
        await kube.delete(PODS, "n", "c-0", preconditions=other)
    await kube.delete(PODS, "n", "c-0", preconditions=Preconditions.of(seen), grace_seconds=0)
    assert kube.deletions == [Deletion(PODS, "n", "c-0", Propagation.BACKGROUND, 0)]
    assert kube.all_of(PODS) == []
    held = kube.put(cluster(metadata={"name": "c", "namespace": "n", "finalizers": ["f"]}))
    await kube.delete(CLUSTERS, "n", "c", preconditions=Preconditions.of(held))
    assert (await kube.get(CLUSTERS, "n", "c"))["metadata"]["deletionTimestamp"]
    kube.edit(CLUSTERS, "n", "c", lambda one: one["metadata"].pop("finalizers"))
    assert kube.all_of(CLUSTERS) == []


async def test_deletion_of_what_holds_data_names_the_state_that_was_seen():
    kube = MemoryKube()
    seen = await kube.apply(broker_set(replicas=3))
    with pytest.raises(AssertionError):
        await kube.delete(SETS, "n", "c", preconditions=Preconditions(seen["metadata"]["uid"]))
    with pytest.raises(AssertionError):
        await kube.apply(broker_set(replicas=2), force=True)
    assert (await kube.get(SETS, "n", "c"))["spec"] == {"replicas": 3}


async def test_writes_are_kept_and_failures_planted():
    kube = MemoryKube()
    events = []
    kube.on_change = lambda event, value: events.append((event, value["metadata"]["name"]))
    kube.fail(UnavailableError("away"), verb="create")
    with pytest.raises(UnavailableError):
        await kube.create(config())
    await kube.create(config())
    with pytest.raises(AlreadyExistsError):
        await kube.create(config())
    assert kube.writes == [Write("create", CONFIG_MAPS, "n", "c")] * 3
    assert events == [("ADDED", "c")]


@pytest.mark.parametrize(
    ("selector", "is_met"),
    [("", True), ("a=1", True), ("a==1,b", True), ("a!=1", False), ("!c,b=2", True), ("c", False)],
)
def test_selectors(selector, is_met):
    assert selects(selector, {"a": "1", "b": "2"}) is is_met


async def test_lists_are_of_one_namespace_or_all():
    kube = MemoryKube()
    for namespace in ("n", "m"):
        kube.put(config() | {"metadata": {"name": "c", "namespace": namespace}})
    assert len((await kube.list_all(CONFIG_MAPS, "n")).items) == 1
    assert len((await kube.list_all(CONFIG_MAPS, "")).items) == 2


async def test_item_that_is_applied_no_more_goes_as_a_whole():
    kube = MemoryKube()
    kube.put(
        {
            "apiVersion": "liftbridge.io/v1alpha1",
            "kind": "LiftbridgeCluster",
            "metadata": {"name": "c", "namespace": "n"},
        }
    )

    async def tell(*types):
        conditions = [{"type": one, "status": "True", "reason": "R"} for one in types]
        body = {
            "apiVersion": "liftbridge.io/v1alpha1",
            "kind": "LiftbridgeCluster",
            "metadata": {"name": "c", "namespace": "n"},
            "status": {"conditions": conditions},
        }
        return (await kube.apply_status(body))["status"]["conditions"]

    await tell("Ready", "Stalled")
    assert [one["type"] for one in await tell("Ready")] == ["Ready"]


async def test_binding_keeps_its_role():
    kube = MemoryKube()

    def binding(role):
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "b", "namespace": "n"},
            "roleRef": {"kind": "ClusterRole", "name": role},
        }

    await kube.apply(binding("one"))
    with pytest.raises(InvalidError, match="roleRef"):
        await kube.apply(binding("two"))
