"""The Kubernetes cluster of the end-to-end tests: creation, use and removal.

    with running(choose(os.environ)) as cluster:
        image = cluster.image("broker")
        cluster.kubectl("apply", "-f", "-", text=manifest)

The project's own cluster and a kind cluster are created and removed again, unless the project's own
cluster was already up. A given cluster (`KUBECONFIG`) is used as it is; variables such as
`LIFTBRIDGE_BROKER_IMAGE` name its images, because its registries are unknown. Each step reports its
duration.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.repository import ROOT

SCRIPTS = ROOT / "tests" / "e2e" / "cluster"
KIND_NAME = "liftbridge-e2e"
KIND_CONFIG = """\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}, {role: worker}]
"""
TAG = "e2e"
COMMAND_SECONDS_MAX = 300.0
"""Limit of one call of kubectl; `wait` and `rollout status` have lower limits."""


class CommandError(Exception):
    """A command failed; the message ends with what it printed."""


@dataclass(slots=True)
class Kubernetes:
    """A running cluster.

    Attributes:
        kind: Kind of the cluster.
        environ: Environment for kubectl, helm and the scripts: `KUBECONFIG` and `PATH` are its.
    """

    kind: Cluster
    environ: Mapping[str, str]

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl; return its standard output.

        Args:
            arguments: Arguments of kubectl.
            text: Standard input.

        Raises:
            CommandError: The command failed, or did not end in time.
        """
        return run(("kubectl", *arguments), self.environ, text=text)

    def image(self, part: str, dockerfile: str = "") -> str:
        """Build the image of a part and load it on every node; return its name.

        Args:
            part: Name of the part.
            dockerfile: Dockerfile in the repository; by default `Dockerfile.<part>`.

        Raises:
            CommandError: The build failed, or the given cluster's image is not named.
        """
        name = f"liftbridge.test/{part}:{TAG}"
        dockerfile = dockerfile or f"Dockerfile.{part}"
        with timed(f"image of the {part} built and on every node"):
            match self.kind:
                case Cluster.GIVEN:
                    variable = f"LIFTBRIDGE_{part.upper().replace('-', '_')}_IMAGE"
                    if not (name := self.environ.get(variable, "")):
                        raise CommandError(f"{variable} must name an image that KUBECONFIG has")
                case Cluster.KIND:
                    run(("docker", "build", "-q", "-f", dockerfile, "-t", name, "."), self.environ)
                    run(("kind", "load", "docker-image", "--name", KIND_NAME, name), self.environ)
                case Cluster.OWN:
                    script(self.environ, "images.sh", "build", name, dockerfile)
        return name


@contextmanager
def running(kind: Cluster) -> Iterator[Kubernetes]:
    """Run a cluster of this kind while the context is open.

    Raises:
        CommandError: The cluster could not be created; its parts were removed again.
    """
    match kind:
        case Cluster.GIVEN:
            yield Kubernetes(kind, os.environ)
        case Cluster.KIND:
            with _kind() as cluster:
                yield cluster
        case Cluster.OWN:
            with _own() as cluster:
                yield cluster


@contextmanager
def _own() -> Iterator[Kubernetes]:
    base = ROOT / ".cluster"
    out = Path(os.environ.get("KUBE_OUT", base / "out"))
    state = Path(os.environ.get("KUBE_STATE", base / "state"))
    config = state / "admin.kubeconfig"
    path = f"{out / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = {**os.environ, "KUBECONFIG": str(config), "PATH": path}
    was_up = config.exists()
    with timed("programs and base images built"):
        script(environ, "build.sh")
    try:
        with timed("cluster up, all nodes ready"):
            script(environ, "up.sh")
        yield Kubernetes(Cluster.OWN, environ)
    finally:
        if not was_up:
            with timed("cluster down"):
                script(environ, "down.sh")


@contextmanager
def _kind() -> Iterator[Kubernetes]:
    folder = Path(tempfile.mkdtemp(prefix="liftbridge-kind-"))
    environ = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    create = ("kind", "create", "cluster", "--name", KIND_NAME, "--config", "-", "--wait", "180s")
    try:
        with timed("cluster up, all nodes ready"):
            run(create, environ, text=KIND_CONFIG)
        yield Kubernetes(Cluster.KIND, environ)
    finally:
        with timed("cluster down"):
            run(("kind", "delete", "cluster", "--name", KIND_NAME), environ)
        shutil.rmtree(folder)


def script(environ: Mapping[str, str], name: str, *arguments: str) -> None:
    """Run a script of the project's own cluster, and show its progress.

    Raises:
        CommandError: The script failed.
    """
    # Its output is not captured, because its background processes keep the pipe open.
    done = subprocess.run(
        [SCRIPTS / name, *arguments], check=False, env=environ, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise CommandError(f"{name} {' '.join(arguments)}: status {done.returncode}, see above")


def run(command: Sequence[str], environ: Mapping[str, str], *, text: str = "") -> str:
    """Run a command at the root of the repository; return its standard output.

    Raises:
        CommandError: The command failed, or did not end in time.
    """
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise CommandError(f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            check=False,
            capture_output=True,
            cwd=ROOT,
            env=environ,
            input=text,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(command)}: no end after {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise CommandError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the duration of a step after its success."""
    started = monotonic()
    yield
    sys.stdout.write(f"e2e: {monotonic() - started:7.1f} s  {what}\n")
    sys.stdout.flush()
