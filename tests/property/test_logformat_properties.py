"""Codecs of the log on arbitrary input: round trips, and what mutated bytes are taken for."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import HEADER_SIZE, read_header, verify, walk_verified
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.logformat.encryption import times_of
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.logformat.index_blocks import (
    ENTRY,
    Summary,
    decode_blocks,
    decode_summary,
    encode_entries,
    encode_summary,
)
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.logformat.varint import decode_varint, encode_varint
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.storage.log.index import load_index
from liftbridge_proto import api_pb2
from liftbridge_testkit.batches import PARTITION, Batches, cipher, frames_of
from liftbridge_testkit.fuzzing import Fuzz

FUZZ_INPUTS = 100_000

bytes_small = st.binary(max_size=300)
subjects = st.text(max_size=20)
offsets = st.integers(0, 2**63 - 1000) | st.integers(0, 40_000)
names = st.text(max_size=10)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varint_round_trip(value: int, behind: bytes) -> None:
    data = encode_varint(value)
    assert decode_varint(data + behind, 0, len(data)) == (value, len(data))


@given(
    base=offsets,
    timestamp=st.integers(-(2**63), 2**63 - 1),
    subject=subjects,
    reply=subjects,
    stream=names,
    partition=st.integers(0, 2**31 - 1),
    values=st.lists(bytes_small, min_size=1, max_size=40),
    data=st.data(),
)
def test_records_round_trip(
    *,
    base: int,
    timestamp: int,
    subject: str,
    reply: str,
    stream: str,
    partition: int,
    values: list[bytes],
    data: st.DataObject,
) -> None:
    count = len(values)
    maps = st.none() | st.dictionaries(names, bytes_small, max_size=4)
    keys: Sequence[bytes] | None = data.draw(
        st.none() | st.lists(bytes_small, min_size=count, max_size=count)
    )
    headers: Sequence[Mapping[str, bytes] | None] | None = data.draw(
        st.none() | st.lists(maps, min_size=count, max_size=count)
    )
    encoder = RecordEncoder(stream, partition)
    pieces = encoder.encode(
        base_offset=base,
        timestamp=timestamp,
        subject=subject,
        reply=reply,
        values=values,
        keys=keys,
        headers=headers,
    )
    joined = b"".join(pieces)
    frames = frames_of([joined])
    assert [frame.offset for frame in frames] == list(range(base, base + len(values)))
    assert [frame.value for frame in frames] == values
    assert [frame.key for frame in frames] == list(keys or [b""] * len(values))
    for frame, given_headers in zip(frames, headers or [None] * len(values), strict=True):
        assert (frame.timestamp, frame.subject, frame.reply_subject) == (timestamp, subject, reply)
        assert (frame.stream, frame.partition) == (stream, partition)
        ours = {"subject": subject.encode(), "reply": reply.encode()}
        assert dict(frame.headers) == {**(given_headers or {}), **ours}
    for start, end, offset in iter_frames(joined, 0, len(joined)):
        assert api_pb2.Message.FromString(joined[start + 5 : end]).offset == offset


@given(
    base=offsets,
    values=st.lists(bytes_small, min_size=1, max_size=12),
    data=st.data(),
)
def test_cutting_twice_is_cutting_once(base: int, values: list[bytes], data: st.DataObject) -> None:
    batch = Batches().make(base, values, publisher=(1, 1, 50))
    end = base + len(values)
    first = data.draw(st.integers(base, end - 1))
    last = data.draw(st.integers(first + 1, end))
    middle = data.draw(st.integers(base, first))
    outer = cut(batch, Offset(middle), Offset(end))
    assert cut(outer, Offset(first), Offset(last)) == cut(batch, Offset(first), Offset(last))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_batch_and_no_index(junk: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        assert list(walk_verified(junk, 0, len(junk))) == []
    loaded = load_index(junk, partition_id=PARTITION, base_offset=Offset(0))
    assert len(loaded.entries) == 0
    assert loaded.is_whole == (not junk)


def mutate(random: Random, data: bytes) -> bytes:
    """One to three small damages: a flipped bit, another byte, a piece lost, doubled or zeroed."""
    out = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(out) + 1)
        size = random.randint(1, 12)
        match random.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 1 if at < len(out):
                out[at] = random.randrange(256)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                out[at : at + size] = bytes(len(out[at : at + size]))
            case _:
                out[at:at] = random.randbytes(size)
    return bytes(out)


def accepted_of(
    fuzz: Fuzz, seed: int, samples: Sequence[bytes], check: Callable[[bytes], bool]
) -> int:
    """Run `check` on mutated samples; how many of them were accepted."""
    accepted = 0
    for random in fuzz.rounds(seed, FUZZ_INPUTS):
        sample = random.choice(samples)
        damaged = mutate(random, sample)
        if damaged != sample:
            accepted += check(damaged)
    return accepted


def test_fuzzed_batches_are_never_taken_for_others(fuzz: Fuzz) -> None:
    made = Batches()
    samples = [
        made.make(0, [b"a"]),
        made.make(3, [b"ab" * 20, b"", b"c"], keys=[b"k", b"", b""], publisher=(3, 4, 5)),
        made.make(0, [b"a"]) + made.filler(1, 5) + made.make(5, [b"x"] * 3),
    ]
    whole = {
        sample[position : position + header.size]
        for sample in samples
        for position, header in walk_verified(sample, 0, len(sample))
    }

    def check(data: bytes) -> bool:
        walked = 0
        try:
            for position, header in walk_verified(data, 0, len(data)):
                assert data[position : position + header.size] in whole
                walked += header.size
        except CorruptionError:
            return False
        return walked == len(data)

    accepted = accepted_of(fuzz, 1, samples, check)
    assert accepted < fuzz.count // 100  # whole batches lost or put in front are whole logs


def test_fuzzed_encrypted_batches_open_to_their_own_records_or_not_at_all(fuzz: Fuzz) -> None:
    made, secret = Batches(), cipher()
    plain = [
        made.make(0, [b"a"]),
        made.make(3, [b"ab" * 20, b"", b"c"], keys=[b"k", b"", b""], publisher=(3, 4, 5)),
        made.sparse(5, 60, {6: b"x", 40: b"y", 41: b"z"}),
    ]
    samples = [secret.close_batch(batch) for batch in plain]
    samples.append(cut(samples[2], Offset(30), Offset(60)))
    known = {frame for batch in plain for frame in frames_of([batch[HEADER_SIZE:]])}
    opened_count = 0
    for random in fuzz.rounds(7, FUZZ_INPUTS // 10):
        damaged = mutate(random, random.choice(samples))
        # The checksum does not help: an attacker can correct it.
        data = damaged[:8] + crc32c(damaged[12:]).to_bytes(4, "big") + damaged[12:]
        with contextlib.suppress(CorruptionError):
            header = read_header(data, 0)
            verify(data, 0, header)
            if header.is_filler:
                continue
            with contextlib.suppress(CorruptionError):
                assert len(times_of(data, header)) == header.count
                middle = Offset((header.base_offset + header.last_offset) // 2)
                assert read_header(cut(data, header.base_offset, Offset(middle + 1)), 0)
            end, count, frames = secret.frames_at(data, 0)
            assert end == header.size
            assert len(frames_of([frames])) == count == header.count
            assert known.issuperset(frames_of([frames]))
            opened_count += 1
    assert 0 < opened_count < fuzz.count // 2


def test_fuzzed_frames_are_refused_or_are_what_the_encoder_writes(fuzz: Fuzz) -> None:
    encoder = RecordEncoder("stream", 3)
    samples = [
        encoder.encode_record(
            offset=offset, timestamp=offset, subject="a", reply=reply, value=value, headers=headers
        )
        for offset, reply, value, headers in (
            (0, "", b"", None),
            (5, "r", b"value", {"h": b"1", "i": b""}),
            (70_000, "", b"v" * 130, {"x" * 3: b"y"}),
        )
    ]

    def check(data: bytes) -> bool:
        try:
            frame = decode_frame(data, 0, len(data))
        except CorruptionError:
            return False
        again = RecordEncoder(frame.stream, frame.partition).encode_record(
            offset=frame.offset,
            timestamp=frame.timestamp,
            subject=frame.headers[-2][1],
            reply=frame.headers[-1][1],
            value=frame.value,
            key=frame.key,
            headers=dict(frame.headers[:-2]),
        )
        assert again == data
        return True

    accepted = accepted_of(fuzz, 2, samples, check)
    assert 0 < accepted < fuzz.count


def test_fuzzed_sequences_of_frames_end_or_are_refused(fuzz: Fuzz) -> None:
    sample = Batches().make(100, [b"a", b"bb", b"", b"d" * 40])[HEADER_SIZE:]

    def check(data: bytes) -> bool:
        at = 0
        before = -1
        try:
            for start, end, offset in iter_frames(data, 0, len(data)):
                assert start == at
                assert end > start
                assert offset > before
                at, before = end, offset
        except CorruptionError:
            return False
        assert at == len(data)
        return True

    assert accepted_of(fuzz, 3, [sample], check) < fuzz.count


def test_fuzzed_index_files_tell_only_what_was_written(fuzz: Fuzz) -> None:
    partition, base = PartitionId(5), Offset(7)
    blocks = [
        encode_entries(
            partition_id=partition,
            base_offset=base,
            records_before=n,
            timestamp_before=n,
            entries=b"".join(ENTRY.pack(n + i, 5000 * (n + i), n) for i in range(3)),
        )
        for n in (0, 3, 6)
    ]
    summary = Summary(90_000, Offset(20), 9, 0, 9, 88_000, 1)
    end = encode_summary(partition_id=partition, base_offset=base, summary=summary)
    sample = b"".join(blocks) + end
    told = list(decode_blocks(sample, partition_id=partition, base_offset=base))

    def check(data: bytes) -> bool:
        found = load_index(data, partition_id=partition, base_offset=base)
        assert len(found.entries) in {0, 3, 6, 9}
        assert found.summary in {None, summary}
        assert decode_summary(data[-len(end) :], partition_id=partition, base_offset=base) in {
            None,
            summary,
        }
        for number in range(len(found.entries)):
            assert found.entries.entry(number).position % 5000 == 0
        return found.is_whole

    assert len(told) == 4
    assert accepted_of(fuzz, 4, [sample], check) < fuzz.count // 100


def test_fuzzer_changes_nearly_all_it_is_given() -> None:
    sample = Batches().make(0, [b"abc"])
    random = Random(5)
    assert sum(mutate(random, sample) != sample for _ in range(1000)) > 950
