"""Batches of a run: its frames are those of each record alone, whatever is encoded together."""

from collections.abc import Mapping

import pytest

from liftbridge_broker.logformat.batch import HEADER_SIZE, read_header
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.node.runs import PublishRun
from liftbridge_broker.node.sealing import RunSealer

PARTITION = PartitionId(1 << 24)
COUNT = 7
EQUAL = [9] * COUNT
DISTINCT = [10**18 + at for at in range(COUNT)]
SOME = [0, 0, 5, 5, 5, 10**18, 10**18 + 1]
KEYS = [b"" if at % 3 == 0 else b"k%d" % at for at in range(COUNT)]
HEADERS: list[Mapping[str, bytes] | None] = [
    {"h": b"%d" % at} if at % 2 else None for at in range(COUNT)
]


@pytest.mark.parametrize("times", [EQUAL, DISTINCT, SOME, None])
@pytest.mark.parametrize("keys", [None, KEYS])
@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("base", [0, 60, 5_000])
def test_frames_are_those_of_each_record_alone(
    times: list[int] | None,
    keys: list[bytes] | None,
    headers: list[Mapping[str, bytes] | None] | None,
    base: int,
) -> None:
    values = [b"v%d" % at for at in range(COUNT)]
    run = PublishRun(values, "s", "", (), keys, headers, policy=0, timestamps=times)
    encoder = RecordEncoder("s", 0)
    (batch,) = RunSealer(encoder, PARTITION).seal(run, LeaderEpoch(1), Offset(base), 77)
    alone = [
        encoder.encode_record(
            offset=base + at,
            timestamp=77 if times is None else times[at],
            subject="s",
            reply=run.reply,
            value=value,
            key=b"" if keys is None else keys[at],
            headers=None if headers is None else headers[at],
        )
        for at, value in enumerate(values)
    ]
    header = read_header(batch, 0)
    assert batch[HEADER_SIZE:] == b"".join(alone)
    assert (header.base_offset, header.last_offset, header.count) == (base, base + 6, COUNT)
    bounds = (77, 77) if times is None else (times[0], times[-1])
    assert (header.first_timestamp, header.largest_timestamp) == bounds
