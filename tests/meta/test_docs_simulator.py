"""The page of the simulator names every fault, rare point and change there is, the specification
every invariant.
"""

import re

import pytest

from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.sim import rare
from liftbridge_testkit.sim.breaking import KINDS
from liftbridge_testkit.sim.clients.admin import OPERATIONS
from liftbridge_testkit.sim.clients.callers import REVOKED
from liftbridge_testkit.sim.clients.consumers import MEMBER_FAULTS
from liftbridge_testkit.sim.clients.granter import CHANGES
from liftbridge_testkit.sim.clients.rearranger import REARRANGING
from liftbridge_testkit.sim.cluster_life import COORDINATOR_FAULTS
from liftbridge_testkit.sim.cluster_life import FAULTS as CLUSTER_FAULTS
from liftbridge_testkit.sim.floors import floors_for
from liftbridge_testkit.sim.late_frames import LATE
from liftbridge_testkit.sim.lone_life import FAULTS as LONE_FAULTS
from liftbridge_testkit.sim.network import MESSAGE_FAULTS
from liftbridge_testkit.sim.voter_life import FAULTS as GROUP_FAULTS

PAGE = (ROOT / "docs" / "internals" / "simulator.md").read_text(encoding="utf-8")
SIMULATOR = ROOT / "tests" / "testkit" / "src" / "liftbridge_testkit" / "sim"
FAULTS = {
    "lone": LONE_FAULTS,
    "group": GROUP_FAULTS,
    "cluster": (*CLUSTER_FAULTS, *COORDINATOR_FAULTS, *MEMBER_FAULTS, REVOKED),
    "shapes": (*CLUSTER_FAULTS, "late frames"),
}
RARE = {*rare.CLUSTER, *LATE}
SPECIFICATION = (ROOT / "docs" / "spec" / "replication.md").read_text(encoding="utf-8")
INVARIANTS = {f"I{number}" for number in range(1, 29)}


def named(where: str) -> set[str]:
    """What the page names between a heading and the next one."""
    section = re.search(rf"^## {where}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    return set(re.findall(r"`([^`]+)`", section[1]))


def test_page_names_every_fault_and_every_change():
    changes = {*OPERATIONS, *REARRANGING, *CHANGES}
    missing = {*KINDS, *MESSAGE_FAULTS, *MEMBER_FAULTS, REVOKED, *changes} - named("Faults")
    assert missing == set()


def test_page_names_every_rare_point_and_no_other():
    assert named("Rare points") == RARE
    assert len(rare.CLUSTER) == len(set(rare.CLUSTER)) >= 30


def test_specification_names_every_invariant_that_is_looked_at():
    checked = set()
    for path in (SIMULATOR / "invariants").glob("*.py"):
        checked |= set(re.findall(r'"(I\d+)"', path.read_text(encoding="utf-8")))
    assert set(re.findall(r"^### (I\d+) ", SPECIFICATION, re.MULTILINE)) == INVARIANTS
    assert checked <= INVARIANTS


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_fault_of_a_world_has_a_floor(kind):
    floored = {name for group, name in floors_for({kind: 1_000}) if group == "fault"}
    assert floored >= set(FAULTS[kind])


def test_every_rare_point_has_a_floor():
    floored = {
        name for group, name in floors_for({"cluster": 1_000, "shapes": 1_000}) if group == "rare"
    }
    assert floored >= RARE
