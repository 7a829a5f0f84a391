"""The operator of the stories: installation by its chart, kills, stops and logs.

It has the name of the release in the tutorial, so that the stories can follow the tutorial.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import IO, TYPE_CHECKING, Any, Final

from liftbridge_testkit.kube.audit import LEASES, parse
from liftbridge_testkit.kube.cluster import CommandError, run
from liftbridge_testkit.kube.nodes import Machines
from liftbridge_testkit.load import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from random import Random

    from liftbridge_testkit.kube.cluster import Kubernetes

RELEASE: Final = "liftbridge"
NAMESPACE: Final = "liftbridge-system"
CHART: Final = "helm/liftbridge-operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
LEASE: Final = RELEASE
INSTALL_SECONDS_MAX: Final = 180
WRITES_MAX: Final = 12
"""A random kill happens at one of this many writes after the request."""

POLL_SECONDS: Final = 0.05
PROGRAM: Final = "liftbridge-operator"


class OperatorRelease:
    """The operator as installed."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster

    def install(
        self, image: str, broker_image: str, *values: str, chart: Path | str = CHART
    ) -> None:
        """Install the release, or upgrade it to these values, and wait until it is ready.

        Args:
            image: Image of the operator, with its tag.
            broker_image: Image of brokers.
            values: Further `NAME=VALUE` for `--set`.
            chart: Folder of its chart.
        """
        repository, _, tag = image.rpartition(":")
        texts = {
            "image.repository": repository,
            "image.tag": tag,
            "brokerImage": broker_image.rpartition(":")[0],
        }
        command = [
            *("helm", "upgrade", RELEASE, str(chart), "--install", "--create-namespace"),
            *("--namespace", NAMESPACE, "--take-ownership", "--force-conflicts"),
            *("--wait", f"--timeout={INSTALL_SECONDS_MAX}s"),
        ]
        command += [part for pair in texts.items() for part in ("--set-string", "=".join(pair))]
        command += [part for value in values for part in ("--set", value)]
        run(command, self._cluster.environ)

    def upgrade(self, *values: str) -> None:
        """Change values of the release, keep all other values, and wait until it is ready.

        `NAME=null` resets a value to that of the chart.
        """
        command = [
            *("helm", "upgrade", RELEASE, CHART, "--namespace", NAMESPACE),
            *(
                "--reset-then-reuse-values",
                "--force-conflicts",
                "--wait",
                f"--timeout={INSTALL_SECONDS_MAX}s",
            ),
        ]
        command += [part for value in values for part in ("--set", value)]
        run(command, self._cluster.environ)

    def roll_back(self) -> None:
        """Roll back to the previous release.

        Raises:
            CommandError: An object was refused.
        """
        run(("helm", "rollback", RELEASE, "--namespace", NAMESPACE), self._cluster.environ)

    def uninstall(self) -> None:
        """Uninstall the release; definitions and resources stay."""
        run(
            (
                "helm",
                "uninstall",
                RELEASE,
                "--namespace",
                NAMESPACE,
                "--ignore-not-found",
                "--wait",
            ),
            self._cluster.environ,
        )

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
        found = self._cluster.kubectl(
            "--namespace", NAMESPACE, "get", "pods", selector, "--output=json"
        )
        listed: list[dict[str, Any]] = json.loads(found)["items"]
        return listed

    def leader(self) -> dict[str, Any] | None:
        """Return the pod that holds the Lease; None if no process does, or the pod is gone."""
        path = ("get", "lease", LEASE, "--output=jsonpath={.spec.holderIdentity}")
        holder = self._cluster.kubectl("--namespace", NAMESPACE, *path)
        name = holder.rpartition("_")[0]
        return next((pod for pod in self.pods() if pod["metadata"]["name"] == name), None)

    def signal_leader(self, number: signal.Signals) -> dict[str, Any] | None:
        """Send a signal to the leading process; return its pod, or None without a leader."""
        pod = self.leader()
        if pod is not None:
            self.signal(pod, number)
        return pod

    def signal(self, pod: dict[str, Any], number: signal.Signals) -> None:
        """Send a signal to the process in one of its pods; no-op if the pod is gone."""
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        for pid in Machines(self._cluster).pids(node, uid, PROGRAM):
            signal_process(pid, number)

    def roles(self) -> list[dict[str, Any]]:
        """Return the Roles and ClusterRoles of its release."""
        selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
        found = self._cluster.kubectl(
            *("get", "roles,clusterroles", "--all-namespaces", selector, "--output=json")
        )
        listed: list[dict[str, Any]] = json.loads(found)["items"]
        return listed

    def logs(self, seconds: float) -> str:
        """Return the logs of its processes in the last seconds, including former containers."""
        texts = []
        since = f"--since={int(seconds) + 1}s"
        for pod in self.pods():
            name = pod["metadata"]["name"]
            for more in ((), ("--previous",)):
                try:
                    texts.append(
                        self._cluster.kubectl("--namespace", NAMESPACE, "logs", name, since, *more)
                    )
                except CommandError:
                    continue  # there is no former container
        return "\n".join(texts)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Killer(Worker):
    """Kills the operator right after one of its writes, which it finds in the audit log.

    Attributes:
        write: Number of the write from the start on.
        killed: Logs at that time; empty before.
    """

    def __init__(self, cluster: Kubernetes, operator: OperatorRelease, rng: Random) -> None:
        super().__init__("operator-killer")
        self._operator = operator
        self._log = Machines(cluster).audit_log
        self._begin = self._log.stat().st_size
        self.write = rng.randint(1, WRITES_MAX)
        self.killed = ""

    def run(self) -> None:
        """Follow the audit log until the write appears, or until stopped."""
        seen = 0
        with self._log.open(encoding="utf-8") as file:
            file.seek(self._begin)
            for line in appended(file, self._stopping.is_set, self._stopping.wait):
                for request in parse([line]):
                    if request.user != USER or not request.is_write or request.resource == LEASES:
                        continue
                    seen += 1
                    if seen == self.write:
                        self._kill()
                        self.killed = f"{request.verb} {request.resource} {request.name}"
                        self._succeeded()
                        return

    def _kill(self) -> None:
        """Kill the leader as soon as the API server answers: a story may have stopped it."""
        while True:
            try:
                self._operator.signal_leader(signal.SIGKILL)
            except CommandError:
                if self._stopping.wait(POLL_SECONDS):
                    raise
            else:
                return


def appended(
    file: IO[str], is_over: Callable[[], bool], wait: Callable[[float], object]
) -> Iterator[str]:
    """Yield whole lines appended to a file as they arrive."""
    rest = ""
    while not is_over():
        part = file.readline()
        rest += part
        if rest.endswith("\n"):
            yield rest
            rest = ""
        elif not part:
            wait(POLL_SECONDS)
