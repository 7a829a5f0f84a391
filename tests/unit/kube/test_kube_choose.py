"""Which cluster the end-to-end tests run on."""

import pytest

from liftbridge_testkit.kube.choose import Cluster, choose
from liftbridge_testkit.kube.cluster import CommandError, Kubernetes, run


@pytest.mark.parametrize(
    ("environ", "has_kind", "has_docker", "chosen"),
    [
        ({"KUBECONFIG": "/etc/kubeconfig"}, True, True, Cluster.GIVEN),
        ({"KUBECONFIG": ""}, True, True, Cluster.KIND),
        ({}, True, True, Cluster.KIND),
        ({}, True, False, Cluster.OWN),
        ({}, False, True, Cluster.OWN),
        ({}, False, False, Cluster.OWN),
    ],
)
def test_choice(environ, has_kind, has_docker, chosen):
    kind = "/usr/bin/kind" if has_kind else None
    assert choose(environ, which=lambda _name: kind, docker=lambda: has_docker) is chosen


def test_docker_is_not_asked_where_it_does_not_matter():
    asked = []
    choose({"KUBECONFIG": "x"}, which=lambda name: name, docker=lambda: asked.append(1) or True)
    choose({}, which=lambda _name: None, docker=lambda: asked.append(1) or True)
    assert asked == []


def test_image_of_a_given_cluster_is_the_named_one():
    named = Kubernetes(Cluster.GIVEN, {"LIFTBRIDGE_BROKER_IMAGE": "mirror.example/broker:1"})
    assert named.image("broker") == "mirror.example/broker:1"
    with pytest.raises(CommandError, match="LIFTBRIDGE_BROKER_IMAGE"):
        Kubernetes(Cluster.GIVEN, {}).image("broker")


def test_program_is_found_on_the_path_of_the_cluster_first(tmp_path):
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho ours $*\n", encoding="utf-8")
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert Kubernetes(Cluster.OWN, environ).kubectl("get", "pods") == "ours get pods\n"


def test_failure_of_a_command_tells_what_it_printed():
    environ = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(CommandError, match=r"sh -c .*: out\nerr"):
        run(("sh", "-c", "echo out; echo err >&2; exit 3"), environ)
    with pytest.raises(CommandError, match="no-such-program is not on PATH"):
        run(("no-such-program",), environ)
