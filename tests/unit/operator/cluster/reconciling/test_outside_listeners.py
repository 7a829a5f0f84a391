"""Clients outside the cluster: what Kubernetes gives is read, told to brokers, and shown."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.observing.reads import Reads
from liftbridge_operator.cluster.planning.observation import SelfReport
from liftbridge_operator.cluster.reconciling.reached import listeners_of, node_addresses, reached_of
from liftbridge_operator.cluster.rendering.subject import Reached
from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.kinds import CONFIG_MAPS, PODS, SERVICES, SETS
from liftbridge_testkit.operator_sim.reconciled import NAME, NAMESPACE, ReconciledWorld
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

REPORT = SelfReport("c-0", "start", "directory", "id", has_metadata=True)
LISTENERS = [
    {"name": "internal"},
    {"name": "nodes", "type": "NodePort", "port": 9300},
    {"name": "balanced", "type": "LoadBalancer", "port": 9301},
]


def give_ports(world):
    """What the API server does when a Service is written."""
    for service in world.kube.all_of(SERVICES):
        if service["spec"]["type"] in ("NodePort", "LoadBalancer"):
            name = service["metadata"]["name"]
            world.kube.edit(SERVICES, NAMESPACE, name, lambda one: give_port(world, one))


def give_port(world, service):
    port = service["spec"]["ports"][0]
    names = sorted(world.kube.names_of(SERVICES))
    port.setdefault("nodePort", 30_000 + names.index(service["metadata"]["name"]))


def give_address(world, name, address):
    def change(service):
        service["status"] = {"loadBalancer": {"ingress": [{"ip": address}]}}

    world.kube.edit(SERVICES, NAMESPACE, name, change)


def told(world):
    found = [
        one
        for one in world.kube.all_of(CONFIG_MAPS)
        if one["metadata"]["name"] == f"{NAME}-listeners"
    ]
    return {name: text.split() for one in found for name, text in one["data"].items()}


def port_of(world, name):
    (found,) = [one for one in world.kube.all_of(SERVICES) if one["metadata"]["name"] == name]
    return found["spec"]["ports"][0]["nodePort"]


@pytest.fixture
async def world():
    made = ReconciledWorld({"listeners": LISTENERS})
    await made.until(lambda: f"{NAME}-nodes-2" in made.kube.names_of(SERVICES))
    return made


async def test_pods_start_when_the_ports_of_their_nodes_are_known(world):
    await world.go_on(5)
    assert world.kube.names_of(SETS) == []

    give_ports(world)
    await world.until(lambda: world.kube.names_of(SETS) != [])
    assert told(world) == {
        f"{NAME}-{number}": [f"nodes=:{port_of(world, f'{NAME}-nodes-{number}')}"]
        for number in range(3)
    }
    await world.until_ready()

    world.edit(lambda spec: spec.update(replicas=4))
    await world.go_on(5)
    assert f"{NAME}-3" not in world.kube.names_of(PODS)
    give_ports(world)
    await world.until_ready()
    assert f"{NAME}-3" in told(world)


async def test_addresses_that_come_later_restart_nobody_and_are_shown(world):
    give_ports(world)
    await world.until_ready()
    pods = {one["metadata"]["uid"] for one in world.kube.all_of(PODS)}
    await world.go_on(15)
    wait = {"what": "LoadBalancerPending", "object": f"Service {NAME}-balanced-0"}
    assert [one for one in world.status["waits"] if wait.items() <= one.items()]

    for number in range(3):
        give_address(world, f"{NAME}-balanced-{number}", f"192.0.2.{number}")
        world.kube.edit(
            PODS,
            NAMESPACE,
            f"{NAME}-{number}",
            lambda one, number=number: one["status"].update(hostIP=f"10.0.0.{number}"),
        )
    give_address(world, f"{NAME}-balanced", "192.0.2.9")
    await world.go_on(3)
    assert told(world)[f"{NAME}-2"][1] == "balanced=192.0.2.2:9301"
    _, nodes, balanced = world.status["listeners"]
    assert balanced["address"] == "192.0.2.9:9301"
    assert balanced["brokers"] == [f"192.0.2.{number}:9301" for number in range(3)]
    assert nodes["brokers"] == [
        f"10.0.0.{number}:{port_of(world, f'{NAME}-nodes-{number}')}" for number in range(3)
    ]
    assert nodes["address"] == f"10.0.0.0:{port_of(world, f'{NAME}-nodes')}"
    assert not world.status.get("waits")
    assert {one["metadata"]["uid"] for one in world.kube.all_of(PODS)} == pods

    # While a pod is away, its broker is where it was.
    world.kube.edit(PODS, NAMESPACE, f"{NAME}-1", lambda one: one["status"].pop("hostIP"))
    await world.go_on(2)
    assert world.status["listeners"][1] == nodes


async def test_a_cluster_with_addresses_is_written_to_no_more(world):
    give_ports(world)
    await world.until_ready()
    await world.go_on(20)
    before = world.kube.version
    await world.go_on(10)
    assert world.kube.version == before


async def test_given_ports_are_not_lost_where_the_operator_is_killed():
    """An apply that is cut off while it creates keeps them taken; a create does not."""
    given = [{"broker": 0, "nodePort": 30_040}]
    listeners = [
        {"name": "nodes", "type": "NodePort", "port": 9300, "brokers": given},
        {"name": "balanced", "type": "LoadBalancer", "port": 9301}
        | {"loadBalancerSourceRanges": ["192.0.2.0/24"], "annotations": {"a.example/b": "c"}}
        | {"brokers": [{"broker": 1, "nodePort": 30_041}]},
    ]
    world = ReconciledWorld({"listeners": listeners})
    await world.until(lambda: f"{NAME}-balanced-2" in world.kube.names_of(SERVICES))
    verbs = {}
    for one in world.kube.writes:
        if one.kind == SERVICES:
            verbs.setdefault(one.name, []).append(one.verb)
    begun = {f"{NAME}-nodes-0", f"{NAME}-balanced-1"}
    assert verbs == {
        name: ["create", "apply"] if name in begun else ["apply"]
        for name in world.kube.names_of(SERVICES)
    }
    made = services_of(world)

    # Killed in between, it goes on with what it began.
    world = ReconciledWorld({"listeners": listeners})
    await world.until(lambda: f"{NAME}-identity" in world.kube.names_of(CONFIG_MAPS))
    world.kube.fail(UnavailableError("cut off"), "apply", SERVICES)
    with pytest.raises(UnavailableError):
        await world.until(lambda: begun & set(world.kube.names_of(SERVICES)))
    (first,) = world.kube.all_of(SERVICES)
    assert first["spec"]["type"] == "NodePort"
    assert "annotations" not in first["metadata"]
    await world.until(lambda: f"{NAME}-balanced-2" in world.kube.names_of(SERVICES))
    assert services_of(world) == made


def services_of(world):
    return {
        one["metadata"]["name"]: (one["spec"], one["metadata"].get("annotations"))
        for one in world.kube.all_of(SERVICES)
    }


def test_what_services_were_given_is_read_as_it_stands():
    def service(name, port=None, *ingress):
        ports = [{"port": 1, **({"nodePort": port} if port else {})}]
        return {
            "metadata": {"name": name},
            "spec": {"ports": ports},
            "status": {"loadBalancer": {"ingress": list(ingress)}},
        }

    found = reached_of(
        [
            service("none"),
            service("port", 30_001),
            service("name", 30_002, {"hostname": "lb.example", "ip": "192.0.2.1"}),
            service("address", None, {}, {"ip": "192.0.2.1"}),
            {"metadata": {"name": "bare"}},
        ]
    )
    assert found == {
        "port": Reached(30_001),
        "name": Reached(30_002, "lb.example"),
        "address": Reached(0, "192.0.2.1"),
    }


def test_nodes_are_where_pods_see_them():
    def node(*addresses):
        return {
            "status": {"addresses": [{"type": kind, "address": one} for kind, one in addresses]}
        }

    seen = node(("Hostname", "n1"), ("InternalIP", "10.0.0.1"), ("ExternalIP", "192.0.2.1"))
    assert node_addresses(Reads({}, nodes=(seen, node(), {}))) == ("10.0.0.1",)
    assert node_addresses(Reads({})) == ()


def test_certificate_is_told_when_brokers_agree_on_it():
    (path,) = [one for one in PATHS if one.stem == "secured"]
    spec = load_spec(path, listeners=[{"name": "a", "tls": True}, {"name": "b", "port": 9300}])

    def told_of(*reports):
        found = listeners_of(cluster_of(spec), inputs_for(spec), reports)
        return [one.certificate for one in found]

    def report(fingerprint):
        return replace(REPORT, certificates=(("tls.cert", fingerprint), ("admin.tls.cert", "x")))

    assert told_of(report("f"), report("f")) == ["f", None]
    assert told_of(report("f"), report("g")) == told_of() == [None, None]
