"""The checks of the chaos runs notice what they are there for."""

from liftbridge_client import (
    ClosedError,
    FailedPreconditionError,
    OutcomeUnknownError,
    RetriableError,
)
from liftbridge_testkit.chaos.clients import is_refusal
from liftbridge_testkit.chaos.replicas import ReplicaRecord, check_replicas, stored
from liftbridge_testkit.checker import Stored
from liftbridge_testkit.failover import percentile


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
