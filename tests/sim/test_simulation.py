"""A slice of the simulator's seeds: fixed ones, those that once found a fault, and its own proofs.

`make sim SEEDS=a:b` runs as many as there is time for; a failing seed prints what replays it.
"""

import os
import subprocess
import sys

import pytest

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.cli import main
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.floors import floors_for
from liftbridge_testkit.sim.seeds import TURN, WORLDS, kind_of, run_seed, seed_range
from liftbridge_testkit.sim.world import Watcher

SEEDS = range(6)
"""Of each kind of world; `test_seeds.py` plays fresh ones of all."""

REGRESSION_SEEDS = {
    # An error of the disk in a reader that was woken by a publish answered the publish.
    # A log that was found damaged counted as whole after a stop in order.
    "lone": (1, 11, 95, 1030, 1152, 2049, 7015, 232_796_684_153),
    # A paused leader of an old term was measured against what later terms had committed; a new disk
    # that was damaged before it had a vote was never replaced.
    # A snapshot that was removed came back in a power cut, and asked for log files that did not.
    "group": (10, 57, 3_002_086, 3_003_861, 3_004_741, 3_005_411, 161_842_168_526),
    "cluster": (
        11,
        18,
        73,
        98,
        1434,
        5025,
        5096,
        5233,
        5300,
        20086,
        20091,
        30115,
        30267,
        30270,
        30394,
        31080,
        31188,
        40046,
        # A publisher that began anew was told its sequence by a follower and not by the leader.
        1001490,
        # A late answer made a follower forget that it could not declare its damage yet.
        1001750,
        # The last acknowledged record rotted, and was cut as if a crash had torn it.
        1001099,
        # A process that ended before it opened its clean directory: no fault.
        1001855,
        # A late registration of a former process kept the present one out for ever.
        2001397,
        # A leader that was cut off removed by retention what its followers kept: no fault.
        1002182,
        # Readers got the fork of a follower where retention had left its leader nothing to compare.
        3001437,
        891_004_668,
        # Those that were complete last had lost all, and the one that had it all was not asked.
        3024244,
        3027290,
        # A change of the metadata was looked at late: no fault.
        3024700,
        # A cut took away what compacted headers had told of publishers, and a retry was stored.
        5000382,
        # As 90003721 of other shapes.
        91002978,
        # Brokers that disagreed about the leader asked each other as fast as frames travel.
        95000202,
        # A leader that knew a publisher no more let it begin anew; the next one did know it, and
        # took its messages for those of before.
        100_000_467,
        # A leader resumed its partition, wrote what had waited, and followed, all in one turn: no
        # fault.
        50_669_333_710,
        # A reader waited where retention had left nothing to read: no fault.
        200_005_465,
        # A spoiled disk of a broker that was no voter yet was not replaced: no fault.
        230_000_082,
        # The refused disk of a learner was not replaced, as only two voted: no fault.
        520_000_750,
        # A broker that had started with a clock in the past stamped records before it believed the
        # date; and most clocks were in the past when the cluster was founded.
        600004915,
        580000595,
        # As 50669333710, elected once more before it followed: no fault.
        630_000_626,
        # The disk of a replica went while another, which could not be read, was copied anew: more
        # than is promised.
        760_004_344,
        # A broker that failed an append was taken for one that gives up what it has: no fault.
        780_004_895,
        # A disk that had been slow was given less time than the work took that it still had: no
        # fault.
        820_000_559,
        # All clocks were set back for a while, soon after the leader had started: it stamped
        # records with the past, which were old too early.
        840_000_163,
        # As 260490472482 of shapes: no fault.
        260_490_473_814,
        189_465_230_440,
        # A broker whose clock was behind stamped records with the time of the newest that it had,
        # long ago, while another broker was away: they were too old when it was back.
        940_001_371,
    ),
    "shapes": (
        # A leader that stood still longer than it waits for the metadata group took its request for
        # one that was never made, and committed without a member that had come into sync.
        90003721,
        # The ack of a leader was taken for one of all, as a client knew of no other replica yet: no
        # fault.
        201_000_622,
        201_000_953,
        201_004_448,
        # A log that began anew was called damaged after a kill: the journal knew the former one.
        90003882,
        # A log rotted at a replica that was being moved away: no fault.
        154_333_530_622,
        # A sole member lost its power after the minimum in sync was raised to two: no fault.
        92_000_771,
        # As 100000467 of whole clusters.
        99_000_188,
        # The ack of a leader that still had several replicas was taken for that of the only one,
        # by whoever publishes over NATS: no fault.
        410_002_857,
        # A partition waited for a spoiled disk that is replaced next: no fault.
        410_003_382,
        # The minimum was lowered to one while a power cut was to come: no fault.
        640_001_400,
        # An index that could not be read refused a batch that had been written already.
        34_892_687_077,
        # A factor that grew late added a replica that the last check held to the history: no fault.
        710_004_216,
        # Two spoiled disks waited for each other after the minimum was lowered: no fault.
        730_000_375,
        7_000_815,
        # A clock in the past was the date while the third broker was away: what it stamped was old
        # once that was back.
        750_001_065,
        # An unclean election waited for a spoiled disk that is replaced next: no fault.
        810_000_975,
        # An only replica that others joined in the turn that made it had not journaled its epoch.
        37_095_299_427,
        # An empty replica was elected while another with all records was starting.
        890_003_792,
        # The only replica lost what nobody alive knew of any more: no fault.
        910_001_075,
        # Tombstones of one key were taken for each other: no fault.
        260_490_472_482,
        # Who was asked as the leader, did not know yet what is committed, and followed another one
        # by then, told what it knew.
        970_000_224,
        # Nobody in sync was left but a spoiled disk, which could have been replaced: no fault.
        950_001_169,
        # A member may not commit a position of a stream that it may not read, nor join for a
        # pattern that matches such a stream: no faults.
        400_001_029,
        400_001_173,
        # The check of activities read from a disk that failed: no fault.
        400_003_645,
        # Activity was turned off before its stream existed: the events of before were never stored.
        400_005_389,
        # A broker that stopped was busy with a round of group lags that was due.
        400_001_069,
        # A group that an operator ended still had members for the check of activities: no fault.
        7301,
        # A broker without the key refused on NATS what its successor stored: not definite. A broker
        # that was not ready yet was not told of keys: no faults.
        145,
        417,
    ),
}
"""Seeds that found a fault when they were first run, in the product or in the simulator."""


class Planted(Watcher):
    """Finds something wrong at once."""

    def on_turn(self, machine):
        del machine
        raise BrokenInvariantError("I0", "planted")


@pytest.mark.parametrize("kind", sorted(WORLDS))
def test_no_seed_breaks_a_promise(kind):
    results = [run_seed(seed, kind) for seed in SEEDS]
    assert [one.failure for one in results if one.failure] == []
    assert sum(one.events for one in results) > 500 * len(SEEDS)


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, seeds in REGRESSION_SEEDS.items() for seed in seeds]
)
def test_seed_that_once_found_a_fault_passes(kind, seed):
    assert run_seed(seed, kind).failure == ""


@pytest.mark.parametrize("kind", sorted(WORLDS))
def test_same_seed_is_the_same_life_under_another_hash_seed(kind):
    command = [sys.executable, "-m", "liftbridge_testkit.sim", "--replay", "3", "--world", kind]
    told = set()
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=100,
        )
        told.add(result.stdout.splitlines()[-1])
    assert len(told) == 1
    assert b"trace hash" in told.pop()


def test_other_seed_is_another_life():
    assert run_seed(3, "group").trace_hash != run_seed(4, "group").trace_hash


@pytest.mark.parametrize(("kind", "files"), [("lone", "streams/*.log"), ("group", "metadata/*")])
def test_seeds_notice_a_disk_that_lies_about_syncs(kind, files):
    """A simulator that cannot fail proves nothing: without durability it must find losses."""

    def lie(world):
        for machine in world.machines.values():
            machine.files.lying = files

    assert any(run_seed(seed, kind, prepare=lie).failure for seed in range(12))


def test_seeds_alternate_between_the_kinds_of_worlds():
    assert [kind_of(seed) for seed in range(len(TURN))] == list(TURN)
    assert set(TURN) == set(WORLDS)


def test_range_of_seeds_is_read():
    assert seed_range("3:6") == range(3, 6)
    assert seed_range("7") == range(7, 8)


def test_command_tells_rate_coverage_and_floors(capsys):
    assert main(["--seeds", "0:2", "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert "events/s a core, 0 failed" in told
    assert "acked record" in told


def test_floors_scale_with_the_range_and_small_ranges_have_none():
    assert floors_for({"lone": 50}) == {}
    half, whole = floors_for({"lone": 500}), floors_for({"lone": 1_000})
    assert half["client", "acked record"] * 2 == whole["client", "acked record"]
    assert Coverage().below(whole)


def test_failure_prints_what_replays_it():
    failure = run_seed(5, "lone", prepare=lambda world: world.watchers.append(Planted())).failure
    assert "BrokenInvariantError: I0: planted" in failure
    assert failure.endswith("--replay 5 --world lone --verbose")
