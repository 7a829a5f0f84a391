"""The checker of answers accepts what is true and sees each thing it is there for."""

import pytest

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition.runs import POLICY_ALL
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.checkers.answers import AnswersAreTrue, Held, check_history
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.history import History

HERE = PartitionId(1 << 24)


@pytest.fixture
def checker():
    return AnswersAreTrue()


@pytest.fixture
def values(checker):
    """Values that were acknowledged for good at offsets 0 to 2."""
    history = History(Coverage())
    history.checkers = [checker]
    publisher = history.new_publisher()
    writes = [history.invoke(publisher, HERE, 0, policy=POLICY_ALL) for _ in range(3)]
    for offset, write in enumerate(writes):
        history.acked(write, 1, offset=offset, leader_epoch=1, is_committed=True)
    return {offset: write.value for offset, write in enumerate(writes)}


def expect_untrue():
    return pytest.raises(BrokenInvariantError, match=r"^answers: ")


def test_true_answers_are_accepted(checker, values):
    checker.told_end(checker.ask("x", HERE), 3)
    checker.told_end(checker.ask("x", HERE), 4)
    checker.read_to_end(checker.ask("x", HERE), values, 0)
    checker.read_to_end(checker.ask("x", HERE), {2: values[2]}, 2)
    checker.read_to_end(checker.ask("x", HERE), {1: values[1], 2: values[2]}, 0, 1)
    with expect_untrue():
        checker.told_end(checker.ask("x", HERE), 3)


def test_an_end_below_what_was_acknowledged_is_untrue(checker, values):
    with expect_untrue():
        checker.told_end(checker.ask("x", HERE), len(values) - 1)


def test_an_end_below_what_another_one_was_told_before_is_untrue(checker):
    checker.told_end(checker.ask("x", HERE), 9)
    with expect_untrue():
        checker.told_end(checker.ask("y", HERE), 8)


def test_an_end_told_after_the_question_began_does_not_count(checker):
    early = checker.ask("x", HERE)
    checker.told_end(checker.ask("y", HERE), 9)
    checker.told_end(early, 8)
    with expect_untrue():
        checker.told_end(checker.ask("x", HERE), 8)


@pytest.mark.parametrize("offset", range(3))
def test_a_bounded_read_that_lacks_a_record_is_untrue(checker, values, offset):
    del values[offset]
    with expect_untrue():
        checker.read_to_end(checker.ask("x", HERE), values, 0)


def test_a_bounded_read_with_another_record_is_untrue(checker, values):
    with expect_untrue():
        checker.read_to_end(checker.ask("x", HERE), {**values, 1: b"other"}, 0)


def test_records_before_those_asked_for_are_untrue(checker, values):
    with expect_untrue():
        checker.read_to_end(checker.ask("x", HERE), values, 0, 1)


def test_records_after_those_asked_for_are_untrue(checker, values):
    checker.read_to_end(checker.ask("x", HERE), {0: values[0], 1: values[1]}, 0, last=1)
    with expect_untrue():
        checker.read_to_end(checker.ask("x", HERE), values, 0, last=1)


@pytest.fixture
def timed(checker, values):
    """The checker, once somebody read records of the times 10, 20 and 20."""
    checker.learn_times(checker.ask("x", HERE), {0: 10, 1: 20, 2: 20})
    return checker


@pytest.mark.parametrize(("timestamp", "place"), [(9, 0), (10, 0), (11, 1), (20, 1), (21, 3)])
def test_only_the_true_place_of_a_time_is_accepted(timed, timestamp, place):
    timed.told_place(timed.ask("x", HERE), timestamp, place, (0, 3))
    for untrue in {0, 1, 2, 3, 4} - {place}:
        with expect_untrue():
            timed.told_place(timed.ask("x", HERE), timestamp, untrue, (0, 3))


@pytest.mark.parametrize(("timestamp", "place", "start"), [(10, 1, 1), (20, 3, 3)])
def test_what_retention_removed_says_nothing_of_the_place_of_a_time(timed, timestamp, place, start):
    with expect_untrue():
        timed.told_place(timed.ask("x", HERE), timestamp, place, (0, 3))
    timed.told_place(timed.ask("x", HERE), timestamp, place, (start, 3))


def test_times_that_may_be_lost_count_no_longer(timed):
    asked = timed.ask("x", HERE)
    late = timed.ask("y", HERE)
    timed.on_loss(HERE, 1)
    timed.told_place(asked, 20, 2, (0, 2))
    timed.learn_times(late, {1: 20})
    assert timed.ask("x", HERE).times == {0: 10}
    assert timed.has_lost(HERE)


def test_a_read_from_a_time_gives_all_from_it_on_and_nothing_older(timed):
    timed.read_from_time(timed.ask("x", HERE), 11, {1: b"", 2: b""}, 0)
    with expect_untrue():
        timed.read_from_time(timed.ask("x", HERE), 11, {2: b""}, 0)
    with expect_untrue():
        timed.learn_times(timed.ask("x", HERE), {0: 10}, 11)


def test_a_strict_read_of_what_is_there_must_not_be_refused(checker, values):
    checker.refused_as_out_of_range(checker.ask("x", HERE), 2, 1)
    checker.refused_as_out_of_range(checker.ask("x", HERE), 0, 4)
    with expect_untrue():
        checker.refused_as_out_of_range(checker.ask("x", HERE), 0, 3)


def test_what_the_promise_gives_up_counts_no_longer_for_questions_under_way(checker, values):
    checker.told_end(checker.ask("x", HERE), 3)
    end, read = checker.ask("x", HERE), checker.ask("y", HERE)
    checker.on_loss(HERE, 1)
    checker.told_end(end, 1)
    checker.read_to_end(read, {0: values[0]}, 0)
    with expect_untrue():
        checker.told_end(checker.ask("x", HERE), 0)


def test_another_record_at_an_offset_needs_an_epoch_that_tells():
    held = Held(epochs=[(1, 0)], position=3, values={0: b"a", 1: b"b", 2: b"c"})
    assert check_history("x", held, {0: b"a", 1: b"b"}, [(1, 0)], 0) is None
    assert check_history("x", held, {0: b"a", 1: b"B"}, [(1, 0), (2, 1)], 0) == 1
    with expect_untrue():
        check_history("x", held, {0: b"a", 1: b"B"}, [(1, 0)], 0)
    with expect_untrue():
        check_history("x", held, {0: b"a", 1: b"B"}, [(1, 0), (2, 2)], 0)
