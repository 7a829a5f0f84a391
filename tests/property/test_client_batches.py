"""The client's reading of stored batches, against the broker's encoder."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftbridge_broker.logformat.batch import HEADER_SIZE, read_header, seal
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_client.columns import FIELDS, check_columns, from_batches
from liftbridge_client.core.batches import decode_messages, walk
from liftbridge_client.errors import LiftbridgeError, ServerError, UsageError
from liftbridge_client.model import COLUMNS
from liftbridge_proto import api_pb2
from liftbridge_testkit.batches import PARTITION, Batches

# Bases around the places where the varint of an offset grows, and where it is left out.
BASES = st.sampled_from([0, 1, 5, 126, 127, 128, 16_380, 16_384, 2**21 - 2, 2**35])
TIMES = st.sampled_from([1, 127, 128, 1_795_262_163_435_945_677])
VALUES = st.binary(max_size=6) | st.sampled_from([b"", b"x" * 127, b"x" * 128, b"y" * 128])
KEYS = st.sampled_from([b"", b"k", b"l", b"key", b"k" * 130])
HEADERS = st.none() | st.dictionaries(st.sampled_from(["a", "bc"]), st.binary(max_size=3))
RECORD = st.tuples(VALUES, KEYS, HEADERS)
# Records that all look alike take the fast path; mixed ones must not.
# Equally long frames of different layout look alike at first sight.
SHIFTED = st.integers(2, 12).flatmap(
    lambda size: st.lists(
        st.integers(1, size - 1).map(lambda key: (b"v" * (size - key), b"k" * key, None)),
        min_size=2,
        max_size=6,
    )
)
RECORDS = (
    st.lists(RECORD, min_size=1, max_size=12)
    | SHIFTED
    | st.builds(
        lambda size, key, count: [(bytes([65 + i % 26]) * size, key, None) for i in range(count)],
        st.integers(0, 130),
        KEYS,
        st.integers(1, 40),
    )
)


def encoded(batches):
    """Bytes of batches, one behind the other, and what is in them."""
    maker = Batches()
    data, expected = [], []
    base = None
    for start, timestamp, records in batches:
        base = start if base is None else base
        values, keys, headers = (list(column) for column in zip(*records, strict=True))
        data.append(maker.make(base, values, keys=keys, headers=headers, timestamp=timestamp))
        expected += [
            (base + i, timestamp, keys[i], values[i], headers[i] or {}) for i in range(len(values))
        ]
        base += len(values)
    return b"".join(data), expected


def columns_of(data, names=COLUMNS):
    return from_batches(data, list(walk(data)), names)


BATCHES = st.lists(st.tuples(BASES, TIMES, RECORDS), min_size=1, max_size=3).map(encoded)


@settings(max_examples=200)
@given(BATCHES)
def test_messages_come_out_as_they_went_in(case):
    data, expected = case
    found = [
        (m.offset, m.timestamp, m.key, m.value, {**m.headers}) for m in decode_messages(data, 0)
    ]
    for one, other in zip(found, expected, strict=True):
        own = {name: value for name, value in one[4].items() if name not in ("subject", "reply")}
        assert (*one[:4], own) == other


@settings(max_examples=300)
@given(BATCHES, st.lists(st.sampled_from(list(FIELDS)), min_size=1, unique=True))
def test_columns_equal_the_messages_one_by_one(case, names):
    data, _ = case
    columns = columns_of(data, names)
    assert columns.schema.equals(pa.schema([FIELDS[name] for name in names]))
    assert columns.validate(full=True) is None
    for name in names:
        column = columns.column(name)
        found = column.cast(pa.int64()) if name == "timestamp" else column
        values = found.to_pylist()
        if name == "headers":
            values = [dict(pairs) for pairs in values]  # protobuf gives them in any order
        assert values == expected_column(data, name)


def expected_column(data, name):
    """A column made of the messages one by one."""
    messages = decode_messages(data, 0)
    match name:
        case "reply_subject":
            return [message.reply for message in messages]
        case "key":
            return [message.key or None for message in messages]
        case "headers":
            return [
                {
                    key: one
                    for key, one in message.headers.items()
                    if key not in ("subject", "reply")
                }
                for message in messages
            ]
        case "partition_id":
            return [PARTITION] * len(messages)
        case "leader_epoch":
            return [batch.leader_epoch for batch in walk(data) for _ in range(batch.record_count)]
        case _:
            return [getattr(message, name) for message in messages]


@pytest.mark.parametrize("name", FIELDS)
def test_a_stream_of_one_frame_or_of_none_has_every_column(name):
    data, _ = encoded([(1, 128, [(b"v", b"", None)])])
    assert columns_of(data, [name]).num_rows == 1
    assert columns_of(b"", [name]).schema.equals(pa.schema([FIELDS[name]]))


def test_columns_of_a_wrong_name_are_refused():
    with pytest.raises(
        UsageError, match="no such columns: values, x; must be any of offset, timestamp"
    ):
        check_columns(["offset", "values", "x"])


def test_frames_that_are_not_what_brokers_store_are_refused(fuzz):
    """The checksum is right: what is wrong are lengths, tags and varints."""
    whole, _ = encoded([(1, 128, [(b"value", b"k", {"a": b"1"})] * 3)])
    refused = 0
    for rng in fuzz.rounds(20261123, 20_000):
        frames = bytearray(whole[HEADER_SIZE:])
        for _ in range(rng.randint(1, 3)):
            frames[rng.randrange(len(frames))] = rng.choice((rng.randrange(256), 0x80, 0xFF))
        header = read_header(whole, 0)
        data = seal(
            frames=bytes(frames),
            partition_id=PARTITION,
            leader_epoch=header.leader_epoch,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            count=header.count,
            first_timestamp=header.first_timestamp,
            largest_timestamp=header.largest_timestamp,
        )
        try:
            assert columns_of(data, list(FIELDS)).num_rows == header.count
        except ServerError:
            refused += 1
    assert refused > fuzz.count // 4


@given(st.lists(st.sampled_from([1, 127, 128, 300, 2**14]), min_size=2, max_size=5))
def test_timestamps_of_different_lengths_in_equal_frames_are_told_apart(timestamps):
    longest = max(len(_frame(1, time, b"")) for time in timestamps)
    frames = []
    for index, time in enumerate(timestamps):
        padding = longest - len(_frame(1 + index, time, b""))
        frames.append(_frame(1 + index, time, b"s" * (1 + padding)))
    data = seal(
        frames=frames,
        partition_id=PARTITION,
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(1),
        last_offset=Offset(len(frames)),
        count=len(frames),
        first_timestamp=timestamps[0],
        largest_timestamp=max(timestamps),
    )
    columns = columns_of(data)
    assert columns.column("timestamp").cast(pa.int64()).to_pylist() == timestamps


def _frame(offset, timestamp, stream):
    message = api_pb2.Message(
        offset=offset, key=b"k", value=b"v", timestamp=timestamp, stream=stream.decode()
    ).SerializeToString()
    return b"\0" + len(message).to_bytes(4) + message


@given(BATCHES, st.integers(0, 50))
def test_decoding_from_an_offset_leaves_out_what_is_before(case, skip):
    data, expected = case
    start = expected[0][0] + skip
    assert [m.offset for m in decode_messages(data, start)] == [
        offset for offset, *_ in expected if offset >= start
    ]


def test_batch_cut_at_every_byte_is_refused():
    data, _ = encoded([(7, 128, [(b"value", b"key", {"a": b"1"}), (b"v", b"", None)])])
    for end in range(1, len(data)):
        with pytest.raises(ServerError):
            list(walk(data[:end]))


def test_every_changed_byte_behind_the_length_is_noticed():
    data, expected = encoded([(7, 128, [(b"value", b"key", None), (b"v", b"", None)])])
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x55
        if position == 3:  # reserved
            assert len(decode_messages(bytes(changed), 0)) == len(expected)
            continue
        with pytest.raises(ServerError):
            decode_messages(bytes(changed), 0)


def test_compacted_batch_gives_what_is_left():
    data = Batches().sparse(10, 20, {12: b"twelve", 17: b"seventeen"})
    assert [(m.offset, m.value) for m in decode_messages(data, 0)] == [
        (12, b"twelve"),
        (17, b"seventeen"),
    ]
    assert columns_of(data).column("offset").to_pylist() == [12, 17]
    assert columns_of(Batches().sparse(10, 20, {})).num_rows == 0


def test_random_bytes_are_refused_and_nothing_else_happens(fuzz):
    whole, _ = encoded([(1, 128, [(b"value", b"k", None)] * 3)])
    refused = 0
    for rng in fuzz.rounds(20261121, 20_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = bytes(data[: rng.randint(1, len(data))])
        try:
            decode_messages(data, 0)
        except LiftbridgeError:
            refused += 1
    assert refused > fuzz.count * 19 // 20
