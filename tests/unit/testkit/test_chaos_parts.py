"""The checks of the chaos runs notice what they are there for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from liftbridge_broker.logformat.batch import COVERED_START, HEADER_SIZE
from liftbridge_broker.storage.log.place import QUICK
from liftbridge_client import (
    ClosedError,
    FailedPreconditionError,
    OutcomeUnknownError,
    RetriableError,
)
from liftbridge_testkit.chaos.__main__ import counted
from liftbridge_testkit.chaos.faults import DAMAGED_BYTES, flip
from liftbridge_testkit.chaos.logs import Diary, Judged
from liftbridge_testkit.chaos.replicas import ReplicaRecord, check_replicas, stored
from liftbridge_testkit.checker import Stored
from liftbridge_testkit.failover import percentile
from liftbridge_testkit.steady import is_refusal

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def records(count: int, epoch: int = 1) -> list[ReplicaRecord]:
    return [ReplicaRecord(n, epoch, b"frame%d" % n, b"value%d" % n) for n in range(count)]


def test_equal_replicas_break_nothing() -> None:
    assert check_replicas({"b1": records(3), "b2": records(3)}, 2) == []


def test_missing_replica_is_told() -> None:
    (found,) = check_replicas({"b1": records(3)}, 2)
    assert "b1" in found.text


def test_shorter_replica_is_told() -> None:
    (found,) = check_replicas({"b1": records(2), "b2": records(3)}, 2)
    assert found.text == "b1 holds 2 records, b2 3"


def test_other_bytes_and_other_epochs_are_told() -> None:
    other = records(3)
    other[1] = other[1]._replace(frame=b"changed")
    assert len(check_replicas({"b1": records(3), "b2": other}, 2)) == 1
    assert len(check_replicas({"b1": records(3), "b2": records(3, epoch=2)}, 2)) == 1


def test_replica_is_read_as_a_reader_sees_it() -> None:
    assert stored(records(1)) == [Stored(0, b"value0")]


def test_only_sure_refusals_count_as_refused() -> None:
    assert is_refusal(FailedPreconditionError("paused"))
    assert is_refusal(RetriableError("not appended: 1 of 2 replicas"))
    assert not is_refusal(OutcomeUnknownError("outcome unknown: not appended or is it"))
    assert not is_refusal(RetriableError("connection refused"))
    assert not is_refusal(ClosedError("closed"))


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(n) for n in range(1, 31)]
    assert percentile(values, 0.5) == 15
    assert percentile(values, 0.99) == 30
    assert percentile([5.0], 0.5) == 5


def clock() -> datetime:
    return NOON


def told(level: str, event: str, *, seconds: int = 1) -> str:
    at = (NOON + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return f"{at} [{level:<9}] {event:<30} partition=0\n"


def test_log_without_errors_is_counted_and_breaks_nothing() -> None:
    judged = Judged()
    judged.add("b1", told("info", "broker_started") + told("warning", "log_truncated"), Diary())
    assert judged.violations == []
    assert judged.events == {"broker_started": 1, "log_truncated": 1}


def test_tracebacks_and_errors_of_nothing_that_was_done_are_told() -> None:
    judged = Judged()
    judged.add("b1", "Traceback (most recent call last):\n" + told("error", "bug_found"), Diary())
    judged.add("b2", told("error", "possible_data_loss"), Diary())
    assert [found.text[:12] for found in judged.violations] == [
        "b1: Tracebac",
        "b1: 2026-11-",
        "b2: 2026-11-",
    ]


def test_loss_is_only_told_of_when_as_many_were_killed_as_keep_what_is_acknowledged() -> None:
    line = told("error", "possible_data_loss")
    one, two, rested = Diary(now=clock), Diary(now=clock), Diary(now=clock)
    one.killed("b1")
    one.killed("b1")
    two.killed("b1", "b2")
    rested.killed("b1", "b2")
    rested.in_sync()
    counts = []
    for diary in (one, two, rested):
        judged = Judged()
        judged.add("b3", line, diary)
        counts.append((len(judged.violations), judged.expected_errors["possible_data_loss"]))
    assert counts == [(1, 0), (0, 1), (1, 0)]


def test_damage_is_only_told_of_by_whom_it_was_done_to() -> None:
    diary = Diary(now=clock)
    diary.damaged("b1")
    judged = Judged()
    judged.add("b1", told("error", "segment_quarantined"), diary)
    judged.add("b2", told("error", "segment_quarantined"), diary)
    judged.add("b1", told("error", "segment_quarantined", seconds=-1), diary)
    assert judged.expected_errors == {"segment_quarantined": 1}
    assert len(judged.violations) == 2


def test_counts_are_shown_with_the_most_frequent_first() -> None:
    assert counted({"kill": 1, "cut": 1, "pause": 2}) == "2 x pause, 1 x cut, 1 x kill"


def test_damage_is_told_by_the_first_offset_of_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "000000000a-orders" / "0" / "0.log"
    path.parent.mkdir(parents=True)
    size = HEADER_SIZE + 40
    log = b"".join(
        QUICK.pack(0, size - COVERED_START, 0, 0, base, base + 9, 10).ljust(size, b"v")
        for base in (0, 10, 20)
    )
    for seed in range(20):
        path.write_bytes(log)
        stream, offset = flip(path, Random(seed))
        found = path.read_bytes()
        changed = [at for at in range(len(log)) if found[at] != log[at]]
        assert (stream, offset) == ("orders", changed[0] // size * 10)
        assert len(changed) == DAMAGED_BYTES
