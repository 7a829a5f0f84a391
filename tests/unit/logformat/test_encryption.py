"""Encrypted batches: round trip, every change is noticed, and what needs no key."""

from itertools import count

import pytest

from liftbridge_broker.errors import CorruptionError, KeyUnavailableError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_ENCRYPTED,
    ATTRIBUTE_FILLER,
    HEADER_SIZE,
    read_header,
    seal,
    verify,
)
from liftbridge_broker.logformat.cipher import BatchCipher, partition_key
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.logformat.encryption import (
    CIPHER_HEAD,
    SALT_SIZE,
    TAG_SIZE,
    read_cipher_head,
    times_of,
)
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_testkit.batches import PARTITION, Batches, cipher, frames_of, header_of

SECRET = b"secret value"


def resealed(batch: bytes, **changes: int) -> bytes:
    """Return a batch with other fields in its header and a correct checksum."""
    header = header_of(batch)
    fields = {
        name: changes.get(name, getattr(header, name))
        for name in (
            "partition_id",
            "leader_epoch",
            "base_offset",
            "last_offset",
            "count",
            "first_timestamp",
            "largest_timestamp",
            "attributes",
        )
    }
    return seal(frames=batch[HEADER_SIZE:], **fields)


def plain_of(batch: bytes, *, key: bytes = b"k" * 32) -> bytes:
    """Open a batch in both ways, which agree; or in neither."""
    opener = cipher(PARTITION, key=key)
    try:
        plain = opener.open_batch(batch)
    except CorruptionError:
        with pytest.raises(CorruptionError):
            opener.frames_at(batch, 0)
        raise
    frames = plain[HEADER_SIZE:]
    assert opener.frames_at(b"x" * 7 + batch, 7) == (7 + len(batch), header_of(batch).count, frames)
    return plain


def test_batch_opens_to_the_same_bytes_and_shows_none_of_them() -> None:
    plain = Batches().make(
        5, [SECRET, b""], keys=[b"key", b""], epoch=3, publisher=(8, 2, 100), timestamp=77
    )
    made = cipher().close_batch(plain)
    header = header_of(made)
    verify(made, 0, header)
    assert header.attributes & ATTRIBUTE_ENCRYPTED
    assert header[3:] == header_of(plain)[3:]
    assert SECRET not in made
    assert b"key" not in made
    assert len(made) == len(plain) + CIPHER_HEAD.size + TAG_SIZE
    assert plain_of(made) == plain


def test_filler_needs_no_key() -> None:
    empty = Batches().filler(3, 9)
    locked = BatchCipher(PARTITION, lambda: bytes(SALT_SIZE))
    assert locked.close_batch(empty) == locked.open_batch(empty) == empty


@pytest.mark.parametrize(
    "changes",
    [
        {"partition_id": PARTITION + 1},
        {"leader_epoch": 2},
        {"base_offset": 6, "last_offset": 7},
        {"count": 1},
        {"attributes": 0},
    ],
    ids=str,
)
def test_batch_in_another_place_does_not_open(changes: dict[str, int]) -> None:
    made = cipher().close_batch(Batches().make(5, [SECRET, b"b"]))
    with pytest.raises(CorruptionError):
        plain_of(resealed(made, **changes))


def test_no_changed_byte_opens() -> None:
    made = cipher().close_batch(Batches().sparse(5, 9, {5: SECRET, 7: b"b"}))
    for position in range(HEADER_SIZE, len(made)):
        changed = bytearray(made)
        changed[position] ^= 1
        with pytest.raises(CorruptionError):
            plain_of(resealed(bytes(changed)))


@pytest.mark.parametrize("changes", [{"base_offset": 4}, {"last_offset": 9}], ids=str)
def test_range_beyond_what_was_encrypted_does_not_open(changes: dict[str, int]) -> None:
    made = cipher().close_batch(Batches().sparse(5, 9, {5: SECRET, 7: b"b"}))
    with pytest.raises(CorruptionError, match="contradict"):
        plain_of(resealed(made, **changes))


def test_key_of_another_partition_does_not_open() -> None:
    made = cipher().close_batch(Batches().make(5, [SECRET]))
    with pytest.raises(CorruptionError, match="does not decrypt"):
        plain_of(made, key=b"K" * 32)
    one, other = (partition_key(b"k" * 32, PartitionId(n)) for n in (1, 2))
    assert one != other


def test_plain_batch_in_an_encrypted_log_is_damage() -> None:
    with pytest.raises(CorruptionError, match="not encrypted"):
        plain_of(Batches().make(5, [SECRET]))


@pytest.mark.parametrize(("first", "end"), [(n, m) for n in range(5, 9) for m in range(n + 1, 10)])
@pytest.mark.parametrize("kept", [None, {5: b"a", 7: b"b"}, {6: b"c", 8: b"d"}], ids=str)
def test_cut_without_a_key_opens_to_the_cut_of_the_plain_batch(
    first: int, end: int, kept: dict[int, bytes] | None
) -> None:
    made = Batches()
    plain = made.sparse(5, 9, kept) if kept else made.make(5, [b"1", b"2", b"3", b"4"])
    part = cut(cipher().close_batch(plain), Offset(first), Offset(end))
    verify(part, 0, header_of(part))
    assert plain_of(part) == cut(plain, Offset(first), Offset(end))
    again = cut(part, Offset(first), Offset(first + 1))
    assert plain_of(again) == cut(plain, Offset(first), Offset(first + 1))
    if header_of(part).count == 0:
        assert header_of(part).attributes & ~1 == ATTRIBUTE_FILLER


def test_times_need_no_key() -> None:
    made, times = Batches(), [50, 70, -60, 2**63 - 1, -(2**63)]
    frames = [made.make(2 * n, [b"x"], timestamp=t)[HEADER_SIZE:] for n, t in enumerate(times)]
    plain = seal(
        frames=frames,
        partition_id=PARTITION,
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(0),
        last_offset=Offset(9),
        count=5,
        first_timestamp=50,
        largest_timestamp=2**63 - 1,
    )
    batch = cipher().close_batch(plain)
    assert list(times_of(batch, header_of(batch))) == [(2 * n, t) for n, t in enumerate(times)]
    assert times_of(batch, header_of(batch)) == times_of(plain, header_of(plain))


def test_nonces_of_a_writer_count_and_writers_have_salts() -> None:
    salts = count()
    one, other = (cipher(new_salt=lambda: next(salts).to_bytes(SALT_SIZE, "big")) for _ in range(2))
    plain = Batches().make(0, [b"a"])
    heads = [
        read_cipher_head(batch, header_of(batch))
        for batch in (one.close_batch(plain), one.close_batch(plain), other.close_batch(plain))
    ]
    assert len({(head.salt, head.nonce) for head in heads}) == 3
    assert heads[0].salt == heads[1].salt != heads[2].salt
    one.lock(KeyUnavailableError("gone"))
    one.unlock(b"k" * 32)
    batch = one.close_batch(plain)
    assert read_cipher_head(batch, header_of(batch)).salt not in {head.salt for head in heads}


def test_locked_cipher_names_its_reason_and_comes_back() -> None:
    made = cipher()
    batch = made.close_batch(Batches().make(0, [SECRET]))
    made.lock(KeyUnavailableError("master key k1 is missing"))
    plain = Batches().make(0, [SECRET])
    for use in (made.check, lambda: made.open_batch(batch), lambda: made.close_batch(plain)):
        with pytest.raises(KeyUnavailableError, match="k1 is missing"):
            use()
    made.unlock(b"k" * 32)
    assert frames_of([made.open_batch(batch)[HEADER_SIZE:]])[0].value == SECRET


def test_key_is_in_no_repr() -> None:
    assert "kkkk" not in repr(cipher())
    assert read_header(cipher().close_batch(Batches().make(0, [b"a"])), 0).count == 1
