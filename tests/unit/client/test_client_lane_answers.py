"""What a lane makes of the answers of brokers, one of which may not lead any more."""

import asyncio
from types import SimpleNamespace

import pytest

from liftbridge_client import OutcomeUnknownError, RetriableError, SequenceError
from liftbridge_client.aio.lane import Item, Lane
from liftbridge_proto.ext.v1 import data_pb2

Answer = data_pb2.PublishBatchResponse


class Answers:
    """A call that has these answers, and then ends."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self):
        return self.answers.pop(0) if self.answers else None


def lane_of(*items):
    owner = SimpleNamespace(
        stream_name="s",
        identity=object(),
        client=SimpleNamespace(stats=SimpleNamespace(published=0)),
        on_settled=lambda _item: None,
    )
    lane = Lane(owner, 0, 0)
    lane._unanswered = dict(enumerate(items, 1))
    return lane


def item_of(sequence, send_count=1):
    future = asyncio.get_running_loop().create_future()
    return Item(values=[b"v"], futures=[future], sequence=sequence, send_count=send_count)


def gap(number, epoch):
    return Answer(request_id=number, error=Answer.OUT_OF_ORDER, message="gap", leader_epoch=epoch)


async def test_a_former_leader_that_lacks_what_was_acknowledged_since_decides_nothing():
    first, second = item_of(0), item_of(1, send_count=2)
    lane = lane_of(first, second)
    with pytest.raises(RetriableError):
        await lane._read_batches(Answers(Answer(request_id=1, leader_epoch=14), gap(2, epoch=9)))
    assert (await first.futures[0]).leader_epoch == 14
    assert not second.futures[0].done()
    assert lane._unanswered == {2: second}


async def test_a_gap_after_two_attempts_is_no_refusal():
    item = item_of(1, send_count=2)
    with pytest.raises(RetriableError):
        await lane_of(item)._read_batches(Answers(gap(1, epoch=14)))
    with pytest.raises(OutcomeUnknownError, match="gap"):
        await item.futures[0]


async def test_a_gap_at_the_first_attempt_is_a_refusal():
    item = item_of(1)
    with pytest.raises(RetriableError):
        await lane_of(item)._read_batches(Answers(gap(1, epoch=14)))
    with pytest.raises(SequenceError):
        await item.futures[0]


async def test_refusals_that_may_be_repeated_are_no_progress():
    lane = lane_of(item_of(0))
    lane._progress_at = -1.0
    refusal = Answer(request_id=1, error=Answer.UNAVAILABLE, message="not appended: too few")
    with pytest.raises(RetriableError, match="too few"):
        await lane._read_batches(Answers(refusal))
    assert lane._progress_at == -1.0
