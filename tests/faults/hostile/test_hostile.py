"""Attacks of clients on a running cluster under load; `make hostile` makes all, and for longer.

A machine that is busy with other work may take a while to turn: the bounds of time are wider here,
and those of a turn are of processor time in any case.
"""

from pathlib import Path

import pytest

from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.hostile.attacks import CONFIG, attacks, short
from liftbridge_testkit.hostile.judge import faults, judge

SECONDS = 2.0
TURN_SECONDS = 0.5
PATIENT = {
    **CONFIG,
    "clustering.raft.election.timeout": "5s",
    "clustering.broker.session.timeout": "15s",
    "clustering.replica.max.leader.timeout": "10s",
}


def test_short_form_names_attacks_that_exist() -> None:
    assert set(short()) <= {one.name for one in attacks()}


@pytest.mark.timeout(240)
def test_others_do_not_feel_what_hostile_clients_do(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, config=PATIENT, has_proxies=False) as cluster:
        found = judge(cluster, short(), seconds=SECONDS, bound=TURN_SECONDS)
    assert {felt.name: faults(felt) for felt in found if faults(felt)} == {}
    assert len(found) == len(short())
