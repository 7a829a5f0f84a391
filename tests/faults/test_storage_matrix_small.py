"""The storage matrix (docs/spec/storage.md) for the small files: every kind with every fault.

What may come of a fault: no effect, repaired, unclean, refused with a clear message. What may not:
a crash, lost records, deletion, another file harmed.
"""

import re
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.ports.metadata import ProposalToken, Urgency
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.smallfile import write_small_file
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.lone_metadata import commands_of, open_lone, pump
from liftbridge_testkit.memory_files import Fault, MemoryFiles
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of, values_in

MS = 1_000_000
A = key_of(1)
OPTIONS = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=300, retention_messages_max=5
)
VALUES = {number: b"value %d" % number + b"." * 90 for number in range(8)}
COMMANDS = [b"command %d" % number + b"." * 50 for number in range(12)]

KINDS = {
    "identity": "identity",
    "clean marker": "clean",
    "journal": "journal",
    "dedup snapshot": "streams/0000000001-stream/0/publishers",
    "reserve": "reserve",
}
STOPS = ("clean stop", "kill", "power cut")


class Outcome(NamedTuple):
    """What a start made of a damaged directory."""

    was_clean: bool
    has_new_identity: bool
    snapshot: bytes | None
    transitions: tuple[str, ...]


def new_bed() -> StoreBed:
    space = NO_LIMITS._replace(reserve_bytes=64)
    return StoreBed(options=StoreOptions(space=space, flush=FlushLimits(journal_ns=MS)))


def start(bed: StoreBed) -> Outcome:
    bed.transitions.clear()
    store = bed.start({A: OPTIONS})
    return Outcome(
        store.last_stop.was_clean,
        store.is_identity_new,
        store.notes.read_snapshot(A),
        tuple(kind for kind, _ in bed.transitions),
    )


def live(bed: StoreBed) -> None:
    """A life with all small files in it: two versions of each that has versions."""
    snapshots = iter([b"first", b"second", b"third"])
    bed.store.notes.set_snapshot_source(A, lambda: next(snapshots))
    for number in range(len(bed_values(bed)), len(VALUES)):
        bed.append(A, [VALUES[number]])
        bed.pump()
        bed.commit(A)
    bed.store.notes.write_snapshot(A, bed.now)
    bed.advance(10 * MS)


def bed_values(bed: StoreBed) -> dict[int, bytes]:
    return values_in(bed.log(A))


def prepared(stop: str) -> tuple[StoreBed, dict[str, bytes]]:
    """A directory after two lives, ended as said; and the small files before the second."""
    bed = new_bed()
    start(bed)
    live(bed)
    bed.store.close(broker_epoch=1)
    old = {name: bed.files.content(path) for name, path in KINDS.items()}
    bed.files.kill()
    start(bed)
    live(bed)
    if stop == "clean stop":
        bed.store.close(broker_epoch=2)
        bed.files.kill()
    elif stop == "kill":
        bed.files.kill()
    else:
        bed.files.crash(None)
    return bed, old


def check_served(bed: StoreBed) -> None:
    """Every record is there, new ones are taken and made durable."""
    assert bed_values(bed) == VALUES
    end = bed.append(A, [b"new"])
    assert bed.pump()[-1].flushed_offset == end
    assert not bed.store.disk.failure


def torn_at_every_byte(data: bytes, old: bytes) -> list[bytes]:
    del old
    return [data[:length] for length in range(len(data))]


def zeroed(data: bytes, old: bytes) -> list[bytes]:
    del old
    return [bytes(len(data)), data[: len(data) // 2] + bytes(len(data) - len(data) // 2)]


def bits_flipped(data: bytes, old: bytes) -> list[bytes]:
    del old
    return [
        data[: bit // 8] + bytes((data[bit // 8] ^ 1 << bit % 8,)) + data[bit // 8 + 1 :]
        for bit in range(0, len(data) * 8, 5)
    ]


def emptied(data: bytes, old: bytes) -> list[bytes]:
    del data, old
    return [b""]


def older_version(data: bytes, old: bytes) -> list[bytes]:
    del data
    return [old]


def misdirected(data: bytes, old: bytes) -> list[bytes]:
    """Bytes that belong somewhere else, in front, behind and instead."""
    stray = b"LB\1\0" + old[::-1] + b"LBSF" + bytes(40)
    return [stray, stray + data, data + stray, data[:20] + stray]


AT_REST: list[Callable[[bytes, bytes], list[bytes]]] = [
    torn_at_every_byte,
    zeroed,
    bits_flipped,
    emptied,
    older_version,
    misdirected,
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("fault", AT_REST, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_rest_is_survived(
    kind: str, fault: Callable[[bytes, bytes], list[bytes]], stop: str
) -> None:
    bed, old = prepared(stop)
    path = KINDS[kind]
    whole = {name: bed.files.content(name) for name in bed.files.paths()}
    data = whole.get(path, b"")
    others = {name: content for name, content in whole.items() if name.endswith(".log")}
    for damaged in fault(data, old[kind]):
        for name in bed.files.paths():
            if name not in whole:
                bed.files.remove(name)
        for name, content in whole.items():
            bed.files.put(name, content)
        bed.files.put(path, damaged)
        outcome = start(bed)
        is_as_before = damaged == data
        assert not outcome.was_clean or stop == "clean stop"
        if kind in ("clean marker", "journal") and not is_as_before:
            assert not outcome.was_clean
        if kind != "identity":
            assert not outcome.has_new_identity
        if kind != "dedup snapshot":
            assert outcome.snapshot in (b"first", b"second")
        else:
            assert outcome.snapshot in (b"first", b"second", None)
        assert all(bed.files.content(name) == content for name, content in others.items())
        check_served(bed)
        bed.files.kill()


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_file_is_survived(kind: str, stop: str) -> None:
    bed, _ = prepared(stop)
    bed.files.remove(KINDS[kind])
    outcome = start(bed)
    if kind in ("clean marker", "journal"):
        assert not outcome.was_clean
    check_served(bed)


@pytest.mark.parametrize("kind", ["identity", "dedup snapshot"])
def test_version_before_stands_in_for_a_damaged_one(kind: str) -> None:
    bed, _ = prepared("kill")
    path = KINDS[kind]
    if kind == "identity":
        # It is written once; a second version comes with a change of the broker's id.
        payload = bed.files.content(path)[12:]
        write_small_file(bed.files, path, payload)
    bed.files.flip_bit(path, 8 * 13)
    outcome = start(bed)
    assert not outcome.has_new_identity
    assert outcome.snapshot is not None
    check_served(bed)


@pytest.mark.parametrize("kind", ["identity", "clean marker", "journal"])
def test_refused_read_at_start_is_told_and_decides_nothing(kind: str) -> None:
    bed, _ = prepared("clean stop")
    before = {name: bed.files.content(name) for name in bed.files.paths()}
    bed.files.fail(Fault("read", KINDS[kind]))
    with pytest.raises(FilesError, match=re.escape(f"read {KINDS[kind]}: Input/output error")):
        start(bed)
    for name, content in before.items():
        assert bed.files.content(name) == content
    bed.files.kill()
    assert start(bed).was_clean
    check_served(bed)


@pytest.mark.parametrize("operation", ["append", "sync", "rename", "open"])
@pytest.mark.parametrize("pattern", ["identity*", "journal*", "clean*", "*publishers*", "reserve"])
def test_refused_write_takes_the_directory_offline_or_is_refused_at_start(
    pattern: str, operation: str
) -> None:
    bed = new_bed()
    bed.files.fail(Fault(operation, pattern, count=-1))
    try:
        start(bed)
        live(bed)
        bed.store.close(broker_epoch=1)
    except FilesError as error:
        text = str(error)
        bed.files.crash(Random(1))
    else:
        text = bed.store.disk.failure
        bed.files.kill()
    is_reached = bool(text)
    assert "Input/output error" in text or not is_reached
    bed.files.heal()
    start(bed)
    live(bed)
    check_served(bed)


@pytest.mark.parametrize("pattern", ["identity*", "journal*", "clean*", "*publishers*", "reserve"])
def test_full_disk_is_survived_or_refused_at_start(pattern: str) -> None:
    bed = new_bed()
    bed.files.fail(Fault("append", pattern, count=3, is_full=True))
    refusals: list[FilesError] = []
    try:
        start(bed)
        live(bed)
        bed.advance(5_000 * MS)
        bed.store.close(broker_epoch=1)
    except FilesError as error:
        refusals.append(error)
    assert all(refusal.is_full for refusal in refusals)
    assert all("No space left on device" in str(refusal) for refusal in refusals)
    bed.files.heal()
    bed.files.kill()
    start(bed)
    live(bed)
    check_served(bed)


@pytest.mark.parametrize("stop", STOPS)
def test_slow_disk_holds_acks_back_and_nothing_else(stop: str) -> None:
    bed, _ = prepared(stop)
    start(bed)
    bed.pump()
    for number in range(50):
        bed.append(A, [b"late %d" % number])
        bed.now = type(bed.now)(bed.now + 400 * MS)
        bed.store.on_timer(bed.now, bed.wall_ns)
    assert bed.log(A).recovery_point == len(VALUES)
    assert len(bed_values(bed)) == len(VALUES) + 50
    assert len(bed.files.calls.waiting) == 1
    bed.pump()
    assert bed.log(A).recovery_point == len(VALUES) + 50


# The metadata log: its entries and its snapshot.


def metadata(files: MemoryFiles) -> list[bytes]:
    """Everything the metadata log holds."""
    # Before the commands there is the entry that began the term.
    _, recovered = open_lone(files, index_min=1 + len(COMMANDS))
    held = recovered.snapshot.split(b"\n") if recovered.snapshot else []
    return held + commands_of(recovered)


def whole_or_reason(files: MemoryFiles) -> tuple[list[bytes], str]:
    """What the metadata log holds, or why it refuses to say."""
    try:
        return metadata(files), ""
    except CorruptionError as error:
        return [], str(error)


def with_metadata() -> MemoryFiles:
    files = MemoryFiles()
    log, _ = open_lone(files)
    for number, command in enumerate(COMMANDS):
        log.propose(ProposalToken(1 + number), command, Urgency.ORDINARY)
        pump(files, log)
        if number == 5:
            log.snapshot(MetadataIndex(7), b"\n".join(COMMANDS[:6]))
    files.kill()
    return files


METADATA_PATHS = tuple(path for path in with_metadata().paths() if "reserve" not in path)


@pytest.mark.parametrize("fault", AT_REST, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("path", METADATA_PATHS)
def test_damaged_metadata_is_whole_or_refused_and_never_shorter(
    path: str, fault: Callable[[bytes, bytes], list[bytes]]
) -> None:
    files = with_metadata()
    whole = {name: files.content(name) for name in METADATA_PATHS}
    outcomes = set()
    for damaged in fault(whole[path], whole[path][: len(whole[path]) // 2]):
        for name in files.paths():
            if not name.endswith("reserve"):
                files.remove(name)
        for name, content in whole.items():
            files.put(name, content)
        files.put(path, damaged)
        held, reason = whole_or_reason(files)
        assert held == COMMANDS or (reason and files.content(path) == damaged)
        outcomes.add(bool(reason))
        files.kill()
    assert outcomes


@pytest.mark.parametrize("path", METADATA_PATHS)
def test_missing_metadata_is_whole_or_refused(path: str) -> None:
    files = with_metadata()
    files.remove(path)
    held, reason = whole_or_reason(files)
    assert reason or held == COMMANDS


@pytest.mark.parametrize("operation", ["read", "sync", "append"])
def test_failing_disk_under_metadata_is_told(operation: str) -> None:
    files = with_metadata()
    files.fail(Fault(operation, "metadata/*", count=-1))
    try:
        log, _ = open_lone(files)
        log.propose(ProposalToken(99), b"more", Urgency.ORDINARY)
        pump(files, log)
    except FilesError as error:
        text = str(error)
    else:
        text = str(log.failure)
    assert "Input/output error" in text
    files.heal()
    files.crash(None)
    assert metadata(files) == COMMANDS
