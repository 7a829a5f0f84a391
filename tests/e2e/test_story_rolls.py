"""Rolls under load: for a configuration, of small clusters, and often enough to tell how long."""

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ROLLS = 5
SINGLE_SECONDS_MAX = 120
"""A cluster of one broker takes nothing while it restarts; one of two waits for its replica."""


@pytest.mark.story("config-roll", minutes=4)
def test_roll_for_a_configuration(play):
    with play() as s:
        with s.marked("roll"):
            s.change(config={"extra": {"clustering.replica.max.lag.time": "4s"}})
            s.await_ready()
        s.check_roll("roll", brokers=3)


@pytest.mark.story("operator-killed", minutes=5)
def test_operator_is_killed_once_at_a_random_write_of_a_roll(play):
    with play(kills_operator=True) as s:
        with s.marked("roll"):
            s.change(image=s.stage.next_image)
            s.await_ready()
        s.check_roll("roll", brokers=3)
    assert s.result.killed != ""


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.story(f"rolls-{n}", minutes=12)) for n in range(1, 5)],
)
def test_many_rolls(play, number):
    """No operator is killed here: what is measured is the hand-over alone."""
    with play(kills_operator=False) as s:
        for turn in range(ROLLS):
            name = f"roll {number}.{turn}"
            with s.marked(name):
                s.change(image=s.stage.image if turn % 2 else s.stage.next_image)
                s.await_ready()
            s.check_roll(name, brokers=3)


ONE = {"replicationFactor": 1, "config": {"minISR": 1}}


@pytest.mark.story("one-broker-roll", minutes=4)
def test_roll_of_one_broker(play):
    with play(spec={"replicas": 1}, stream=ONE) as s:
        # No "roll": nobody can take over, so it tells nothing of the hand-over.
        with s.marked("only broker restarted"):
            s.change(image=s.stage.next_image)
            s.await_ready()
        s.check_roll("only broker restarted", brokers=1, gap_seconds_max=SINGLE_SECONDS_MAX)


@pytest.mark.story("two-brokers-roll", minutes=4)
def test_roll_of_two_brokers(play):
    spec = {"replicas": 2, "disruption": {"allowUnreplicated": True}}
    two = {"replicationFactor": 2, "config": {"minISR": 1}}
    with play(spec=spec, stream=two) as s:
        with s.marked("roll of two"):
            s.change(image=s.stage.next_image)
            s.await_ready()
        s.check_roll("roll of two", brokers=2, gap_seconds_max=SINGLE_SECONDS_MAX)


@pytest.mark.story("config-refused", minutes=3)
def test_bad_configuration_is_refused_before_anything_rolls(play):
    with play() as s:
        with s.marked("refused"):
            s.change(config={"extra": {"clustering.replica.max.lag.time": "soon"}})
            told = s.await_condition("Stalled", "InvalidSpec", 120)
            s.await_acks(more=40)
        assert "clustering.replica.max.lag.time" in told["message"]
        with s.marked("mended"):
            s.change(config={"extra": None})
            s.await_ready()
    assert s.result.restarts == []
