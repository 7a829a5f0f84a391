"""Small ranges that are asked for at once: how many, in which order, and how much of them waits."""

from threading import Barrier, Lock

import pyarrow as pa
import pytest

from liftbridge_client import OutOfRangeError
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import ahead
from pyspark_liftbridge.source.ahead import AT_ONCE_MAX, answers

COUNT = 5 * AT_ONCE_MAX
BYTES_MAX = 8_000
SECONDS_MAX = 10


class Log:
    """Answers of a size for each range; counts those that were asked for and not taken."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.asked = 0
        self.most = 0
        self._lock = Lock()

    def ask(self, wanted, _size):
        with self._lock:
            self.asked += 1
        yield pa.record_batch({"value": [bytes(self.sizes[wanted.partition])]}), wanted.end

    def take(self):
        """All answers; the most that were under way or waiting when one was given out."""
        ranges = ranges_of(len(self.sizes))
        for taken, answer in enumerate(answers(ranges, self.ask, BYTES_MAX)):
            assert answer.wanted == ranges[taken]
            self.most = max(self.most, self.asked - taken)
        assert self.asked == len(ranges)


def ranges_of(count):
    return [Range("s", 7, number, 3, 4) for number in range(count)]


def test_several_are_asked_for_at_once_and_come_in_order():
    all_there = Barrier(AT_ONCE_MAX)

    def ask(wanted, _size):
        if wanted.partition > COUNT - 1 - AT_ONCE_MAX:
            all_there.wait(SECONDS_MAX)
        yield pa.record_batch({"value": [b"x"]}), wanted.end

    found = list(answers(ranges_of(COUNT), ask, BYTES_MAX))
    assert [answer.wanted.partition for answer in found] == list(range(COUNT))
    assert not any(answer.error for answer in found)


def test_no_more_than_a_few_wait_to_be_taken():
    log = Log([10] * COUNT)
    log.take()
    assert 1 < log.most <= AT_ONCE_MAX


def test_large_answers_are_asked_for_one_after_the_other():
    log = Log([BYTES_MAX] * COUNT)
    log.take()
    assert log.most == 1


def test_what_waits_fits_whatever_the_size_of_answers():
    log = Log([BYTES_MAX // 3] * COUNT)
    log.take()
    assert log.most <= 2


def test_a_range_is_asked_for_its_share():
    sizes = []

    def ask(wanted, size):
        sizes.append(size)
        yield pa.record_batch({"value": [b"x"]}), wanted.end

    list(answers(ranges_of(3), ask, BYTES_MAX))
    assert sizes == [BYTES_MAX // AT_ONCE_MAX] * 3


def test_an_error_is_told_where_it_belongs_behind_what_came_before():
    def ask(wanted, _size):
        yield pa.record_batch({"value": [b"x"]}), wanted.start + 1
        if wanted.partition == 2:
            raise OutOfRangeError("gone")

    found = list(answers(ranges_of(5), ask, BYTES_MAX))
    assert [isinstance(one.error, OutOfRangeError) for one in found] == [
        False, False, True, False, False,
    ]  # fmt: skip
    assert all(len(one.pieces) == 1 for one in found)


def test_whoever_takes_no_more_asks_for_no_more():
    log = Log([10] * COUNT)
    some = answers(ranges_of(COUNT), log.ask, BYTES_MAX)
    next(some)
    some.close()
    assert log.asked <= ahead.AT_ONCE_MAX + 1


def test_a_defect_is_not_taken_for_an_answer():
    def ask(_wanted, _size):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(answers(ranges_of(1), ask, BYTES_MAX))
