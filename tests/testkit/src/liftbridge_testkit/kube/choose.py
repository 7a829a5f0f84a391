"""Chooses the Kubernetes cluster of the end-to-end tests.

`KUBECONFIG` if it is set: a user's cluster, which is neither created nor removed. Otherwise kind,
if Docker answers and `kind` is installed. Otherwise the project's own cluster
(`tests/e2e/cluster`).

`python -m liftbridge_testkit.kube.choose` prints the choice.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from enum import Enum

DOCKER_SECONDS_MAX = 20
"""Limit of a Docker call: a client whose daemon is away may wait long."""


class Cluster(Enum):
    """Kubernetes cluster of the end-to-end tests."""

    GIVEN = "given"
    KIND = "kind"
    OWN = "own"


def docker_answers() -> bool:
    """Return whether a Docker daemon answers."""
    try:
        done = subprocess.run(
            ["docker", "info"], check=False, capture_output=True, timeout=DOCKER_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def choose(
    environ: Mapping[str, str],
    which: Callable[[str], str | None] = shutil.which,
    docker: Callable[[], bool] = docker_answers,
) -> Cluster:
    """Return the cluster to run on."""
    if environ.get("KUBECONFIG"):
        return Cluster.GIVEN
    if which("kind") is not None and docker():
        return Cluster.KIND
    return Cluster.OWN


if __name__ == "__main__":
    sys.stdout.write(choose(os.environ).value + "\n")
