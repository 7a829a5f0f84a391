"""Actions on the nodes and the control plane of the project's own cluster.

Only that cluster can be disturbed (`Cluster.OWN`); see `tests/e2e/cluster/node.sh` and `volume.sh`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.kube.cluster import COMMAND_SECONDS_MAX, SCRIPTS, CommandError

if TYPE_CHECKING:
    from liftbridge_testkit.kube.cluster import Kubernetes


class Machines:
    """Nodes, volumes and daemons of the project's own cluster."""

    def __init__(self, cluster: Kubernetes) -> None:
        """Raise `CommandError` for any other cluster."""
        if cluster.kind is not Cluster.OWN:
            raise CommandError(f"the machines of a {cluster.kind.value} cluster cannot be hurt")
        self._cluster = cluster

    @property
    def state(self) -> Path:
        """Return the directory of all files of the cluster."""
        return Path(self._cluster.environ["KUBECONFIG"]).parent

    @property
    def audit_log(self) -> Path:
        """Return the path of the audit log of the API server."""
        return self.state / "audit.log"

    def node(self, act: str, node: str, *arguments: str) -> str:
        """Run `node.sh`: start, crash, destroy, cut, heal, pause, resume, stop, restart, exec."""
        return self._script("node.sh", act, node, *arguments)

    def volume(self, act: str, node: str, volume: str, *arguments: str) -> str:
        """Run `volume.sh`: lose, readonly, path."""
        return self._script("volume.sh", act, node, volume, *arguments)

    def wipe_volume(self, node: str, volume: str) -> None:
        """Remove all files of a volume that is a directory; the empty directory stays."""
        for path in Path(self.volume("path", node, volume).strip()).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def kill_daemon(self, name: str) -> None:
        """SIGKILL a program of the control plane, such as `kube-apiserver`; it is restarted."""
        os.kill(int((self.state / f"{name}.main").read_text()), signal.SIGKILL)

    def retag(self, image: str, other: str) -> None:
        """Give an image another name on every node."""
        for path in sorted((self.state / "nodes").iterdir()):
            tag = ("ctr", "-n", "k8s.io", "images", "tag", "--force", image, other)
            self.node("exec", path.name, *tag)

    def load_images(self, *images: str) -> None:
        """Load built images on all nodes again, because one of them is new."""
        folder = Path(self._cluster.environ.get("KUBE_OUT", self.state.parent / "out")) / "images"
        names = [image.replace("/", "_").replace(":", "_") for image in images]
        self._script("images.sh", "load", *(str(folder / f"{name}.tar") for name in names))

    def pids(self, node: str, pod_uid: str, program: str) -> list[int]:
        """Return the processes of a pod whose command line has this word, by the machine's pids."""
        prefix = self._cluster.environ.get("KUBE_PREFIX", "lbk")
        root = Path("/sys/fs/cgroup/pids") / prefix / node
        found: set[int] = set()
        for group in root.glob(f"**/*pod{pod_uid}/**/cgroup.procs"):
            found |= {int(line) for line in group.read_text().split()}
        return sorted(pid for pid in found if program in _command(pid))

    def signal_pod(self, node: str, pod_uid: str, program: str, number: signal.Signals) -> int:
        """Send a signal to processes of a pod; return their number.

        Raises:
            CommandError: There was no process.
        """
        found = self.pids(node, pod_uid, program)
        for pid in found:
            os.kill(pid, number)
        if not found:
            raise CommandError(f"no process {program} of pod {pod_uid} on {node}")
        return len(found)

    def _script(self, name: str, *arguments: str) -> str:
        # Background processes of a script must not keep a pipe open.
        output = self.state / "script.out"
        with output.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                [SCRIPTS / name, *arguments],
                check=False,
                env=dict(self._cluster.environ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_SECONDS_MAX,
            )
        text = output.read_text(encoding="utf-8")
        if done.returncode != 0:
            raise CommandError(f"{name} {' '.join(arguments)}: {text}")
        return text


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
