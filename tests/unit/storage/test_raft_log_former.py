"""A data directory of the version before starts, whole, or refuses for its own reasons."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.metadata_log import EntryKind, HardState
from liftbridge_broker.storage.raft_log.recovery import FORMER_PREFIX
from liftbridge_testkit.former_metadata import FormerLog
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError
from liftbridge_testkit.raft_logs import ALONE, append, held, opened, restarted

COMMANDS = [b"command %d" % number for number in range(1, 8)]


def former(files: MemoryFiles) -> None:
    """Seven commands, snapshots after the third and the fifth."""
    log = FormerLog(files)
    for index, command in enumerate(COMMANDS, 1):
        log.append(command)
        if index in (3, 5):
            log.snapshot(b"state %d" % index)
    files.crash(None)


def test_everything_is_taken_over() -> None:
    files = MemoryFiles()
    former(files)

    log = opened(files)

    for _ in range(2):
        assert [one.data for one in held(log)] == [FORMER_PREFIX + one for one in COMMANDS[3:]]
        assert {(one.term, one.kind) for one in held(log)} == {(1, EntryKind.COMMAND)}
        assert log.hard_state() == HardState(1, None, 7)
        assert (log.snapshot_meta.last_index, log.snapshot_meta.term) == (5, 1)
        assert log.snapshot_meta.configuration == ALONE
        assert log.read_snapshot(5, 0, 99) == b"state 5"
        assert not [path for path in files.paths() if path.endswith(".log")]
        log = restarted(files)


def test_a_log_without_snapshot_is_taken_over() -> None:
    files = MemoryFiles()
    FormerLog(files).append(b"one")

    log = opened(files)

    assert [one.data for one in held(log)] == [FORMER_PREFIX + b"one"]
    assert log.snapshot_meta.configuration == ALONE
    append(files, log, 2, term=2)
    assert len(held(restarted(files))) == 2


def test_an_empty_log_is_taken_over() -> None:
    files = MemoryFiles()
    FormerLog(files)

    assert opened(files).last_index == 0


def test_an_older_snapshot_still_helps_when_the_newest_is_damaged() -> None:
    files = MemoryFiles()
    former(files)
    opened(files)
    files.kill()
    files.flip_bit("metadata/00000000000000000005.snapshot", 200)

    log = opened(files)

    assert log.snapshot_meta.last_index == 3
    assert held(log)[0].entry_index == 4


def test_a_torn_end_is_left_out_and_told() -> None:
    files = MemoryFiles()
    former(files)
    path = "metadata/00000000000000000006.log"
    files.put(path, files.content(path) + b"LBME torn")

    log = opened(files)

    assert log.findings == [f"left out 9 torn bytes of {path}"]
    assert log.last_index == 7


def test_rot_refuses_and_changes_nothing() -> None:
    files = MemoryFiles()
    former(files)
    path = "metadata/00000000000000000006.log"
    files.flip_bit(path, 8 * 70)
    before = {name: files.content(name) for name in files.paths()}

    with pytest.raises(CorruptionError, match="entry 6 was synced and is damaged"):
        opened(files)

    assert {name: files.content(name) for name in files.paths()} == before


def test_commands_that_other_files_know_must_be_there() -> None:
    files = MemoryFiles()
    former(files)

    with pytest.raises(CorruptionError, match="entry 8 was synced and is missing"):
        opened(files, index_min=8)


def test_a_missing_file_is_refused() -> None:
    files = MemoryFiles()
    former(files)
    files.remove("metadata/00000000000000000004.log")

    with pytest.raises(CorruptionError, match="it does not continue entry 3"):
        opened(files)


def test_snapshots_without_any_log_are_refused() -> None:
    files = MemoryFiles()
    files.put("metadata/00000000000000000001.snapshot", b"whatever")

    with pytest.raises(CorruptionError, match="no log file is left"):
        opened(files)


def test_a_power_cut_at_every_point_of_the_change_loses_nothing() -> None:
    point = 0
    while True:
        point += 1
        files = MemoryFiles()
        former(files)
        files.power.cut_at = files.power.points + point
        try:
            opened(files)
        except PowerCutError:
            files.crash(None)
        else:
            break
        assert opened(files).last_index == 7
        assert [one.data for one in held(restarted(files))][-2:] == [
            FORMER_PREFIX + one for one in COMMANDS[5:]
        ]
    assert point > 8
