"""Check whether this machine can run the project's own cluster; list everything that is missing.

`python -m liftbridge_testkit.kube.check build|up` prints nothing if nothing is missing. Otherwise
it ends with one message that names each missing part and its package, if there is one. If `CI` or
`KUBE_INSTALL=1` is set and only Debian packages are missing, it installs them.
"""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

# Program -> package of Debian that brings it.
PROGRAMS = {
    "awk": "mawk",
    "bc": "bc",
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "crun": "crun",
    "curl": "curl",
    "e2fsck": "e2fsprogs",
    "findmnt": "util-linux",
    "gcc": "gcc",
    "git": "git",
    "ip": "iproute2",
    "iptables": "iptables",
    "losetup": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "tune2fs": "e2fsprogs",
    "sysctl": "procps",
    "unshare": "util-linux",
}
FILES = {"/usr/lib/cni/bridge": "containernetworking-plugins", "/usr/include/stdio.h": "libc6-dev"}
GO_MIN = (1, 26)
INSTALL = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")

Output = Callable[[Sequence[str]], str]
"""Runs a command; its standard output, empty when it fails or does not exist."""


def output(command: Sequence[str]) -> str:
    """Return the output of a command, empty when it fails or does not exist."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def missing_packages(
    which: Callable[[str], str | None] = shutil.which,
    exists: Callable[[str], bool] = os.path.exists,
) -> dict[str, str]:
    """Return the missing programs and files, with the Debian packages that contain them."""
    path = {name: package for name, package in PROGRAMS.items() if which(name) is None}
    return path | {name: package for name, package in FILES.items() if not exists(name)}


def machine_faults(*, uid: int, system: str, mounts: str, unshared: bool) -> Iterator[str]:
    """Yield the faults that no package fixes.

    Args:
        uid: User id of this process.
        system: `sys.platform`.
        mounts: Content of `/proc/mounts`.
        unshared: Whether namespaces could be created in a trial.
    """
    if system != "linux":
        yield f"Linux: a node is a set of its namespaces, and this is {system}"
        return
    if uid != 0:
        yield "root: nodes get networks, mounts and control groups of their own"
    elif not unshared:
        yield "the right to make namespaces (`unshare --mount --net --pid --fork true` fails)"
    kinds = [line.split()[1:3] for line in mounts.splitlines()]
    if not any(kind == "cgroup" and place.endswith("/freezer") for place, kind in kinds):
        yield (
            "control groups of version 1, with the freezer: containerd of Debian 12 and the pause"
            " of a node need them; on a machine with version 2 alone use kind"
        )


def go_fault(version: str) -> str:
    """Return the fault of the Go toolchain, by the output of `go version`; empty for none."""
    found = re.search(r"go(\d+)\.(\d+)", version)
    needed = ".".join(map(str, GO_MIN))
    if found is None:
        return f"Go {needed} or newer: Kubernetes is built from its modules"
    if (int(found[1]), int(found[2])) < GO_MIN:
        return f"Go {needed} or newer: this is {found[1]}.{found[2]}"
    return ""


def overlapping_routes(
    routes: Iterable[Mapping[str, object]], networks: Sequence[str], bridge: str
) -> Iterator[str]:
    """Yield routes of this machine that overlap networks of the cluster, except the cluster's own.

    Args:
        routes: Output of `ip -j route show table all`.
        networks: Networks of the cluster.
        bridge: Device of the cluster's own routes.
    """
    wanted = [ipaddress.ip_network(network) for network in networks]
    for route in routes:
        destination = str(route.get("dst", "default"))
        is_own = route.get("dev") == bridge or route.get("type") == "unreachable"
        if destination == "default" or is_own:
            continue
        try:
            present = ipaddress.ip_network(destination, strict=False)
        except ValueError:
            continue  # a name of an address family without addresses
        for network in wanted:
            if present.version == network.version and present.overlaps(network):
                yield (
                    f"{network} for itself: there is a route to {destination} by"
                    f" {route.get('dev', 'another table')}; KUBE_NET, KUBE_POD_NET and"
                    " KUBE_SVC_NET choose other networks"
                )


def networks_of(environ: Mapping[str, str]) -> list[str]:
    """Return the networks of the cluster by its settings (see lib.sh)."""
    return [
        environ.get("KUBE_NET", "172.30.0") + ".0/24",
        environ.get("KUBE_POD_NET", "10.244") + ".0.0/16",
        environ.get("KUBE_SVC_NET", "10.96") + ".0.0/16",
    ]


def message(faults: Sequence[str], packages: Mapping[str, str]) -> str:
    """Return one text that names all missing parts, empty for none."""
    lines = [f"  - {fault}" for fault in faults]
    if packages:
        names = sorted(set(packages.values()))
        lines.append(f"  - programs: {', '.join(sorted(packages))}")
        lines.append(f"    on Debian: {' '.join(INSTALL)} {' '.join(names)}")
    if not lines:
        return ""
    return "This machine cannot run the cluster of tests/e2e/cluster; missing:\n" + "\n".join(lines)


def main(purpose: str, environ: Mapping[str, str], run: Output = output) -> str:
    """Check for `build` or `up`; return the message, empty if nothing is missing."""
    trial = ("unshare", "--mount", "--net", "--pid", "--fork", "echo", "made")
    faults = list(
        machine_faults(
            uid=os.geteuid(),
            system=sys.platform,
            mounts=Path("/proc/mounts").read_text(encoding="utf-8"),
            unshared=run(trial) != "",
        )
    )
    if purpose == "build":
        faults += filter(None, [go_fault(run(("go", "version")))])
    else:
        bridge = environ.get("KUBE_PREFIX", "lbk") + "br0"
        routes = json.loads(run(("ip", "-j", "route", "show", "table", "all")) or "[]")
        faults += overlapping_routes(routes, networks_of(environ), bridge)
    packages = missing_packages()
    may_install = environ.get("CI") or environ.get("KUBE_INSTALL") == "1"
    if packages and not faults and may_install and shutil.which("apt-get"):
        install(sorted(set(packages.values())))
        packages = missing_packages()
    return message(faults, packages)


def install(packages: Sequence[str]) -> None:
    """Install Debian packages; raise `CalledProcessError` on failure."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("apt-get", "update", "-qq"), (*INSTALL, *packages)):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], os.environ) or 0)  # an empty text would count as a failure
