"""What the file layer in memory loses at a power cut, and what it may not lose."""

from random import Random

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError


def durable_file(files: MemoryFiles, path: str, data: bytes) -> None:
    handle = files.open(path, create=True)
    files.append(handle, data)
    files.sync(handle)
    files.sync_directory(path.rpartition("/")[0])
    files.close(handle)


def test_crash_loses_bytes_that_were_not_synced() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"synced")
    handle = files.open("a")
    files.append(handle, b" and not")

    files.crash(None)

    assert files.content("a") == b"synced"


def test_crash_loses_a_name_whose_directory_was_not_synced() -> None:
    files = MemoryFiles()
    files.make_directory("d")
    files.sync_directory("")
    handle = files.open("d/a", create=True)
    files.append(handle, b"x")
    files.sync(handle)

    files.crash(None)

    assert files.exists("d")
    assert not files.exists("d/a")


def test_crash_keeps_some_prefix_of_the_unsynced_writes() -> None:
    seen = set()
    for seed in range(300):
        files = MemoryFiles()
        durable_file(files, "a", b"0")
        handle = files.open("a")
        for piece in (b"1", b"2", b"345"):
            files.append(handle, piece)
        files.crash(Random(seed))
        seen.add(files.content("a").rstrip(b"\0"))

    assert seen == {b"0", b"01", b"012", b"0123", b"01234", b"012345"}


def test_crash_may_zero_a_sector_between_kept_ones() -> None:
    found = False
    for seed in range(500):
        files = MemoryFiles()
        durable_file(files, "a", b"s" * 100)
        handle = files.open("a")
        files.append(handle, b"x" * 2000)
        files.crash(Random(seed))
        data = files.content("a")
        assert data[:100] == b"s" * 100
        found = found or (b"\0" in data and data.endswith(b"x"))
    assert found


def test_rename_is_atomic_over_two_directories() -> None:
    for seed in range(50):
        files = MemoryFiles()
        for name in ("a", "b"):
            files.make_directory(name)
        files.sync_directory("")
        durable_file(files, "a/x", b"1")
        files.rename("a/x", "b/x")
        files.crash(Random(seed))
        assert files.exists("a/x") != files.exists("b/x")


def test_sync_of_the_target_directory_makes_the_whole_history_of_a_rename_durable() -> None:
    files = MemoryFiles()
    files.make_directory("a")
    files.make_directory("b")
    files.sync_directory("")
    handle = files.open("a/x", create=True)
    files.append(handle, b"1")
    files.sync(handle)
    files.rename("a/x", "b/x")
    files.sync_directory("b")

    files.crash(None)

    assert files.paths() == ("b/x",)


def test_rename_over_a_file_leaves_the_old_or_the_new_contents() -> None:
    seen = set()
    for seed in range(50):
        files = MemoryFiles()
        durable_file(files, "a", b"old")
        handle = files.open("a.tmp", create=True)
        files.append(handle, b"new")
        files.sync(handle)
        files.rename("a.tmp", "a")
        files.crash(Random(seed))
        seen.add(files.content("a"))
    assert seen == {b"old", b"new"}


def test_removed_directory_may_come_back_but_never_with_a_file_missing_above_it() -> None:
    for seed in range(100):
        files = MemoryFiles()
        files.make_directory("d/e")
        files.sync_directory("")
        files.sync_directory("d")
        durable_file(files, "d/e/f", b"1")
        files.remove("d")
        files.crash(Random(seed))
        assert files.exists("d") or not files.exists("d/e")
        assert files.exists("d/e") or not files.exists("d/e/f")


def test_submitted_sync_covers_what_was_appended_before_it_was_submitted() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"")
    handle = files.open("a")
    files.append(handle, b"before")
    files.submit_sync(Token(7), [handle])
    files.append(handle, b"after")

    events = files.calls.pump()
    files.crash(None)

    assert events == (FileEvent(Token(7)),)
    assert files.content("a") == b"before"


def test_submitted_sync_makes_names_durable_after_contents() -> None:
    files = MemoryFiles()
    files.make_directory("d")
    files.sync_directory("")
    handle = files.open("d/a", create=True)
    files.append(handle, b"x")
    files.submit_sync(Token(1), [handle], ["gone", "d"])
    before = files.power.points
    assert files.calls.pump() == (FileEvent(Token(1)),)
    assert [one for one, _ in list(files.power.log)[before:]] == ["sync", "sync_directory"]
    files.crash(None)
    assert files.content("d/a") == b"x"


def test_file_is_closed_once_and_a_process_that_ended_closed_all_of_its_own() -> None:
    files = MemoryFiles()
    former = files.open("a", create=True)
    files.kill()
    own = files.open("a", create=True)
    files.close(former)
    files.close(own)

    with pytest.raises(KeyError):
        files.close(own)


def test_crash_forgets_submitted_calls() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"")
    handle = files.open("a")
    files.append(handle, b"1")
    files.submit_sync(Token(1), [handle])

    files.crash(None)

    assert files.calls.pump() == ()
    assert files.content("a") == b""


def test_failed_sync_is_not_made_good_by_a_later_one() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"")
    handle = files.open("a")
    files.append(handle, b"lost")
    files.fail(Fault("sync"))
    with pytest.raises(FilesError, match="Input/output error"):
        files.sync(handle)
    files.append(handle, b"kept")
    files.sync(handle)

    files.crash(None)

    assert files.content("a") == b"\0\0\0\0kept"


def test_power_is_cut_at_the_chosen_point_and_stays_off() -> None:
    files = MemoryFiles()
    files.power.cut_at = 2
    handle = files.open("a", create=True)
    with pytest.raises(PowerCutError):
        files.append(handle, b"1")
    with pytest.raises(PowerCutError):
        files.exists("a")

    files.crash(None)

    assert not files.exists("a")


def test_full_volume_refuses_the_append_and_frees_space_when_files_go() -> None:
    files = MemoryFiles(capacity_bytes=10)
    handle = files.open("a", create=True)
    files.append(handle, b"12345678")
    with pytest.raises(FilesError) as refused:
        files.append(handle, b"901")
    assert refused.value.is_full
    assert files.content("a") == b"12345678"

    files.remove("a")

    assert files.free_bytes() == 10


def test_faults_are_met_in_turn_and_by_path() -> None:
    files = MemoryFiles()
    a, b = files.open("a", create=True), files.open("b", create=True)
    files.fail(Fault("append", "a", skip=1, count=1))
    files.append(a, b"1")
    files.append(b, b"1")
    with pytest.raises(FilesError):
        files.append(a, b"2")
    files.append(a, b"3")
    assert files.content("a") == b"13"


def test_cold_file_is_read_by_token_only() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"0123456789")
    handle = files.open("a")
    files.is_cold = True
    assert files.try_read(handle, 0, 4) is None

    files.submit_read(Token(3), handle, 8, 4)

    assert files.calls.pump() == (FileEvent(Token(3), b"89"),)


def test_kill_keeps_what_was_written() -> None:
    files = MemoryFiles()
    handle = files.open("a", create=True)
    files.append(handle, b"1")

    files.kill()

    assert files.content("a") == b"1"
    assert files.open_count == 0


def test_kill_does_not_call_off_a_planned_power_cut() -> None:
    files = MemoryFiles()
    files.power.cut_at = 2
    files.open("a", create=True)
    files.kill()
    with pytest.raises(PowerCutError):
        files.open("b", create=True)
    assert files.power.is_cut
    files.crash(None)
    assert not files.power.is_cut


def test_lost_sectors_are_counted_and_can_be_turned_off() -> None:
    def lost(chance: float) -> int:
        count = 0
        for seed in range(20):
            files = MemoryFiles()
            files.lost_sector_chance = chance
            files.append(files.open("a", create=True), b"x" * 2_000)
            files.crash(Random(seed))
            count += files.lost_sector_count
        return count

    assert lost(0.0) == 0
    assert lost(1.0) > 5


def test_what_is_written_again_after_a_failed_sync_is_made_durable_by_the_next_one() -> None:
    files = MemoryFiles()
    durable_file(files, "a", b"old ")
    handle = files.open("a")
    files.append(handle, b"doubt")
    files.fail(Fault("sync"))
    with pytest.raises(FilesError, match="Input/output error"):
        files.sync(handle)
    files.rewrite(handle, 2)
    assert files.durable_content("a") == b"old "
    files.sync(handle)

    files.crash(None)

    assert files.content("a") == b"old doubt"


def test_a_torn_write_in_place_leaves_former_bytes_behind_new_ones() -> None:
    found = set()
    for seed in range(50):
        files = MemoryFiles()
        files.lost_sector_chance = 0
        durable_file(files, "a", b"old ")
        handle = files.open("a")
        files.append(handle, b"doubt")
        files.fail(Fault("sync"))
        with pytest.raises(FilesError, match="Input/output error"):
            files.sync(handle)
        files.rewrite(handle, 0)
        files.crash(Random(seed))
        found.add(files.content("a"))
    assert {b"old ", b"old doubt", b"old do\0\0\0"} <= found
    assert all(text.rstrip(b"\0") == b"old doubt"[: len(text.rstrip(b"\0"))] for text in found)
