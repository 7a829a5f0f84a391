"""Questions about the end of a log that wait while who leads changes."""

from types import SimpleNamespace

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.reading.answers import Answers, Question

OWN, OTHER = "a", "b"
MS = 1_000_000


class Context:
    """A broker that leads the only partition, with the other one in sync, in leader epoch 1."""

    broker = OWN

    def __init__(self):
        self.partition_state = SimpleNamespace(leader=OWN, isr=(OWN, OTHER), leader_epoch=1)
        self.state = SimpleNamespace(partition=lambda _id: self.partition_state)
        self.metadata = SimpleNamespace(read=lambda reply: reply(None))

    def wake_soon(self):
        """The test calls the timer."""


def led_without_knowing_what_is_committed():
    return SimpleNamespace(
        partition_id=1,
        stream="s",
        number=0,
        role=Role.LEADER,
        replication=SimpleNamespace(is_cut_off=False, is_recovering=False),
        offline_reason="",
        is_latest_known=False,
        closed_error=None,
        log=SimpleNamespace(high_watermark=12, log_end_offset=13),
        readers=SimpleNamespace(wait_for_data=lambda _look: None),
    )


def test_who_was_asked_as_the_leader_and_follows_by_then_does_not_answer():
    """It may not have heard of the last record that it acknowledged in a former epoch."""
    context, partition, told = Context(), led_without_knowing_what_is_committed(), []
    answers = Answers(context)
    answers.ask(partition, Question.END, told.append, 0, as_replica=True)
    assert told == []
    partition.role = Role.FOLLOWER
    context.partition_state = SimpleNamespace(leader=OTHER, isr=(OWN, OTHER), leader_epoch=2)
    answers.on_timer(100 * MS)
    assert [(type(error), str(error)) for error in told] == [(UnavailableError, "leader changed")]


def test_who_still_leads_answers_once_it_knows():
    context, partition, told = Context(), led_without_knowing_what_is_committed(), []
    answers = Answers(context)
    answers.ask(partition, Question.END, told.append, 0, as_replica=True)
    answers.on_timer(100 * MS)
    assert told == []
    partition.is_latest_known = True
    answers.on_timer(200 * MS)
    assert told == [None]
