"""Random lives of a Raft group whose members hear that a process has ended."""

import pytest

from liftbridge_testkit.raft.election_life import ROUNDS, ElectionLife


@pytest.mark.parametrize("seed", range(10))
def test_ended_process_gives_one_leader_soon_and_disturbs_no_other(seed: int) -> None:
    life = ElectionLife(seed)
    assert life.run() == ROUNDS
    assert life.cluster.leader() is not None
