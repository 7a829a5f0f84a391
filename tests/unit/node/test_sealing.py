"""Batches of a run: its frames are those of each record alone, whatever is encoded together."""

from collections.abc import Mapping, Sequence

import pytest

from liftbridge_broker.logformat.batch import ATTRIBUTE_COMPACTED, HEADER_SIZE, read_header
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.node.partition.runs import PublishRun
from liftbridge_broker.node.partition.sealing import BATCH_BYTES_MAX, RunSealer

PARTITION = PartitionId(1 << 24)
COUNT = 7
EQUAL = [9] * COUNT
DISTINCT = [10**18 + at for at in range(COUNT)]
SOME = [0, 0, 5, 5, 5, 10**18, 10**18 + 1]
KEYS = [b"" if at % 3 == 0 else b"k%d" % at for at in range(COUNT)]
HEADERS: list[Mapping[str, bytes] | None] = [
    {"h": b"%d" % at} if at % 2 else None for at in range(COUNT)
]


STEPS = [0, 1, 2, 5, 9, 10, 11]
SUBJECTS = ["a", "a", "b", "b", "b", "a", "a"]
REPLIES = ["", "r", "r", "", "", "", "q"]


@pytest.mark.parametrize("times", [EQUAL, DISTINCT, SOME, None])
@pytest.mark.parametrize("keys", [None, KEYS])
@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("base", [0, 60, 5_000])
@pytest.mark.parametrize("steps", [None, range(COUNT), STEPS])
@pytest.mark.parametrize(("subjects", "replies"), [(None, None), (SUBJECTS, REPLIES)])
def test_frames_are_those_of_each_record_alone(
    times: list[int] | None,
    keys: list[bytes] | None,
    headers: list[Mapping[str, bytes] | None] | None,
    base: int,
    steps: Sequence[int] | None,
    subjects: list[str] | None,
    replies: list[str] | None,
) -> None:
    values = [b"v%d" % at for at in range(COUNT)]
    offsets = None if steps is None else [base + step for step in steps]
    run = PublishRun(
        values,
        "s",
        "",
        (),
        keys,
        headers,
        policy=0,
        timestamps=times,
        offsets=offsets,
        subjects=subjects if offsets else None,
        replies=replies if offsets else None,
    )
    encoder = RecordEncoder("s", 0)
    (batch,) = RunSealer(encoder, PARTITION).seal(run, LeaderEpoch(1), Offset(base), 77)
    alone = [
        encoder.encode_record(
            offset=base + at if offsets is None else offsets[at],
            timestamp=77 if times is None else times[at],
            subject="s" if run.subjects is None else run.subjects[at],
            reply="" if run.replies is None else run.replies[at],
            value=value,
            key=b"" if keys is None else keys[at],
            headers=None if headers is None else headers[at],
        )
        for at, value in enumerate(values)
    ]
    header = read_header(batch, 0)
    end = base + COUNT if offsets is None else offsets[-1] + 1
    assert batch[HEADER_SIZE:] == b"".join(alone)
    assert (header.base_offset, header.end_offset, header.count) == (base, end, COUNT)
    bounds = (77, 77) if times is None else (times[0], times[-1])
    assert (header.first_timestamp, header.largest_timestamp) == bounds
    assert header.attributes == (ATTRIBUTE_COMPACTED if steps is STEPS else 0)


def test_batches_of_a_large_restore_adjoin_over_its_gaps() -> None:
    value = bytes(BATCH_BYTES_MAX - 1)
    run = PublishRun([value, b"a", b"b", value], "s", "", offsets=[10, 20, 30, 40])
    sealed = RunSealer(RecordEncoder("s", 0), PARTITION).seal(run, LeaderEpoch(1), Offset(3), 77)
    headers = [read_header(batch, 0) for batch in sealed]
    assert [(one.base_offset, one.last_offset, one.count) for one in headers] == [
        (3, 9, 0),
        (10, 29, 2),
        (30, 40, 2),
    ]
