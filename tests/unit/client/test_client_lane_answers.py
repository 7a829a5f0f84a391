"""What a lane makes of the answers of brokers, one of which may not lead any more."""

import asyncio
from types import SimpleNamespace

import pytest
from grpc import StatusCode

from liftbridge_client import (
    OutcomeUnknownError,
    RetriableError,
    SequenceError,
    TooLargeError,
)
from liftbridge_client.aio.items import Item
from liftbridge_client.aio.lane import Lane, _RenumberedError
from liftbridge_client.errors import error_of
from liftbridge_proto.ext.v1 import data_pb2

Answer = data_pb2.PublishBatchResponse


class Answers:
    """A call that has these answers, and then ends."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self):
        return self.answers.pop(0) if self.answers else None


def lane_of(*items, has_own_numbers=False):
    owner = SimpleNamespace(
        stream_name="s",
        ack_policy="all",
        identity=SimpleNamespace(publisher_id=1, publisher_epoch=2),
        client=SimpleNamespace(stats=SimpleNamespace(published=0)),
        on_settled=lambda _item: None,
    )
    lane = Lane(owner, 0, 0, has_own_numbers=has_own_numbers)
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


async def test_what_is_sent_again_keeps_its_order():
    """Those behind it would leave a gap, and be refused for good."""
    items = [item_of(0), item_of(1), item_of(2)]
    lane = lane_of(*items)
    lane._owner.client.retry_seconds = lane._owner.client.call_seconds = 10.0
    refusal = Answer(request_id=1, error=Answer.UNAVAILABLE, message="not appended: too few")
    with pytest.raises(RetriableError) as caught:
        await lane._read_batches(Answers(refusal))
    assert lane._keep_after(caught.value, now=lane._progress_at)
    assert [one.sequence for one in lane._waiting] == [0, 1, 2]


REFUSED = Answer(request_id=1, error=Answer.TOO_LARGE, message="too large")


async def test_messages_behind_a_refused_one_take_its_sequences():
    items = [item_of(0), item_of(1)]
    lane = lane_of(*items)
    with pytest.raises(_RenumberedError):
        await lane._read_batches(Answers(REFUSED))
    with pytest.raises(TooLargeError):
        await items[0].futures[0]
    assert (items[1].sequence, items[1].send_count) == (0, 0)


async def test_messages_with_numbers_of_their_own_keep_them():
    """Else a repetition would leave others out than those that are stored."""
    items = [item_of(0), item_of(1)]
    lane = lane_of(*items, has_own_numbers=True)
    with pytest.raises(RetriableError):
        await lane._read_batches(Answers(REFUSED, gap(2, epoch=14)))
    for item, kind in zip(items, (TooLargeError, SequenceError), strict=True):
        with pytest.raises(kind):
            await item.futures[0]
    assert items[1].sequence == 1

    large, small = item_of(0), item_of(1)
    large.size_bytes = 10
    lane = lane_of(large, small, has_own_numbers=True)
    lane._drop_largest(TooLargeError("too much"))
    with pytest.raises(TooLargeError):
        await large.futures[0]
    assert (small.sequence, lane._next_sequence) == (1, 0)


@pytest.mark.parametrize("status", list(StatusCode)[1:])
async def test_a_call_that_ends_drops_no_message_but_one_that_is_too_large(status):
    """What follows takes the sequence of the dropped one, and is lost if that one is stored."""
    for text in ("", "too many bytes in incomplete messages on this connection"):
        items = [item_of(0), item_of(1)]
        items[0].size_bytes = 10
        lane = lane_of(*items)
        lane._owner.client.retry_seconds = lane._owner.client.call_seconds = 10.0
        is_kept = lane._keep_after(error_of(status, text), now=lane._progress_at)
        assert [one.sequence for one in lane._waiting] == ([0, 1] if is_kept else [])
        if not is_kept:
            for item in items:
                with pytest.raises(OutcomeUnknownError):
                    await item.futures[0]


async def test_only_the_first_message_with_a_number_of_its_own_may_skip_others():
    lane = lane_of(has_own_numbers=True)
    lane._task = asyncio.get_running_loop().create_future()  # it sends nothing
    items = [item_of(0) for _ in range(3)]
    for item in items:
        lane.put(item)
    requests = [lane._batch_request(number, item) for number, item in enumerate(items)]
    assert [one.may_skip for one in requests] == [True, False, False]
