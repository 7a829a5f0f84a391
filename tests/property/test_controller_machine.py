"""Any commands in any order keep the invariants of the controller, and all nodes agree.

I11, I12 and I17 of the replication protocol are checked after every command (`ControllerWorld`).
"""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from liftbridge_broker.controller.commands import Command, RegisterBroker
from liftbridge_broker.controller.replay import apply, skip
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_testkit.controller_commands import KINDS, CommandMaker, random_command
from liftbridge_testkit.controller_world import ControllerWorld

SEEDS = range(60)
COMMANDS = 400


class ControllerMachine(RuleBasedStateMachine):
    """One world, and a twin that gets every command as bytes and lives through snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ControllerWorld()
        self.twin = ClusterState()

    def take(self, command: Command) -> None:
        before = encode_state(self.world.state)
        early = self.world.decide(command)
        assert encode_state(self.world.state) == before

        decision = self.world.apply(command)

        assert decision.records == early.records
        assert not (decision.records and isinstance(decision.answer, LiftbridgeError))
        index = MetadataIndex(self.twin.applied_index + 1)
        apply(self.twin, index, decode_command(encode_command(command)))

    @initialize()
    def begin(self) -> None:
        random = Random(1)
        for kind in ("register", "unfence"):
            for _ in range(10):
                self.take(CommandMaker(random, self.world.state).make(kind))

    @rule(kind=st.sampled_from(sorted(KINDS)), random=st.randoms(use_true_random=False))
    def command(self, kind: str, random: Random) -> None:
        self.take(CommandMaker(random, self.world.state).make(kind))

    @rule()
    def entry_without_a_command(self) -> None:
        index = MetadataIndex(self.twin.applied_index + 1)
        skip(self.world.state, index)
        skip(self.twin, index)

    @rule()
    def snapshot(self) -> None:
        self.twin = decode_state(encode_state(self.twin))

    @invariant()
    def both_are_equal(self) -> None:
        assert self.twin == self.world.state


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def walked(seed: int, commands: int) -> tuple[ControllerWorld, dict[str, int]]:
    """A world after random commands, and how often what matters happened."""
    random, world = Random(seed), ControllerWorld()
    seen: dict[str, int] = {}
    for _ in range(commands):
        decision = world.apply(random_command(random, world.state))
        for record in decision.records:
            name = str(getattr(record, "cause", type(record).__name__))
            seen[name] = seen.get(name, 0) + 1
            seen["unclean"] = seen.get("unclean", 0) + getattr(record, "is_unclean", False)
        if isinstance(decision.answer, LiftbridgeError):
            code = decision.answer.code
            seen[code] = seen.get(code, 0) + 1
    return world, seen


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_random_life_keeps_the_invariants_and_its_snapshot(seed: int) -> None:
    world, _ = walked(seed, COMMANDS)

    assert decode_state(encode_state(world.state)) == world.state


def test_random_lives_meet_everything_that_can_happen() -> None:
    total: dict[str, int] = {}
    for seed in SEEDS:
        for name, count in walked(seed, COMMANDS)[1].items():
            total[name] = total.get(name, 0) + count
    wanted = {
        "registered", "unfenced", "fenced", "shutting_down", "cordoned", "removed", "isr_altered",
        "reassigning", "reassigned", "reassignment_cancelled", "preferred", "recovered_uncleanly",
        "reported", "declared_unclean", "resigned", "stream_altered", "unclean", "StreamCreated",
        "StreamDeleted", "Bootstrapped", "FeatureLevelSet",
        "STALE_BROKER_EPOCH", "UNKNOWN_PARTITION", "NOT_CONTROLLER", "FENCED_LEADER_EPOCH",
        "INVALID_REQUEST", "INVALID_PARTITION_EPOCH", "INELIGIBLE_REPLICA", "FAILED_PRECONDITION",
    }  # fmt: skip
    assert sorted(name for name in wanted if total.get(name, 0) < 3) == []


DIGEST = """
import sys
sys.path.insert(0, sys.argv[1])
from test_controller_machine import digest
print(digest())
"""


def digest() -> str:
    """State and chain after a long random life, for comparison between processes."""
    world, _ = walked(7, 1_500)
    return f"{encode_state(world.state).hex()} {world.state.chain}"


def test_i16_the_hash_seed_does_not_show_in_a_cluster() -> None:
    here = str(Path(__file__).parent)
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert found == {digest()}


def test_r18_a_node_that_decided_otherwise_is_found_by_its_chain() -> None:
    world, _ = walked(3, 200)
    other = decode_state(encode_state(world.state))
    assert world.state.chain == other.chain
    for state, zone in ((world.state, "x"), (other, "y")):
        # Another record of the same index stands for a node that decided otherwise.
        wrong = RegisterBroker(
            broker=BrokerId("new"), incarnation_id="i", data_dir_id="d", zone=zone, feature_level=2
        )
        apply(state, MetadataIndex(state.applied_index + 1), wrong)
        skip(state, MetadataIndex(state.applied_index + 1))

    assert world.state.applied_index == other.applied_index
    assert world.state.chain != other.chain
