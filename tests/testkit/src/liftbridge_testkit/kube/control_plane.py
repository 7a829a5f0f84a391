"""An API server and its etcd on separate ports, without nodes and controllers.

    with ControlPlane(folder) as plane:
        plane.kubernetes.kubectl("get", "namespaces")
        plane.kubeconfig("operator")        # of a user with all rights, whom the audit log names

The programs are those of the project's own cluster (`tests/e2e/cluster/build.sh` builds them),
which may run at the same time. etcd does not sync to disk, because measurements must not include
its disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from contextlib import ExitStack
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from liftbridge_testkit.certs import Authority
from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.kube.cluster import SCRIPTS, CommandError, Kubernetes
from liftbridge_testkit.processes import ServerProcess, free_port
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS: Final = Path(os.environ.get("KUBE_OUT", ROOT / ".cluster" / "out")) / "bin"
ADMIN: Final = "admin"
USERS: Final = (ADMIN, "operator")
READY_SECONDS_MAX: Final = 180.0
_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"


class _Etcd(ServerProcess):
    def __init__(self, folder: Path, programs: Path) -> None:
        super().__init__("etcd", folder, environment=None)
        self._programs = programs
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._peer_url = f"http://127.0.0.1:{free_port()}"

    def command(self) -> Sequence[str]:
        return [
            str(self._programs / "etcd"),
            f"--data-dir={self.work_dir / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=default={self._peer_url}",
        ]

    def is_ready(self) -> bool:
        return _answers(self._port, "/health", None)


class _ApiServer(ServerProcess):
    def __init__(self, folder: Path, programs: Path, etcd_url: str) -> None:
        super().__init__("kube-apiserver", folder, environment=None)
        self._programs = programs
        self._etcd_url = etcd_url
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.authority = Authority(folder / "pki")
        self._served = self.authority.issue("kube-apiserver")
        self._accounts = self.authority.issue("accounts")
        self._trust = ssl.create_default_context(cafile=str(self.authority.cert))
        tokens = "".join(f'{user},{user},{user},"system:masters"\n' for user in USERS)
        (folder / "tokens.csv").write_text(tokens, encoding="utf-8")

    def command(self) -> Sequence[str]:
        return [
            str(self._programs / "kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.work_dir / 'tokens.csv'}",
            f"--tls-cert-file={self._served.cert}",
            f"--tls-private-key-file={self._served.key}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={self._accounts.cert}",
            f"--service-account-signing-key-file={self._accounts.key}",
            "--enable-priority-and-fairness=false",
            "--profiling=false",
            f"--audit-policy-file={SCRIPTS / 'audit-policy.yaml'}",
            f"--audit-log-path={self.work_dir / 'audit.log'}",
        ]

    def is_ready(self) -> bool:
        return _answers(self._port, "/readyz", self._trust)


class ControlPlane:
    """Runs both programs while the context is open.

    Attributes:
        kubernetes: Cluster for kubectl, as administrator.
        audit_log: Path of the audit log of the API server.
    """

    def __init__(self, folder: Path, programs: Path = PROGRAMS) -> None:
        """Configure both programs.

        Args:
            folder: Directory of all files.
            programs: Directory of the programs.

        Raises:
            CommandError: The programs are not built.
        """
        needed = ("etcd", "kube-apiserver", "kubectl")
        if missing := [name for name in needed if not (programs / name).exists()]:
            built = f"{(SCRIPTS / 'build.sh').relative_to(ROOT)} builds them"
            raise CommandError(f"{', '.join(missing)}: not in {programs}; {built}")
        self._folder = folder
        self._etcd = _Etcd(folder, programs)
        self._server = _ApiServer(folder, programs, self._etcd.url)
        self._running = ExitStack()
        self.audit_log = folder / "audit.log"
        environ = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig(ADMIN)),
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self.kubernetes = Kubernetes(Cluster.GIVEN, environ)

    def __enter__(self) -> Self:
        """Start both.

        Raises:
            ProcessError: A program is not ready in time.
        """
        with ExitStack() as stack:
            for each in (self._etcd, self._server):
                stack.callback(each.kill)
                each.start(ready_seconds_max=READY_SECONDS_MAX)
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """End both at once."""
        self._running.close()

    def kubeconfig(self, user: str, token: str = "") -> Path:
        """Write the kubeconfig of one of `USERS`, or of a token's account; return its path."""
        path = self._folder / f"{user}.kubeconfig"
        place = {
            "server": self._server.url,
            "certificate-authority": str(self._server.authority.cert),
        }
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "only", "cluster": place}],
            "users": [{"name": user, "user": {"token": token or user}}],
            "contexts": [{"name": "only", "context": {"cluster": "only", "user": user}}],
            "current-context": "only",
        }
        path.write_text(json.dumps(body), encoding="utf-8")
        return path


def _answers(port: int, path: str, trust: ssl.SSLContext | None) -> bool:
    """Return whether a path answers with success."""
    place = ("127.0.0.1", port)
    if trust is None:
        connection = HTTPConnection(*place, timeout=2.0)
    else:
        connection = HTTPSConnection(*place, timeout=2.0, context=trust)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {ADMIN}"})
            return connection.getresponse().status == HTTPStatus.OK
        except (HTTPException, OSError):
            return False
