"""What is waited for when nothing can be done: each wait from the observation it is about."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import Replacement
from liftbridge_testkit.operator_sim.samples import (
    NOW,
    healthy,
    recorded,
    with_broker,
    with_claim,
    with_desired,
    with_member,
    with_pod,
    with_report,
    with_set,
)


def closed(seen, **desired):
    """The same with another specification and the budget for others closed already."""
    return with_desired(replace(seen, budget=0), **desired)


def without_pod(seen, name):
    return replace(
        seen,
        pods=tuple(one for one in seen.pods if one.name != name),
        reports=tuple(one for one in seen.reports if one.broker != name),
    )


REPLACED = closed(healthy(), replace=(Replacement("c-2", "claim-c-2"),))
NEVER_PLACED = with_pod(REPLACED, "c-2", node="", is_running=False, is_ready=False)
GOING = with_claim(
    with_member(
        with_broker(
            with_pod(NEVER_PLACED, "c-2", is_terminating=True),
            "c-2",
            is_fenced=True,
        ),
        "c-2",
        is_voter=False,
        is_alive=False,
    ),
    "c-2",
    is_terminating=True,
)
EMPTY = with_report(
    with_member(
        with_broker(closed(healthy(4), replicas=3), "c-3", is_cordoned=True, is_draining=True),
        "c-3",
        is_voter=False,
    ),
    "c-3",
)

CASES = {
    "AnotherDisruption": with_pod(
        with_pod(closed(healthy(), revision="r2"), "c-1", changed_ms=NOW - 1),
        "c-2",
        changed_ms=NOW - 1,
    ),
    "BrokerAlive": NEVER_PLACED,
    "BrokersNotReady": with_pod(closed(healthy()), "c-1", is_ready=False),
    "GateReading": closed(healthy(), revision="r2"),
    "PodMissing": without_pod(recorded(healthy()), "c-2"),
    "PodStopping": with_pod(recorded(healthy()), "c-2", is_terminating=True),
    "ProofMissing": REPLACED,
    "SetTerminating": with_set(closed(healthy()), is_terminating=True),
    "Verifying": EMPTY,
    "VolumeTerminating": GOING,
}


@pytest.mark.parametrize("what", CASES)
def test_wait_is_told(what):
    decision = decide(CASES[what], Memory())
    assert decision.action is None
    assert what in {one.what for one in decision.status.waits}
