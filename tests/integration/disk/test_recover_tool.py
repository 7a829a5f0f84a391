"""`recover` begins a metadata group anew, or changes nothing; whatever interrupts it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from liftbridge_broker.adapters.disk import recover
from liftbridge_broker.adapters.disk.lock import DirectoryLock
from liftbridge_broker.adapters.disk.offline_metadata import METADATA_DIRECTORY
from liftbridge_broker.adapters.disk.recover import INDEX_GAP, find, finish, recover_lines
from liftbridge_broker.cli import broker
from liftbridge_broker.controller.commands import Bootstrap
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError, InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
)
from liftbridge_broker.node.metadata.consensus import recovered_metadata
from liftbridge_broker.node.metadata.driver import restore
from liftbridge_broker.raft.types import TERM_LEAP_MAX
from liftbridge_broker.storage.directory import read_identity
from liftbridge_broker.storage.offline import proven_index
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.storage.raft_log.snapshots import write_snapshot
from liftbridge_broker.storage.retirement import retire
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError
from liftbridge_testkit.node_world import NodeWorld

PLAN = f"{METADATA_DIRECTORY}/recovery"
STREAMS = 3


def stopped() -> MemoryFiles:
    """Files of a broker that has some streams and stopped in order."""
    world = NodeWorld()
    world.propose(Bootstrap(cluster_id="one"))
    for number in range(STREAMS):
        world.create(f"s{number}")
    world.stop()
    return world.files


def save(files: MemoryFiles, root: Path) -> Path:
    for path in files.paths():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files.content(path))
    return root


def contents(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def opened(files: MemoryFiles) -> tuple[RaftLog, ClusterState]:
    log = RaftLog.open(files, directory=METADATA_DIRECTORY, index_min=proven_index(files))
    return log, restore(recovered_metadata(log))[0]


def leap(files: MemoryFiles, term: int, *, entries: int = 0) -> None:
    """What a broker has written that believed somebody of this term."""
    log = RaftLog.open(files, directory=METADATA_DIRECTORY)
    first = log.last_index + 1
    forged = [Entry(index, term, EntryKind.NOOP, b"") for index in range(first, first + entries)]
    log.append(forged, HardState(term, None, log.last_index))
    log.close()
    for path in files.paths():
        files.put(path, files.content(path))


def test_dry_run_changes_nothing_and_tells_what_would_be_done(tmp_path: Path) -> None:
    files = stopped()
    leap(files, 1 << 62, entries=2)
    before = contents(save(files, tmp_path))
    done = CliRunner().invoke(broker, ["recover", str(tmp_path), "-o", "json"])
    told = json.loads(done.output)
    assert contents(tmp_path) == before
    assert (told["streams"], told["applied"], told["unbelieved_entries"]) == (STREAMS, False, 2)
    assert told["term"] == 1 << 62
    assert told["good_term"] <= TERM_LEAP_MAX
    assert told["new_index"] == told["good_index"] + INDEX_GAP
    text = "\n".join(recover_lines(tmp_path, snapshot=None, is_applied=False, output="table"))
    assert "which no election can have reached" in text
    assert "Nothing was written" in text


def test_new_group_has_one_member_and_the_state_before_the_leap() -> None:
    files = stopped()
    _, before = opened(files)
    leap(files, 1 << 62, entries=2)
    recover.apply(files, find(files, None).snapshot)
    log, state = opened(files)
    identity = read_identity(files)
    assert identity is not None
    assert [peer.broker for peer in log.configuration.voters] == [identity.broker_id]
    assert log.hard_state().term == log.term_at(log.last_index)
    assert log.hard_state().term <= TERM_LEAP_MAX
    assert state.applied_index >= before.applied_index + INDEX_GAP
    assert state == replace(before, applied_index=state.applied_index)


def test_recovery_can_be_interrupted_anywhere() -> None:
    count = 0
    while True:
        count += 1
        files = stopped()
        leap(files, 1 << 62)
        old = {files.content(path) for path in files.paths() if path.startswith(METADATA_DIRECTORY)}
        snapshot = find(files, None).snapshot
        files.power.cut_at = files.power.points + count
        try:
            recover.apply(files, snapshot)
        except PowerCutError:
            files.crash(None)
        else:
            break
        check_start(files, snapshot.meta.last_index)
        if files.exists(PLAN):
            finish(files)
        else:
            recover.apply(files, find(files, None).snapshot)
        log, state = opened(files)
        assert len(state.streams) == STREAMS
        assert log.last_index == snapshot.meta.last_index
        assert old <= {files.content(path) for path in files.paths()}
    assert count > 10


def check_start(files: MemoryFiles, new_index: int) -> None:
    """A broker that is started in between refuses, or has the old group or the new one, whole."""
    copy = MemoryFiles()
    for path in files.paths():
        copy.put(path, files.content(path))
    try:
        log, state = opened(copy)
    except CorruptionError:
        return
    assert len(state.streams) == STREAMS
    assert log.hard_state().term == 1 << 62 or log.last_index == new_index


def retired(root: Path, files: MemoryFiles) -> Path | None:
    identity = read_identity(files)
    assert identity is not None
    retire(files, identity)
    save(files, root)
    return None


def damaged(root: Path, files: MemoryFiles) -> Path | None:
    (path,) = [path for path in files.paths() if path.endswith(".wal")]
    data = bytearray(files.content(path))
    data[len(data) // 2] ^= 1
    files.put(path, bytes(data))
    save(files, root)
    return None


def interrupted(root: Path, files: MemoryFiles) -> Path | None:
    files.put(PLAN, b"")
    save(files, root)
    return None


def other_cluster(root: Path, files: MemoryFiles) -> Path | None:
    other = stopped()
    log, state = opened(other)
    state.cluster_id = "other"
    log.close()
    made = recover._moved(state, INDEX_GAP + 5, 9, log.configuration)
    return given(root, files, made)


def older(root: Path, files: MemoryFiles) -> Path | None:
    _, state = opened(files)
    log, _ = opened(files)
    made = recover._moved(state, INDEX_GAP + 2, 2, log.configuration)
    return given(root, files, made)


def of_a_group(root: Path, files: MemoryFiles) -> Path | None:
    """One that a member of the group itself has written: with it a vote would be forgotten."""
    log, state = opened(files)
    (me,) = log.configuration.voters
    voters = tuple(sorted((me, me._replace(broker=BrokerId("another")))))
    term = log.hard_state().term + 2
    made = recover._moved(state, log.last_index + 5, term, Configuration(voters))
    return given(root, files, made)


def renamed(root: Path, files: MemoryFiles) -> Path | None:
    path = given(root, files, find(files, None).snapshot)
    return path.rename(path.with_name("5.snapshot"))


def given(root: Path, files: MemoryFiles, snapshot: Snapshot) -> Path:
    """A snapshot as a file beside the directory."""
    made = MemoryFiles()
    made.make_directory(METADATA_DIRECTORY)
    write_snapshot(made, METADATA_DIRECTORY, snapshot)
    (path,) = [path for path in made.paths() if path.endswith(".snapshot")]
    save(files, root)
    target = root.with_name(Path(path).name)
    target.write_bytes(made.content(path))
    return target


REFUSALS: dict[str, tuple[Callable[[Path, MemoryFiles], Path | None], str]] = {
    "retired": (retired, "left the cluster"),
    "damaged": (damaged, "metadata log"),
    "interrupted": (interrupted, "complete it with --apply"),
    "other cluster": (other_cluster, "it belongs to cluster other"),
    "older": (older, "recover this directory first"),
    "of a group": (of_a_group, "it is not from a recovery"),
    "renamed": (renamed, "renamed"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_directory_or_snapshot_that_does_not_fit_is_refused_unchanged(
    tmp_path: Path, kind: str
) -> None:
    prepare, text = REFUSALS[kind]
    root = tmp_path / "data"
    snapshot = prepare(root, stopped())
    before = contents(root)
    is_applied = kind != "interrupted"
    with pytest.raises(LiftbridgeError, match=text):
        recover_lines(root, snapshot=snapshot, is_applied=is_applied, output="table")
    assert contents(root) == before


def test_directory_that_a_broker_holds_is_refused(tmp_path: Path) -> None:
    save(stopped(), tmp_path)
    lock = DirectoryLock(tmp_path)
    try:
        for is_applied in (False, True):
            with pytest.raises(LiftbridgeError, match="in use"):
                recover_lines(tmp_path, snapshot=None, is_applied=is_applied, output="table")
    finally:
        lock.release()


def test_directory_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LiftbridgeError, match="not the data directory"):
        recover_lines(tmp_path, snapshot=None, is_applied=True, output="table")
    files = stopped()
    for path in files.paths():
        if path.startswith((METADATA_DIRECTORY, "streams")):
            files.remove(path)
    save(files, tmp_path)
    with pytest.raises((CorruptionError, InvalidRequestError)):
        recover_lines(tmp_path, snapshot=None, is_applied=True, output="table")
