"""What the project's own cluster asks of a machine, and the one message about what is missing."""

import subprocess
import sys

import pytest

from liftbridge_testkit.kube.check import (
    FILES,
    PROGRAMS,
    go_fault,
    machine_faults,
    message,
    missing_packages,
    networks_of,
    overlapping_routes,
)

HYBRID = "cgroup /sys/fs/cgroup/freezer cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw\n"
UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
NETWORKS = ["172.30.0.0/24", "10.244.0.0/16", "10.96.0.0/16"]


def faults(**changed):
    given = {"uid": 0, "system": "linux", "mounts": HYBRID, "unshared": True}
    return list(machine_faults(**(given | changed)))


def overlaps(*routes):
    return list(overlapping_routes(routes, NETWORKS, "lbkbr0"))


def test_machine_with_everything_lacks_nothing():
    assert faults() == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"system": "darwin"}, "Linux"),
        ({"uid": 1000, "unshared": False}, "root"),
        ({"unshared": False}, "unshare"),
        ({"mounts": UNIFIED}, "control groups of version 1"),
    ],
)
def test_what_no_package_mends_is_named_once(changed, named):
    (fault,) = faults(**changed)
    assert named in fault


@pytest.mark.parametrize(
    ("version", "is_fine"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go2.0 linux/amd64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("", False),
    ],
)
def test_go_must_be_new_enough(version, is_fine):
    assert (go_fault(version) == "") is is_fine


def test_missing_programs_come_with_their_packages():
    missing = missing_packages(
        which=lambda name: None if name == "nft" else f"/bin/{name}", exists=lambda _path: False
    )
    assert missing == {"nft": "nftables", **FILES}


def test_one_message_names_everything_that_is_missing():
    text = message(["root", "Go 1.26"], {"nft": "nftables", "tc": "iproute2", "ip": "iproute2"})
    assert text.splitlines()[1:] == [
        "  - root",
        "  - Go 1.26",
        "  - programs: ip, nft, tc",
        "    on Debian: apt-get install -y -qq --no-install-recommends iproute2 nftables",
    ]
    assert message([], {}) == ""


def test_every_program_of_the_list_has_a_package():
    assert all(PROGRAMS.values())


@pytest.mark.parametrize(
    "route",
    [
        {"dst": "default", "dev": "eth0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
        {"dst": "172.30.0.0/24", "dev": "lbkbr0"},
        {"dst": "10.244.0.0/16", "type": "unreachable"},
        {"dst": "fe80::/64", "dev": "eth0"},
        {"dst": "multicast", "dev": "eth0"},
    ],
)
def test_routes_of_others_and_of_the_cluster_itself_are_let_be(route):
    assert overlaps(route) == []


@pytest.mark.parametrize(
    "destination", ["10.244.3.0/24", "10.0.0.0/8", "172.30.0.7", "172.16.0.0/12"]
)
def test_route_into_a_network_of_the_cluster_is_refused(destination):
    found = overlaps({"dst": destination, "dev": "vpn0"})
    assert found
    assert all(f"{destination} by vpn0" in fault for fault in found)


def test_networks_follow_the_settings():
    assert networks_of({}) == NETWORKS
    assert networks_of({"KUBE_POD_NET": "10.100"})[1] == "10.100.0.0/16"


@pytest.mark.parametrize("purpose", ["build", "up"])
def test_command_fails_exactly_when_it_has_something_to_say(purpose, monkeypatch):
    for name in ("CI", "KUBE_INSTALL"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "liftbridge_testkit.kube.check", purpose],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    assert (done.returncode == 0) is (done.stderr == "")
