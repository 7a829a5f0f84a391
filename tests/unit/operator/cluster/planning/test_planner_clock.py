"""A clock that is set back, or is behind others: no wait becomes longer than it is anyway.

Each field of the model that holds a moment is either one that a case below waits for, or one that
nobody waits for. Each case goes on twice, with a clock that was set back by days and with one that
was not, and comes to the same.
"""

from dataclasses import fields, is_dataclass, replace

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning import decision as decisions
from liftbridge_operator.cluster.planning import observation as observations
from liftbridge_operator.cluster.planning import refusals
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory, Token
from liftbridge_operator.cluster.planning.observation import DesiredVolume, StuckCause
from liftbridge_operator.cluster.planning.refusals import BACKOFF_MAX_MS, Refusal
from liftbridge_operator.cluster.planning.roll import TOKEN_LEFT_MS
from liftbridge_testkit.operator_sim.samples import (
    came_back,
    healthy,
    kinds,
    later,
    passes,
    recorded,
    with_broker,
    with_desired,
    with_member,
    with_pod,
)

DAYS_MS = 3 * 86_400_000
STEP_MS = 1_000
NOW = 10 * DAYS_MS

HEALTHY = replace(healthy(), now_ms=NOW, budget=0)
ROLLING = with_desired(HEALTHY, revision="r2")
HALF_ROLLED = with_pod(ROLLING, "c-1", revision="r2", is_ready=False)
GROWING = with_desired(replace(HEALTHY, budget=1), data_volume=DesiredVolume(20))
DRAINED = with_member(
    with_broker(
        replace(healthy(4, replicas=3), now_ms=NOW, budget=0),
        "c-3",
        is_cordoned=True,
        is_draining=True,
    ),
    "c-3",
    is_voter=False,
)
STUCK = with_pod(HALF_ROLLED, "c-2", is_ready=False, is_running=False, stuck=StuckCause.CRASH_LOOP)


def refused(seen, count):
    """The memory after so many refusals of every growth."""
    memory = Memory()
    for claim in seen.claims:
        action = act.GrowClaim(claim.name, claim.uid, claim.resource_version, 20)
        for _ in range(count):
            memory = refusals.noted(
                memory,
                "GrowClaim",
                refusals.object_of(action),
                Refusal("VolumeCannotGrow", "no"),
                generation=1,
                now=NOW,
            )
    return memory


CASES = {
    "Pod.created_ms": (
        with_pod(with_pod(ROLLING, "c-1", created_ms=NOW), "c-2", is_ready=False),
        Memory(),
    ),
    "Pod.changed_ms": (with_pod(ROLLING, "c-1", changed_ms=NOW, revision="r2"), Memory()),
    "Pod.changed_ms, back": (with_pod(came_back(ROLLING), "c-2", changed_ms=NOW), Memory()),
    "Pod.changed_ms, unready": (
        with_pod(HALF_ROLLED, "c-2", is_ready=False, changed_ms=NOW),
        Memory(),
    ),
    "Pod.stuck_since_ms": (
        with_pod(STUCK, "c-2", changed_ms=NOW, stuck_since_ms=NOW),
        Memory(),
    ),
    "GateReading.first_ms": (ROLLING, decide(ROLLING, Memory()).memory),
    "GateReading.last_ms": (ROLLING, passes(ROLLING, 2)[-1].memory),
    "Memory.empty": (DRAINED, decide(DRAINED, Memory()).memory),
    "Refused.until_ms": (GROWING, replace(refused(GROWING, 1), now_ms=NOW)),
    "Refused.until_ms, at most": (GROWING, replace(refused(GROWING, 20), now_ms=NOW)),
}
"""Field, and an observation with a memory that wait because of it. All are of `NOW`."""

UNCOMPARED = {
    "Memory.now_ms": "the clock itself",
    "Observation.now_ms": "the clock itself",
    "BrokerSet.created_ms": "compared with that of a claim: both are of the API server",
    "Claim.created_ms": "compared with that of the set",
    "SelfReport.clock_ms": "told only",
    "Disruption.since_ms": "tells that the clock was set back since",
    "Disruption.expires_ms": "no wait: see below",
    "Token.expires_ms": "no wait: see below",
    "TokenAnswer.expires_ms": "becomes that of the token",
    "Decision.deadline_ms": "of one pass",
    "Wait.since_ms": "told only: see below",
}


def moments(*modules):
    """Fields of a model that hold moments."""
    return {
        f"{name}.{field.name}"
        for module in modules
        for name, kind in vars(module).items()
        if is_dataclass(kind) and kind.__module__ == module.__name__
        for field in fields(kind)
        if field.name.endswith("_ms")
    }


def test_every_moment_of_the_model_is_tried():
    tried = {name.partition(",")[0] for name in CASES} - {"Memory.empty"}
    assert moments(decisions, observations) == tried | UNCOMPARED.keys()


def reached(seen, memory, length_ms):
    """The first action, and how long it takes; what is waited for where there is none."""
    decision = decide(seen, memory)
    for at in range(0, length_ms, STEP_MS):
        if decision.action is not None:
            return type(decision.action), at
        decision = decide(later(seen, at + STEP_MS), decision.memory)
    return {one.what for one in decision.status.waits}, length_ms


@pytest.mark.parametrize("case", CASES)
def test_wait_is_no_longer_after_the_clock_was_set_back(case):
    seen, memory = CASES[case]
    usual, took_ms = reached(seen, memory, BACKOFF_MAX_MS + 10 * STEP_MS)
    assert isinstance(usual, type), "it ends"
    # Readings are made anew, since nobody knows how much time has passed.
    again = 3 * STEP_MS
    found, _ = reached(later(seen, -DAYS_MS), memory, took_ms + again + STEP_MS)
    assert found == usual


@pytest.mark.parametrize("field", ["created_ms", "changed_ms", "stuck_since_ms"])
def test_pod_of_a_node_whose_clock_is_ahead_is_waited_for_from_when_it_is_first_seen(field):
    case = next(name for name in CASES if name.startswith(f"Pod.{field}"))
    seen, _ = CASES[case]
    ahead = replace(
        seen,
        pods=tuple(
            replace(one, **{field: NOW + DAYS_MS}) if getattr(one, field) == NOW else one
            for one in seen.pods
        ),
    )
    usual = reached(seen, Memory(), BACKOFF_MAX_MS)
    assert isinstance(usual[0], type)
    assert usual[1] > 0
    assert reached(ahead, Memory(), BACKOFF_MAX_MS) == usual


def test_consent_does_not_last_longer_because_the_clock_was_set_back():
    memory = passes(ROLLING, 3)[-1].memory
    token = Token("c-2", "uid-c-2", "t", NOW + 60_000, 1)
    memory = replace(memory, token=token)
    assert isinstance(decide(later(ROLLING, 9_000), memory).action, act.Record)
    back = [one for one in passes(later(ROLLING, -DAYS_MS), 3, memory) if one.action is not None]
    assert kinds(back)[0] == "CheckRestart"


def test_recorded_restart_is_given_up_when_the_clock_was_set_back():
    seen = recorded(ROLLING)
    assert "DeletePod" in kinds(passes(seen, 3))
    assert kinds(passes(later(seen, -DAYS_MS), 1)) == ["KeepPod"]
    assert kinds(passes(later(seen, 600_000 - TOKEN_LEFT_MS + 1), 1)) == ["KeepPod"]


def test_waits_that_a_status_told_by_a_later_clock_begin_now():
    seen = with_pod(HEALTHY, "c-1", is_ready=False)
    former = tuple(
        replace(one, since_ms=NOW + DAYS_MS) for one in decide(seen, Memory()).status.waits
    )
    waits = decide(seen, Memory(waits=former)).status.waits
    assert former
    assert {one.since_ms for one in waits} == {NOW}


def test_moments_ahead_are_forgotten_with_their_pods():
    seen = with_pod(ROLLING, "c-1", changed_ms=NOW + DAYS_MS)
    memory = decide(seen, Memory()).memory
    assert memory.ahead == ((NOW + DAYS_MS, NOW),)
    assert decide(ROLLING, memory).memory.ahead == ()
