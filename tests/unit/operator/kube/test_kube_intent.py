"""What differs between an object and what is intended is found without asking."""

import pytest

from liftbridge_operator.kube.intent import Difference, differences
from liftbridge_operator.kube.kinds import SERVICES, SETS
from liftbridge_testkit.kube.memory import MemoryKube


def broker_set(image="b:1", replicas=3, **extra):
    containers = [{"name": "broker", "image": image, "env": [{"name": "A", "value": "1"}]}]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "c", "namespace": "n", "labels": {"app": "c"}},
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": containers, "args": ["a", "b"]}},
        }
        | extra,
    }


def service(*ports):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"ports": list(ports)},
    }


async def test_nothing_differs_after_an_apply_and_what_the_server_fills_in():
    kube = MemoryKube()
    await kube.apply(broker_set())

    def fill_in(live):
        live["spec"]["podManagementPolicy"] = "Parallel"
        live["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent"
        live["status"] = {"replicas": 3}

    live = kube.edit(SETS, "n", "c", fill_in)
    assert differences(live, broker_set()) == ()


async def test_new_values_are_named_by_their_paths():
    kube = MemoryKube()
    live = await kube.apply(broker_set())
    assert differences(live, broker_set(image="b:2", serviceName="s")) == (
        Difference(".spec.template.spec.containers[name=broker].image", ""),
        Difference(".spec.serviceName", ""),
    )


async def test_drift_is_told_with_who_made_it():
    kube = MemoryKube()
    await kube.apply(broker_set())
    live = kube.edit(SETS, "n", "c", lambda one: one["spec"].update(replicas=5))
    assert differences(live, broker_set()) == (Difference(".spec.replicas", "kubectl"),)


async def test_field_that_is_no_longer_intended_differs():
    kube = MemoryKube()
    live = await kube.apply(broker_set(serviceName="s"))
    assert differences(live, broker_set()) == (Difference(".spec.serviceName", ""),)
    assert differences(await kube.apply(broker_set()), broker_set()) == ()


async def test_item_that_is_no_longer_intended_differs():
    kube = MemoryKube()
    both = broker_set()
    both["spec"]["template"]["spec"]["containers"].append({"name": "nats", "image": "n:1"})
    live = await kube.apply(both)
    assert differences(live, broker_set()) == (
        Difference(".spec.template.spec.containers[name=nats]", ""),
    )


@pytest.mark.parametrize("args", [["a"], ["b", "a"], ["a", "b", "c"], []])
async def test_atomic_lists_are_compared_whole(args):
    kube = MemoryKube()
    live = await kube.apply(broker_set())
    other = broker_set()
    other["spec"]["template"]["spec"]["args"] = args
    assert [one.field for one in differences(live, other)] == [".spec.template.spec.args"]


async def test_key_that_was_filled_in_is_no_difference():
    kube = MemoryKube()
    await kube.apply(service({"port": 80, "name": "http"}))
    live = kube.edit(SERVICES, "n", "c", lambda one: one["spec"]["ports"][0].update(protocol="TCP"))
    entry = live["metadata"]["managedFields"][0]
    filled = entry["fieldsV1"]["f:spec"]["f:ports"].popitem()[1]
    entry["fieldsV1"]["f:spec"]["f:ports"]['k:{"port":80,"protocol":"TCP"}'] = filled
    assert differences(live, service({"port": 80, "name": "http"})) == ()
    assert differences(live, service({"port": 80, "name": "https"}))


async def test_object_without_owners_differs_where_its_values_do():
    live = broker_set(image="b:1")
    assert [one.field for one in differences(live, broker_set(replicas=4))] == [".spec.replicas"]


async def test_empty_value_that_the_server_does_not_keep_is_no_difference():
    kube = MemoryKube()
    intent = broker_set(selector={})
    live = await kube.apply(intent)
    del live["spec"]["selector"]  # as the API server does, which goes on to name its owner
    assert differences(live, intent) == ()
    (entry,) = live["metadata"]["managedFields"]
    del entry["fieldsV1"]["f:spec"]["f:selector"]  # as when somebody removes it
    assert [one.field for one in differences(live, intent)] == [".spec.selector"]
