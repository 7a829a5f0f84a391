"""Members of a group on three brokers; `make consumers` plays the same for 200 rounds."""

from pathlib import Path
from random import Random

import pytest

from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.consumers.history import History
from liftbridge_testkit.consumers.members import OVERLAP_SECONDS_MAX, PROGRAMS
from liftbridge_testkit.consumers.rounds import CONFIG, PARTITIONS, Publisher, Rounds
from liftbridge_testkit.go_client import GO

SESSIONS = {"python": "2s", "go": "5s"}
"""A member of the Go client that is once removed, such as by a busy machine, never joins again."""

PLAYED = [client for client in PROGRAMS if client != "go" or GO is not None]
OWNER_SECONDS_MAX = 10.0
"""Less than 3 s on a machine that does nothing else."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", PLAYED)
def test_nothing_is_lost_or_doubled_while_members_and_the_coordinator_come_and_go(
    client: str, tmp_path: Path
) -> None:
    history = History(PARTITIONS, OVERLAP_SECONDS_MAX[client])
    program = PROGRAMS[client](tmp_path)
    config = CONFIG | {"groups.consumer.timeout": SESSIONS[client]}
    with ClusterKit(tmp_path, config=config, has_proxies=False) as cluster:
        rounds = Rounds(cluster, program, history, tmp_path, Random(1))
        rounds.create()
        publisher = Publisher(rounds.servers, history)
        publisher.start()
        try:
            rounds.begin()
            for kind in ("join", "coordinator", "kill", "leave"):
                rounds.play(kind)
            publisher.stop()
            rounds.end()
        finally:
            rounds.close()
    assert sum(history.ends.values()) > PARTITIONS
    assert history.missing_count() == 0
    assert history.faults() == []
    assert rounds.owner_seconds
    assert max(rounds.owner_seconds) < OWNER_SECONDS_MAX
