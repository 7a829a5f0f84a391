"""`make images` on machines with other tools and clusters; each program writes itself down."""

import shutil
import subprocess

import pytest
import yaml

from liftbridge_testkit.repository import ROOT

VERSION = yaml.safe_load((ROOT / "helm/liftbridge-operator/Chart.yaml").read_text())["appVersion"]
IMAGES = [f"docker.io/library/liftbridge-{part}:{VERSION}" for part in ("broker", "operator")]
LOADS = {
    "kind-dev": "kind load image-archive --name dev",
    "k3d-dev": "k3d image import --cluster dev",
    "minikube": "minikube image load",
}


@pytest.fixture
def machine(tmp_path):
    """Runs the script where some programs are there; how it ended, and what they were asked."""
    path = tmp_path / "bin"
    path.mkdir()
    calls = tmp_path / "calls"
    for name in ("sh", "sed", "mktemp", "rm", "dirname", "env"):
        program = shutil.which(name)
        assert program is not None
        (path / name).symlink_to(program)

    def run(*programs, context="", **variables):
        for name in (*programs, "kind", "k3d", "minikube"):
            text = f'#!/bin/sh\necho "{name} $*" >>{calls}\n'
            (path / name).write_text(text)
            (path / name).chmod(0o755)
        (path / "kubectl").write_text(f"#!/bin/sh\necho {context}\n")
        (path / "kubectl").chmod(0o755)
        done = subprocess.run(
            [str(ROOT / "deploy" / "images.sh")],
            env={"PATH": str(path), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


@pytest.mark.parametrize("context", LOADS)
@pytest.mark.parametrize("tool", ["docker", "podman", "nerdctl", "buildah"])
def test_each_tool_builds_what_the_chart_names_and_each_local_cluster_gets_it(
    machine, tool, context
):
    done, calls = machine(tool, context=context)
    assert done.returncode == 0, done.stderr
    built = [one for one in calls if one.startswith(f"{tool} build")]
    assert [one.split(" -t ")[1] for one in built] == [f"{image} ." for image in IMAGES]
    loaded = [one for one in calls if one.startswith(LOADS[context])]
    assert len(loaded) == len(IMAGES)
    assert all(one.endswith(".tar") for one in loaded)


def test_chart_and_brokers_ask_for_these_images():
    values = yaml.safe_load((ROOT / "helm/liftbridge-operator/values.yaml").read_text())
    spec = next(yaml.safe_load_all((ROOT / "examples/events.yaml").read_text()))["spec"]
    asked = [
        f"{values['brokerImage']}:{spec['version']}",
        f"{values['image']['repository']}:{VERSION}",
    ]
    assert [f"docker.io/library/{one}" for one in asked] == IMAGES


def test_readme_prints_what_the_example_holds():
    text = (ROOT / "examples/events.yaml").read_text()
    assert f"```yaml\n{text}```" in (ROOT / "README.md").read_text()


def test_unknown_cluster_is_told_what_to_push(machine):
    done, _ = machine("podman", context="company")
    assert done.returncode == 0
    assert all(f"push {image}" in done.stdout for image in IMAGES)


def test_machine_without_a_tool_is_told_which_would_do(machine):
    done, calls = machine()
    assert done.returncode == 1
    assert "docker, podman, nerdctl or buildah" in done.stderr
    assert calls == []
