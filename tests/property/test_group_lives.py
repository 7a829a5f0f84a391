"""Groups in random lives keep their promises, and survive as bytes.

`GroupLife` checks after each command: one reader for each partition, balance, no needless move, no
partition taken from a member that has not let go, fences of memberships and coordinators.
"""

from collections import Counter
from random import Random

import pytest

from liftbridge_broker.controller.replay import apply
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_testkit.group_life import GroupLife

SEEDS = range(12)
STEPS = 250


def lived(seed: int) -> GroupLife:
    life = GroupLife(Random(seed))
    for _ in range(STEPS):
        life.step()
    return life


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_their_promises_and_their_snapshot(seed: int) -> None:
    assert lived(seed).is_well


def test_lives_meet_everything_that_can_happen() -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        total.update(lived(seed).seen)

    wanted = {
        "joined", "subscribed", "left", "expired", "evicted", "released", "reassigned",
        "coordinator", "UNKNOWN_MEMBER", "NOT_FOUND", "FAILED_PRECONDITION",
    }  # fmt: skip
    assert sorted(name for name in wanted if total[name] < 5) == []


def test_a_follower_that_gets_commands_as_bytes_agrees() -> None:
    life = GroupLife(Random(99))
    twin = decode_state(encode_state(life.state))
    for _ in range(STEPS):
        before = life.state.applied_index
        command = life.step()
        if life.state.applied_index == before + 1:
            index = MetadataIndex(twin.applied_index + 1)
            apply(twin, index, decode_command(encode_command(command)))
        else:  # a broker returned first
            twin = decode_state(encode_state(life.state))
        assert twin == life.state
