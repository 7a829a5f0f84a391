"""Simulated schedules of the operator: nothing breaks, everything ends ready, a seed is a trace."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import Plan, Step
from liftbridge_operator.cluster.planning.observation import Member
from liftbridge_testkit.operator_sim import judge
from liftbridge_testkit.operator_sim.api import Api
from liftbridge_testkit.operator_sim.brokers import Brokers
from liftbridge_testkit.operator_sim.cli import main
from liftbridge_testkit.operator_sim.errors import ApiError, InvariantError
from liftbridge_testkit.operator_sim.operator import LEASE_MS
from liftbridge_testkit.operator_sim.samples import healthy, pod
from liftbridge_testkit.operator_sim.seeds import run_seed, run_some
from liftbridge_testkit.operator_sim.stage import Seen
from liftbridge_testkit.operator_sim.world import World

CHUNKS = 15
CHUNK = 100
REGRESSION_SEEDS = (
    *(1, 12, 100, 105, 124, 154, 193, 205, 432, 486, 625, 710, 774, 1023, 1179, 1379, 1498),
    *(3647, 6464, 7200, 7462, 7596, 11176, 11812, 20052),
    *(687, 1021, 1103, 1299, 2191, 3884, 7001, 16974, 19455),
)
"""Seeds that once showed something; what a seed does changes with the schedules."""

FLOORS = {
    ("action", "Bootstrap"): 60,
    ("action", "DeleteClaim"): 5,
    ("action", "OrphanSet"): 15,
    ("action", "Retire"): 15,
    ("action", "TransferLeaders"): 40,
    ("action", "TransferMetadataLeadership"): 30,
    ("deleted", "ready"): 100,
    ("fault", "operator killed"): 150,
    ("fault", "operator paused"): 150,
    ("fault", "node lost"): 40,
    ("reached", "restart proven"): 100,
    ("wish", "bad template"): 25,
    ("wish", "drain or its end"): 20,
    ("wish", "restart of one"): 15,
}
"""What each chunk of schedules has to meet; one that meets less proves less than it should."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_anything_and_each_ends_ready(chunk):
    total = run_some(range(10_000 + chunk * CHUNK, 10_000 + (chunk + 1) * CHUNK))
    assert [one.failure for one in total.failures] == []
    assert {
        key: total.counts[key] for key, least in FLOORS.items() if total.counts[key] < least
    } == {}


def test_schedules_that_once_showed_something_pass():
    assert [one.failure for one in run_some(REGRESSION_SEEDS).failures] == []


def test_same_seed_gives_the_same_trace():
    first, second = run_seed(7, keeps_trace=True), run_seed(7, keeps_trace=True)
    assert first.trace_hash == second.trace_hash
    assert first.trace == second.trace
    assert run_seed(8).trace_hash != first.trace_hash


def test_command_runs_a_range_and_one_seed_again(capsys):
    assert main(["--seeds", "3:5", "--workers", "1"]) == 0
    assert "2 schedules" in capsys.readouterr().out
    assert main(["--replay", "3", "--verbose"]) == 0
    assert "nothing broke" in capsys.readouterr().out


# -- the judge --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "step"),
    [
        (act.DeletePod("c-1", "u", 1), Step("Restart", "c-1", "")),
        (act.DeletePod("c-1", "u", 1), Step("ReplaceVolume", "c-1", "")),
        (act.DeleteClaim("c-1", "u", 1), Step("ReplaceVolume", "c-1", "")),
        (act.GrowClaim("c-1", "u", 1, 20), Step("GrowVolume", "c-1", "")),
        (act.SetFeatureLevel(2), Step("RaiseFeatureLevel", "c", "")),
        (act.SetReplicas("u", 1, 4), Step("AddBroker", "c-3", "")),
        (act.SetReplicas("u", 1, 2), Step("RemoveBroker", "c-2", "")),
    ],
)
def test_action_that_is_no_step_of_the_plan_is_noticed(action, step):
    seen = Seen(healthy(), 0)
    judge.planned(Plan(steps=(step,), step_count=1), action, seen)
    other = replace(step, object="c-9")
    with pytest.raises(InvariantError, match="none of the steps that were planned"):
        judge.planned(Plan(steps=(other,), step_count=1), action, seen)


# -- the models themselves --------------------------------------------------------------------


def test_writes_need_the_version_that_was_seen():
    api = Api()
    made = api.put_pod(pod("c-0"))
    api.put_pod(made, is_ready=False)
    with pytest.raises(ApiError, match="409"):
        api.pod("c-0", made.uid, made.resource_version)
    assert api.pod("c-0", made.uid, api.pods["c-0"].resource_version).is_ready is False


def test_stale_reads_show_a_former_state():
    api = Api()
    made = api.put_pod(pod("c-0"))
    api.keep()
    api.put_pod(made, is_ready=False)
    assert api.former(0).pods["c-0"].is_ready
    assert not api.snapshot().pods["c-0"].is_ready


def test_second_operator_gets_the_lease_only_when_it_is_old():
    world = World(1)
    first, second = world.operators
    first._renew()
    with pytest.raises(ApiError, match="409"):
        second._renew()
    world.stage.now += LEASE_MS
    second._renew()
    assert world.stage.api.lease[0] == second.name


def test_two_processes_of_one_broker_are_noticed():
    world = World(1)
    world.stage.brokers.new_disk("claim")
    world.stage.brokers.start("c-0", "a", "claim")
    with pytest.raises(InvariantError, match="two processes"):
        world.stage.brokers.start("c-0", "b", "claim")


def ready_world(seed=3):
    """A schedule that has run to its end."""
    world = World(seed)
    world.run()
    return world


def test_lost_acknowledged_records_are_noticed():
    world = ready_world()
    for disk in world.stage.brokers.disks.values():
        disk.logs.clear()
    assert world.stage.brokers.partitions
    with pytest.raises(InvariantError, match="are lost"):
        world.stage.brokers.check_acked()


def test_second_history_is_noticed():
    world = ready_world()
    assert len(world.stage.brokers.histories) == 1
    other = Brokers(world.stage.rng)
    other.histories = list(world.stage.brokers.histories)
    other.new_disk("claim")
    other.start("c-0", "a", "claim")
    me = Member("c-0", other.disks["claim"].dir_id)
    with pytest.raises(InvariantError, match="a second history"):
        other.bootstrap(me, "another", (me,))
