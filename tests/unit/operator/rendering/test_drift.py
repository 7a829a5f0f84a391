"""What somebody else changed in an object: rendered fields only, and by whom."""

import copy

import pytest

from liftbridge_operator.rendering.drift import drift
from liftbridge_testkit.resources.clusters import (
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

PATH = {path.stem: path for path in PATHS}


def objects(name):
    spec = load_spec(PATH[name])
    return everything(cluster_of(spec), inputs_for(spec))


def only(name, kind, suffix=""):
    (found,) = [
        one
        for one in objects(name)
        if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)
    ]
    return found


@pytest.mark.parametrize("name", sorted(PATH))
def test_objects_do_not_differ_from_themselves(name):
    for one in objects(name):
        assert drift(copy.deepcopy(one), one) == ()


def test_what_the_api_server_adds_is_no_difference():
    wanted = only("least", "Service", "-internal")
    live = copy.deepcopy(wanted)
    live["metadata"] |= {"uid": "1", "resourceVersion": "2"}
    live["metadata"]["annotations"] = {"somebody/else": "x"}
    live["spec"] |= {"clusterIP": "10.96.0.7", "sessionAffinity": "None"}
    live["spec"]["ports"][0]["nodePort"] = 31000
    live["status"] = {"loadBalancer": {}}
    assert drift(live, wanted) == ()


def test_defaults_and_dropped_emptiness_of_a_set_are_no_difference():
    wanted = only("secured", "StatefulSet")
    live = copy.deepcopy(wanted)
    pod = live["spec"]["template"]["spec"]
    pod |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    pod["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    pod["containers"][0]["resources"]["requests"]["cpu"] = "2000m"
    pod["containers"][0]["resources"]["limits"]["memory"] = "4096Mi"
    del next(one for one in pod["volumes"] if one["name"] == "keys")["secret"]["optional"]
    live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "100Gi"
    live["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"] = "Filesystem"
    assert drift(live, wanted) == ()


def test_changed_values_are_told_with_path_and_both_values():
    wanted = only("embedded", "PodDisruptionBudget")
    live = copy.deepcopy(wanted)
    live["spec"]["maxUnavailable"] = 5
    (found,) = drift(live, wanted)
    assert found[:3] == ("spec.maxUnavailable", 5, 1)


def test_items_of_lists_are_told_apart_by_their_names():
    wanted = only("embedded", "Service", "-brokers")
    live = copy.deepcopy(wanted)
    live["spec"]["ports"].reverse()
    assert drift(live, wanted) == ()
    live["spec"]["ports"][0]["port"] = 1
    (found,) = drift(live, wanted)
    assert found[:3] == ("spec.ports[routes].port", 1, 6222)


def test_what_was_added_to_a_list_of_ours_is_told():
    wanted = only("least", "StatefulSet")
    live = copy.deepcopy(wanted)
    live["spec"]["template"]["spec"]["containers"].append({"name": "spy", "image": "spy"})
    (found,) = drift(live, wanted)
    assert found.path == "spec.template.spec.containers[spy]"
    assert found.wanted is None


def test_removed_and_shortened_fields_are_told():
    wanted = only("secured", "NetworkPolicy")
    live = copy.deepcopy(wanted)
    del live["metadata"]["labels"]["liftbridge.io/cluster"]
    live["spec"]["policyTypes"] = ["Ingress"]
    assert [one.path for one in drift(live, wanted)] == [
        "metadata.labels.liftbridge.io/cluster",
        "spec.policyTypes",
    ]


def test_manager_of_a_changed_field_is_named():
    wanted = only("least", "Service", "-internal")
    live = copy.deepcopy(wanted)
    live["spec"]["ports"][0]["port"] = 1
    ports = {'k:{"port":1,"protocol":"TCP"}': {"f:port": {}}}
    live["metadata"]["managedFields"] = [
        {"manager": "liftbridge-operator", "fieldsV1": {"f:spec": {"f:type": {}}}},
        {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:ports": ports}}},
    ]
    (found,) = drift(live, wanted)
    assert found.manager == "kubectl-edit"


@pytest.mark.parametrize(
    ("live", "wanted", "is_same"),
    [
        ("1Gi", "1024Mi", True),
        ("1073741824", "1Gi", True),
        ("1Gi", "1G", False),
        ("0.5", "500m", True),
        ("2", "2000m", True),
        ("2", "200m", False),
        ("odd", "1Gi", False),
    ],
)
def test_quantities_are_compared_by_value(live, wanted, is_same):
    def of(amount):
        return {"spec": {"resources": {"requests": {"x": amount}}}}

    assert (drift(of(live), of(wanted)) == ()) is is_same
    assert drift({"spec": {"text": "1Gi"}}, {"spec": {"text": "1024Mi"}}) != ()
