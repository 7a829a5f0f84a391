"""Rules that hold for every cluster that is rendered."""

import json
from dataclasses import replace

import pytest
import yaml

from liftbridge_broker.config.listeners import read_addresses
from liftbridge_broker.config.load import load
from liftbridge_operator.cluster.rendering import addresses
from liftbridge_operator.cluster.rendering.identity import identity, read_identity
from liftbridge_operator.cluster.rendering.render import configs_of, render
from liftbridge_operator.cluster.rendering.revision import RENDERER
from liftbridge_operator.cluster.rendering.subject import Reached
from liftbridge_operator.cluster.rendering.workload import (
    Marks,
    kept_configuration,
    kept_revision,
    read_record,
    read_revision,
    record_of,
    stateful_set,
)
from liftbridge_operator.model import names
from liftbridge_operator.model.network import ListenerType
from liftbridge_testkit.resources import clusters
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

BY_NAME = {path.stem: path for path in PATHS}
EVERY = pytest.mark.parametrize("name", sorted(BY_NAME))
TELLS_NOTHING = {"spec": {"volumes": [{"name": "c", "configMap": {"name": "of-another-one"}}]}}


def made(name, *, restart="", given=None, **changes):
    """A cluster rendered, with top-level fields of the specification changed."""
    spec = load_spec(BY_NAME[name], **changes)
    return render(cluster_of(spec, restart=restart), inputs_for(spec, **given or {}))


def broker_of(rendered):
    (container,) = rendered.template["spec"]["containers"]
    return container


def file_of(rendered, key=names.CONFIG_KEY):
    return rendered.configs[0]["data"][key]


@EVERY
def test_broker_takes_its_configuration(name, tmp_path):
    rendered = made(name)
    path = tmp_path / "broker.yaml"
    path.write_text(file_of(rendered), encoding="utf-8")
    environ = {entry["name"]: entry.get("value", "given") for entry in broker_of(rendered)["env"]}
    options = load(flags={}, environ=environ, path=str(path))
    assert options.clustering.server_id == "given"
    assert options.clustering.zone == "given"
    assert options.listen.advertised_host == "$(POD_NAME).orders-brokers.shop.svc"


@EVERY
def test_empty_directory_never_founds_by_itself(name):
    settings = yaml.safe_load(file_of(made(name)))
    assert settings["clustering.raft.bootstrap.wait"] == "true"
    assert not {key for key in settings if key.endswith((".seed", ".peers"))}


@EVERY
def test_subjects_between_brokers_contain_the_id_of_the_cluster(name):
    settings = yaml.safe_load(file_of(made(name)))
    assert settings["clustering.namespace"].endswith("-4f2c7a9e")


@EVERY
@pytest.mark.parametrize("replicas", [1, 2, 4, 5, 9, 100])
def test_revision_does_not_depend_on_the_number_of_brokers(name, replicas):
    config = {"streams": {}}
    here = made(name, config=config)
    there = made(name, config=config, replicas=replicas)
    assert there.revision == here.revision
    assert there.template == here.template
    assert there.configs == here.configs


APART = {
    "paused": True,
    "suspend": True,
    "disruption": {"mode": "Approval"},
    "networkPolicy": {"enabled": False},
    "scaling": {"rebalance": "Never"},
    "replaceBrokers": [{"broker": 0, "volumeUID": "1"}],
    "monitoring": {"serviceMonitor": {"enabled": True}},
    "streams": {"allowedNamespaces": ["*"]},
    "featureLevel": 1,
    "storage": {"data": {"size": "11Gi"}, "retention": {"whenDeleted": "Delete"}},
}


@pytest.mark.parametrize("field", sorted(APART))
def test_what_pods_do_not_show_restarts_nobody(field):
    here, there = made("least"), made("least", **{field: APART[field]})
    assert here.revision == there.revision
    assert held_after("least", {field: APART[field]}) is not None


SHOWN = {
    "image": "other:1",
    "version": "0.2.0",
    "config": {"logLevel": "debug"},
    "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}},
    "podTemplate": {"priorityClassName": "high"},
    "topology": {"nodeSpread": "Required"},
    "nats": {"embedded": {}},
    "tls": {"mode": "Generated"},
    "disruption": {"drainTimeout": "70s"},
}


@pytest.mark.parametrize("field", sorted(SHOWN))
def test_what_pods_show_is_another_revision_and_takes_with_it_what_is_held(field):
    here, there = made("least"), made("least", **{field: SHOWN[field]})
    assert here.revision != there.revision
    assert held_after("least", {field: SHOWN[field]}) is None


def test_asked_restart_is_another_revision():
    here, there = made("least"), made("least", restart="today")
    assert here.revision != there.revision
    assert held_after("least", restart="today") is None
    assert there.template["metadata"]["annotations"][names.RESTART] == "today"


def test_configuration_is_immutable_and_named_by_its_content():
    here, there = made("least"), made("least", config={"logLevel": "debug"})
    assert here.configs[0]["immutable"] is there.configs[0]["immutable"] is True
    assert here.configs[0]["metadata"]["name"] != there.configs[0]["metadata"]["name"]
    volumes = there.template["spec"]["volumes"]
    assert there.configs[0]["metadata"]["name"] in json.dumps(volumes)


def recorded(rendered, **changes):
    return replace(record_of(rendered), **changes)


def held_after(name, changes=None, restart=""):
    """What is held when a specification changed and the operator is another one as well."""
    before = recorded(made(name), renderer=0, revision="old", template={"spec": "old"})
    return made(name, restart=restart, given={"recorded": before}, **(changes or {})).held


def test_new_image_of_the_operator_restarts_nobody():
    before = made("least", given={"image": "broker:old"})
    there = made("least", given={"image": "broker:new", "recorded": record_of(before)})
    assert (there.revision, there.template) == (before.revision, before.template)
    assert there.image == "broker:old"
    assert there.held is not None
    assert there.held.causes == ("image broker:old becomes broker:new",)
    assert there.held.revision == made("least", given={"image": "broker:new"}).revision


def test_new_renderer_restarts_nobody():
    before = recorded(made("least"), renderer=0, revision="old", template={"spec": "old"})
    there = made("least", given={"recorded": before})
    assert (there.revision, there.template, there.renderer) == ("old", {"spec": "old"}, 0)
    assert there.held is not None
    assert there.held.causes == (f"renderer 0 becomes {RENDERER}",)
    assert there.configs == ()


def test_change_of_the_specification_takes_what_was_held_with_it():
    before = recorded(made("least"), renderer=0, revision="old", template={"spec": "old"})
    there = made("least", config={"logLevel": "debug"}, given={"recorded": before})
    assert there.held is None
    assert there.revision == made("least", config={"logLevel": "debug"}).revision


def test_what_was_asked_for_in_words_that_are_not_known_is_something_else():
    before = recorded(made("least"), asked="{}", revision="old")
    assert made("least", given={"recorded": before}).held is None


def test_change_of_the_image_is_one_although_the_image_of_both_is_the_same_now():
    before = recorded(made("least", image="broker:old"), revision="old")
    given = {"image": "broker:new", "recorded": before}
    assert made("least", image="broker:new", given=given).held is None


def test_new_operator_does_not_try_again_what_was_taken_back():
    good, bad = made("least"), made("least", config={"logLevel": "debug"})
    tried = {"recorded": recorded(good), "refused": recorded(bad, revision="bad")}
    there = made("least", config={"logLevel": "debug"}, given=tried)
    assert (there.revision, there.held.revision) == ("bad", bad.revision)
    other = made("least", config={"logLevel": "error"}, given=tried)
    assert (other.revision, other.held) == (
        made("least", config={"logLevel": "error"}).revision,
        None,
    )


def test_former_template_and_configuration_are_made_again_of_what_was_asked_for():
    before = made("least")
    spec = load_spec(BY_NAME["least"], config={"logLevel": "debug"})
    inputs = inputs_for(spec, image="broker:new")
    assert configs_of(cluster_of(spec), inputs, record_of(before)) == before.configs


@pytest.mark.parametrize(
    "changes", [{"asked": "{}"}, {"revision": "old", "template": TELLS_NOTHING}]
)
def test_what_this_operator_makes_otherwise_is_put_under_no_name(changes):
    spec = load_spec(BY_NAME["least"])
    before = recorded(made("least"), **changes)
    assert configs_of(cluster_of(spec), inputs_for(spec), before) == ()


def test_configuration_that_this_operator_makes_otherwise_is_put_again_as_it_was_kept():
    spec = load_spec(BY_NAME["least"])
    before = made("least")
    config, template = before.configs
    lost = recorded(before, asked="{}")
    kept = kept_configuration(template)
    assert configs_of(cluster_of(spec), inputs_for(spec), lost, kept) == (config,)
    changed = {names.CONFIG_KEY: "data.dir: /elsewhere"}
    assert configs_of(cluster_of(spec), inputs_for(spec), lost, changed) == ()


@pytest.mark.parametrize("text", ["", "[]", "{", None])
def test_configuration_may_not_be_kept_beside_a_template(text):
    body = {"data": {"configuration.json": text} if text is not None else {}}
    assert kept_configuration(body) is None


def test_nothing_is_held_while_nothing_differs():
    before = made("least")
    assert made("least", given={"recorded": record_of(before)}) == before


@EVERY
def test_set_tells_how_it_was_made(name):
    spec = load_spec(BY_NAME[name])
    cluster, inputs = cluster_of(spec), inputs_for(spec)
    record = record_of(render(cluster, inputs))
    live = stateful_set(cluster, inputs, record, Marks("good", "bad"), replicas=3, claim_bytes=1)
    assert read_record(live) == record
    assert read_revision(kept_revision(cluster, inputs, record)) == record
    assert live["metadata"]["annotations"][names.GOOD_REVISION] == "good"
    assert live["metadata"]["annotations"][names.BAD_REVISION] == "bad"


def test_set_of_somebody_else_tells_nothing():
    assert read_record({"metadata": {}, "spec": {"template": {}}}) is None
    odd = dict.fromkeys((names.REVISION, names.ASKED, names.RENDERER, names.IMAGE), "x")
    live = {"metadata": {"annotations": odd}, "spec": {"template": {}}}
    assert read_record(live) is None


@EVERY
def test_set_neither_replaces_pods_nor_deletes_volumes(name):
    spec = load_spec(BY_NAME[name])
    cluster, inputs = cluster_of(spec), inputs_for(spec)
    live = clusters.stateful_set(cluster, inputs, render(cluster, inputs))["spec"]
    assert live["updateStrategy"] == {"type": "OnDelete"}
    assert live["podManagementPolicy"] == "Parallel"
    retention = live["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_apply_of_the_set_carries_no_number_of_pods():
    spec = load_spec(BY_NAME["least"])
    cluster, inputs = cluster_of(spec), inputs_for(spec)
    record = record_of(render(cluster, inputs))
    applied = stateful_set(cluster, inputs, record, Marks(), replicas=None, claim_bytes=1)
    assert "replicas" not in applied["spec"]


def test_size_of_claims_on_the_set_is_the_one_it_was_made_with():
    spec = load_spec(BY_NAME["embedded"])
    cluster, inputs = cluster_of(spec), inputs_for(spec)
    record = record_of(render(cluster, inputs))
    live = stateful_set(cluster, inputs, record, Marks(), replicas=1, claim_bytes=7)
    data, raft = (one["spec"]["resources"]["requests"]["storage"] for one in _claims(live))
    assert (data, raft) == ("7", "1Gi")
    assert [one["metadata"]["labels"][names.CLUSTER_ID] for one in _claims(live)] == [
        "4f2c7a9e",
        "4f2c7a9e",
    ]


def _claims(live):
    return live["spec"]["volumeClaimTemplates"]


@EVERY
def test_pods_satisfy_the_restricted_profile(name):
    spec = made(name).template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    kinds = {key for one in spec["volumes"] for key in one} - {"name"}
    assert kinds <= {"configMap", "emptyDir", "secret"}
    for one in [*spec["containers"], *spec.get("initContainers", [])]:
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "hostPort" not in json.dumps(one["ports"])
        assert {"cpu", "memory"} <= set(one["resources"]["requests"])
        assert "memory" in one["resources"]["limits"]


@EVERY
def test_secrets_are_mounted_whole_and_named_once(name):
    spec = made(name).template["spec"]
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    mounts = [mount for one in containers for mount in one["volumeMounts"]]
    assert not any("subPath" in mount for mount in mounts)
    volumes = [one["name"] for one in spec["volumes"]]
    assert len(volumes) == len(set(volumes))
    claims = {names.DATA_VOLUME, names.RAFT_VOLUME}
    assert {mount["name"] for mount in mounts} <= {*volumes, *claims}


@EVERY
def test_probes_ask_this_broker_alone_and_stopping_is_bounded(name):
    spec = made(name).template["spec"]
    broker = spec["containers"][0]
    assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert broker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "startupProbe" not in broker
    sleep = broker["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < sleep < spec["terminationGracePeriodSeconds"]


def test_sidecar_is_a_native_one():
    (sidecar,) = made("embedded").template["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["failureThreshold"] == 60


def test_broker_goes_to_the_server_of_its_own_pod_first():
    settings = yaml.safe_load(file_of(made("embedded")))
    first, *others = settings["nats.servers"].split(",")
    assert first == "tls://127.0.0.1:4222"
    assert [one.split("//")[1].split(".")[0] for one in others] == [
        "orders-0",
        "orders-1",
        "orders-2",
    ]


def test_raft_volume_holds_the_metadata_alone():
    mounts = {one["name"]: one["mountPath"] for one in broker_of(made("embedded"))["volumeMounts"]}
    assert mounts[names.DATA_VOLUME] == "/var/lib/liftbridge"
    assert mounts[names.RAFT_VOLUME] == "/var/lib/liftbridge/metadata"
    assert names.RAFT_VOLUME not in {
        one["name"] for one in broker_of(made("least"))["volumeMounts"]
    }


def test_admin_speaks_mutual_tls_by_the_internal_authority_always():
    settings = yaml.safe_load(file_of(made("least")))
    files = {settings[f"admin.tls.{one}"] for one in ("cert", "key", "ca")}
    assert files == {f"/etc/liftbridge/internal/{one}" for one in ("tls.crt", "tls.key", "ca.crt")}
    assert "tls.cert" not in settings


REFUSED = {
    "topology.zoneLabel": {"topology": {"zoneLabel": "rack"}},
    "podTemplate.terminationGracePeriodSeconds": {"config": {"shutdownTimeout": "24s"}},
}


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_cannot_be_carried_out_is_told_with_its_field(field):
    (refusal,) = made("least", **REFUSED[field]).refusals
    assert str(refusal).startswith(f"spec.{field}: ")


@pytest.mark.parametrize(
    ("listeners", "texts"),
    [
        ([{"name": "internal"}], []),
        ([{"name": "brokers"}], ["listener brokers would have the Service of the brokers"]),
        (
            [{"name": "a"}, {"name": "a-0", "port": 9293}],
            ["a-0 is the Service of broker 0 of a"],
        ),
        ([{"name": "out", "type": "NodePort"}], []),
        ([{"name": "a"}, {"name": "b", "type": "LoadBalancer", "port": 9293}], []),
    ],
)
def test_listeners_that_cannot_be_served_are_told(listeners, texts):
    found = made("least", listeners=listeners).refusals
    assert [str(one) for one in found] == [f"spec.listeners: {text}" for text in texts]


OUTSIDE = [
    {"name": "internal"},
    {
        "name": "nodes",
        "type": "NodePort",
        "port": 9300,
        "brokers": [{"broker": 2, "nodePort": 31002}],
    },
    {"name": "balanced", "type": "LoadBalancer", "port": 9301},
    {"name": "second", "port": 9302},
]
REACHED = {
    "orders-nodes": Reached(node_port=30999),
    "orders-nodes-0": Reached(node_port=30500),
    "orders-balanced": Reached(host="lb.example"),
    "orders-balanced-1": Reached(node_port=30501, host="192.0.2.7"),
}


def told(rendered):
    (found,) = [one for one in rendered.objects if one["metadata"]["name"] == "orders-listeners"]
    return found["data"]


def loaded(rendered, tmp_path, **environ):
    path = tmp_path / "broker.yaml"
    path.write_text(file_of(rendered), encoding="utf-8")
    return load(flags={}, environ=environ, path=str(path))


def test_each_broker_is_told_its_own_addresses():
    data = told(made("least", listeners=OUTSIDE, given={"reached": REACHED}))
    assert {name: text.split() for name, text in data.items()} == {
        "orders-0": ["nodes=:30500", "second=orders-0.orders-brokers.shop.svc:9302"],
        "orders-1": ["balanced=192.0.2.7:9301", "second=orders-1.orders-brokers.shop.svc:9302"],
        "orders-2": ["nodes=:31002", "second=orders-2.orders-brokers.shop.svc:9302"],
    }
    for text in data.values():
        assert read_addresses(text.split())


def test_addresses_and_brokers_that_come_restart_nobody():
    here = made("least", listeners=OUTSIDE)
    there = made("least", listeners=OUTSIDE, replicas=5, given={"reached": REACHED})
    assert (there.revision, there.configs) == (here.revision, here.configs)


def test_brokers_read_their_addresses_from_a_volume_that_is_mounted_whole(tmp_path):
    rendered = made("least", listeners=OUTSIDE)
    environ = {one["name"]: one for one in broker_of(rendered)["env"]}
    file = environ["LIFTBRIDGE_LISTENERS_ADVERTISED_FILE"]["value"]
    (mount,) = [
        one["mountPath"]
        for one in broker_of(rendered)["volumeMounts"]
        if one["name"] == names.LISTENERS_VOLUME
    ]
    assert file == f"{mount}/$(POD_NAME)"
    host = environ["LIFTBRIDGE_LISTENERS_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert host == "status.hostIP"
    options = loaded(rendered, tmp_path, LIFTBRIDGE_LISTENERS_HOST="192.0.2.1")
    assert [(one.name, one.port, one.has_tls) for one in options.listeners] == [
        ("nodes", 9300, False),
        ("balanced", 9301, False),
        ("second", 9302, False),
    ]
    assert options.listeners[0].advertised[0] == "192.0.2.1"
    assert options.listen.port == 9292


def test_one_listener_needs_no_addresses():
    rendered = made("least")
    environ = {one["name"] for one in broker_of(rendered)["env"]}
    assert not {one for one in environ if one.startswith("LIFTBRIDGE_LISTENERS")}
    kinds = {one["kind"] for one in rendered.objects}
    assert "ConfigMap" not in kinds


def test_without_a_listener_inside_brokers_listen_to_their_own_pod(tmp_path):
    listeners = [{"name": "nodes", "type": "NodePort", "port": 9292}]
    options = loaded(made("least", listeners=listeners), tmp_path)
    assert (options.listen.host, options.listen.port) == ("127.0.0.1", 9291)
    assert [one.port for one in options.listeners] == [9292]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_each_listener_has_tls_or_not_as_asked(inside, outside, tmp_path):
    listeners = [
        {"name": "internal", "tls": inside},
        {"name": "nodes", "type": "NodePort", "port": 9300, "tls": outside},
    ]
    options = loaded(made("least", listeners=listeners, tls={"mode": "Generated"}), tmp_path)
    assert (options.listen.has_tls, options.listeners[0].has_tls) == (inside, outside)


def test_addresses_for_people_and_for_certificates():
    spec = load_spec(BY_NAME["least"], listeners=OUTSIDE)
    cluster = cluster_of(spec)
    inputs = inputs_for(spec, reached=REACHED, hosts={0: "192.0.2.1", 2: "fd00::2"})
    _, nodes, balanced, _ = spec.listeners
    assert list(addresses.known(cluster, inputs, nodes)) == [
        (0, "192.0.2.1", 30500),
        (2, "fd00::2", 31002),
    ]
    assert addresses.entrance_address(cluster, inputs, nodes) == "192.0.2.1:30999"
    assert addresses.entrance_address(cluster, inputs, balanced) == "lb.example:9301"
    bare = inputs_for(spec)
    assert addresses.entrance_address(cluster, bare, nodes) == "orders-nodes.shop.svc:9300"
    assert addresses.entrance_address(cluster, bare, balanced) == "orders-balanced.shop.svc:9301"
    assert addresses.unreached(cluster, inputs, ListenerType.NODE_PORT) == ("orders-nodes-1",)
    assert addresses.unreached(cluster, inputs, ListenerType.LOAD_BALANCER) == (
        "orders-balanced-0",
        "orders-balanced-2",
    )
    assert addresses.certified_hosts(cluster, inputs) == ()
    spec = load_spec(BY_NAME["outside"])
    inputs = inputs_for(spec, reached=REACHED, hosts={0: "192.0.2.1"})
    assert addresses.certified_hosts(cluster_of(spec), inputs) == ("192.0.2.7", "lb.example")


@pytest.mark.parametrize(
    ("mode", "count", "found"),
    [
        ({"mode": "Generated"}, 2, ("10.0.0.0", "10.0.0.1", "192.0.2.1")),
        ({"mode": "Generated"}, 101, ("192.0.2.1",)),
        ({"mode": "Secret", "secretName": "s"}, 2, ("192.0.2.1",)),
    ],
)
def test_certificate_of_our_own_is_valid_for_nodes_where_brokers_may_come(mode, count, found):
    listeners = [{"name": "nodes", "type": "NodePort", "tls": True}]
    spec = load_spec(BY_NAME["least"], listeners=listeners, tls=mode)
    inputs = inputs_for(
        spec,
        reached=REACHED,
        hosts={0: "192.0.2.1"},
        nodes=tuple(f"10.0.0.{number}" for number in range(count)),
    )
    assert addresses.certified_hosts(cluster_of(spec), inputs) == found


def test_identity_is_read_as_it_was_written():
    spec = load_spec(BY_NAME["least"])
    founders = (("orders-0", "a"), ("orders-1", "b"))
    written = identity(cluster_of(spec), inputs_for(spec), founders, is_started=True)
    assert read_identity(written) == ("4f2c7a9e", founders, True)
    written = identity(cluster_of(spec), inputs_for(spec), (), is_started=False)
    assert read_identity(written) == ("4f2c7a9e", (), False)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"cluster-id": "a"},
        {"cluster-id": "", "state": "started"},
        {"cluster-id": "a", "state": "begun"},
        {"cluster-id": "a", "state": "started", "founders": "["},
        {"cluster-id": "a", "state": "started", "founders": "[1]"},
    ],
)
def test_identity_that_somebody_else_wrote_is_refused(data):
    with pytest.raises(ValueError, match="the identity of the cluster"):
        read_identity({"data": data})


def test_longest_names_fit_into_a_label_of_dns():
    cluster, listener = "c" * 40, "l" * 11
    longest = [
        names.listener_of(cluster, listener, 99),
        names.headless(cluster),
        names.broker(cluster, 99),
        names.listener(cluster, listener),
    ]
    assert max(map(len, longest)) <= 63
    assert len(names.listener_port(listener)) <= 15


def test_kubernetes_chooses_ports_on_nodes_after_those_that_are_given():
    """Chosen before, one of them could be a port that another Service here is to have."""
    given = {"type": "NodePort", "brokers": [{"broker": 1, "nodePort": 30_041}]}
    rendered = made(
        "outside",
        listeners=[
            {"name": "chosen", "type": "LoadBalancer", "port": 9300},
            {"name": "given", "port": 9301, **given},
        ],
    )
    services = [one for one in rendered.objects if one["kind"] == "Service"]
    assert [one["metadata"]["name"] for one in services] == [
        "orders-given-1",
        "orders-brokers",
        *("orders-chosen", "orders-chosen-0", "orders-chosen-1"),
        *("orders-given", "orders-given-0"),
    ]
