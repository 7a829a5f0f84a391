"""The work queue hands a key out once at a time, in time, and never forgets what was asked for."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.process.queue import (
    BACKOFF_MAX_S,
    FAILURE_SPACING_S,
    REQUEUE_MAX_S,
    SPACING_S,
    WorkQueue,
)
from liftbridge_operator.process.reconciler import Key, RequeueAfter

A, B = Key(CLUSTERS, "n", "a"), Key(CLUSTERS, "n", "b")


@pytest.fixture
def queue():
    return WorkQueue(Random(1))


def taken(queue, now):
    found = queue.take(now)
    return None if found is None else found.key


def test_key_is_handed_out_once_however_often_it_is_asked_for(queue):
    for _ in range(3):
        queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    assert taken(queue, 0.0) is None


def test_keys_come_in_the_order_they_became_due(queue):
    queue.add(B, 0.0, 1.0)
    queue.add(A, 0.0, 2.0)
    assert queue.next_s() == 1.0
    assert taken(queue, 0.5) is None
    assert [taken(queue, 3.0), taken(queue, 3.0)] == [B, A]


def test_sooner_wish_stands_over_a_later_one(queue):
    queue.add(A, 0.0, 60.0)
    queue.add(A, 0.0, 1.0)
    queue.add(A, 0.0, 30.0)
    assert queue.next_s() == 1.0
    assert taken(queue, 1.0) == A


def test_wish_during_a_pass_is_done_after_it(queue):
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.add(A, 1.0)
    assert taken(queue, 5.0) is None
    queue.succeed(A, 5.0, None)
    assert taken(queue, 5.0) == A


def test_former_wish_that_comes_up_during_a_pass_begins_no_second_one(queue):
    queue.add(A, 0.0, 5.0)
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.add(A, 1.0)
    assert taken(queue, 6.0) is None
    queue.succeed(A, 6.0, None)
    assert taken(queue, 6.0) == A


def test_passes_of_a_key_keep_their_distance(queue):
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.succeed(A, 0.01, RequeueAfter(0.0))
    assert taken(queue, 0.02) is None
    assert queue.next_s() == SPACING_S
    assert taken(queue, SPACING_S) == A


def test_pass_is_wished_for_at_most_an_hour_ahead(queue):
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.succeed(A, 0.0, RequeueAfter(1e9))
    assert queue.next_s() == REQUEUE_MAX_S


def test_backoff_doubles_with_jitter_and_ends_with_a_success(queue):
    now, waits = 0.0, []
    queue.add(A, now)
    for _ in range(12):
        assert taken(queue, now) == A
        waits.append(queue.fail(A, now))
        assert taken(queue, now + waits[-1] - 0.01) is None
        now += waits[-1]
    bounds = [min(0.5 * 2**n, BACKOFF_MAX_S) for n in range(12)]
    assert all(0.5 * bound <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert taken(queue, now) == A
    queue.succeed(A, now, RequeueAfter(0.0))
    queue.take(now + SPACING_S)
    assert queue.fail(A, now + SPACING_S) <= 0.5


def test_event_brings_a_failed_key_forward_but_not_at_once(queue):
    now = 0.0
    queue.add(A, now)
    for _ in range(10):
        queue.take(now)
        now += queue.fail(A, now)
    queue.take(now)
    queue.fail(A, now)
    queue.add(A, now)
    assert taken(queue, now + FAILURE_SPACING_S - 0.01) is None
    assert taken(queue, now + FAILURE_SPACING_S) == A


def test_queue_is_bounded_and_counts_what_it_refuses():
    queue = WorkQueue(Random(1), keys_max=1)
    assert queue.add(A, 0.0)
    assert queue.add(A, 0.0)
    assert not queue.add(B, 0.0)
    assert queue.dropped == 1
    queue.take(0.0)
    queue.succeed(A, 0.0, None)
    assert queue.add(B, 0.0)


def test_depth_running_and_age_are_told(queue):
    queue.add(A, 0.0)
    queue.add(B, 0.0, 10.0)
    assert (queue.depth, queue.running, queue.oldest_s(4.0)) == (2, 0, 4.0)
    found = queue.take(4.0)
    assert found is not None
    assert found.waited_s == 4.0
    assert (queue.depth, queue.running, queue.oldest_s(4.0)) == (1, 1, 0.0)


KEYS = st.sampled_from([Key(CLUSTERS, "n", name) for name in "abcd"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "later", "take", "succeed", "again", "fail"]),
        KEYS,
        st.floats(0, 3, allow_nan=False),
    ),
    max_size=60,
)


class Played:
    """A queue beside what is known of its keys."""

    def __init__(self):
        self.queue = WorkQueue(Random(7))
        self.now = 0.0
        self.running = set()
        self.wished = set()

    def begin(self):
        found = self.queue.take(self.now)
        if found is not None:
            assert found.key not in self.running
            self.running.add(found.key)
            self.wished.discard(found.key)

    def end(self, act, key):
        self.running.remove(key)
        if act == "fail":
            self.queue.fail(key, self.now)
            self.wished.add(key)
        else:
            self.queue.succeed(key, self.now, RequeueAfter(1.0) if act == "again" else None)

    def step(self, act, key):
        if act in {"add", "later"}:
            self.queue.add(key, self.now, 5.0 if act == "later" else 0.0)
            self.wished.add(key)
        elif act == "take":
            self.begin()
        elif key in self.running:
            self.end(act, key)


@given(STEPS)
def test_every_wish_ends_in_a_pass_that_begins_after_it(steps):
    played = Played()
    for act, key, seconds in steps:
        played.now += seconds
        played.step(act, key)
    for key in list(played.running):
        played.end("succeed", key)
    while (then := played.queue.next_s()) is not None:
        played.now = max(played.now, then)
        played.begin()
    assert not played.wished
    assert played.queue.depth == 0
