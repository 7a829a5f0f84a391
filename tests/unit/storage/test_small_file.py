"""Small files are replaced as a whole, and only intact contents are believed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftbridge_broker.errors import FilesError
from liftbridge_broker.storage.smallfile import (
    SmallFile,
    read_small_file,
    remove_small_file,
    write_small_file,
)
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError


def test_what_was_written_last_is_read() -> None:
    files = MemoryFiles()
    files.make_directory("d")
    files.sync_directory("")
    write_small_file(files, "d/a", b"one")
    write_small_file(files, "d/a", b"two")
    files.crash(None)
    assert read_small_file(files, "d/a") == SmallFile(b"two", is_previous=False)
    assert files.paths() == ("d/a", "d/a.previous")


def test_absent_file_is_nothing() -> None:
    assert read_small_file(MemoryFiles(), "a") is None


def test_empty_payload_is_a_payload() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"")
    assert read_small_file(files, "a") == SmallFile(b"", is_previous=False)


def test_layout_is_fixed() -> None:
    files = MemoryFiles()
    write_small_file(files, "dir", b"xy")
    data = files.content("dir")
    assert data[:8] == b"LBSF\0\0\0\x02"
    assert data[12:] == b"xy"
    assert data[8:12].hex() == "be47fc71"


def test_damaged_file_gives_way_to_the_one_before() -> None:
    for bit in range((12 + 3) * 8):
        files = MemoryFiles()
        write_small_file(files, "a", b"one")
        write_small_file(files, "a", b"two")
        files.flip_bit("a", bit)
        assert read_small_file(files, "a") == SmallFile(b"one", is_previous=True)


def test_file_cut_anywhere_or_zeroed_is_not_believed() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"payload")
    data = files.content("a")
    for damaged in [data[:n] for n in range(len(data))] + [bytes(len(data)), data + b"\0"]:
        files.put("a", damaged)
        assert read_small_file(files, "a") is None


def test_file_under_another_name_is_not_believed() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"payload")
    files.rename("a", "b")
    assert read_small_file(files, "b") is None


def test_damaged_version_is_not_kept_as_the_one_before() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"one")
    write_small_file(files, "a", b"two")
    files.flip_bit("a", 100)
    write_small_file(files, "a", b"three")
    files.flip_bit("a", 100)
    assert read_small_file(files, "a") == SmallFile(b"one", is_previous=True)


def test_refused_read_is_an_error_and_not_absence() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"one")
    files.fail(Fault("read", "a"))
    with pytest.raises(FilesError):
        read_small_file(files, "a")


def test_full_disk_leaves_the_old_contents() -> None:
    files = MemoryFiles()
    write_small_file(files, "a", b"one")
    files.fail(Fault("append", "a.new", is_full=True))
    with pytest.raises(FilesError):
        write_small_file(files, "a", b"two")
    assert read_small_file(files, "a") == SmallFile(b"one", is_previous=False)
    assert files.open_count == 0


def test_rest_of_an_interrupted_write_is_not_appended_to() -> None:
    files = MemoryFiles()
    files.put("a.new", b"garbage")
    write_small_file(files, "a", b"one")
    assert read_small_file(files, "a") == SmallFile(b"one", is_previous=False)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=1500), min_size=1, max_size=4), st.integers(0, 60), st.integers(0)
)
def test_power_cut_anywhere_leaves_the_old_or_the_new_contents(
    payloads: list[bytes], point: int, seed: int
) -> None:
    files = MemoryFiles()
    files.power.cut_at = point
    written: list[bytes] = []
    under_way: list[bytes] = []
    try:
        for payload in payloads:
            under_way = [payload]
            write_small_file(files, "a", payload)
            written.append(payload)
            under_way = []
    except PowerCutError:
        pass
    files.crash(Random(seed))

    found = read_small_file(files, "a")

    if found is None:
        assert not written
    else:
        assert found.payload in written[-1:] + under_way


def test_power_cut_inside_a_removal_never_brings_back_an_older_version() -> None:
    for point in range(1, 8):
        for seed in range(30):
            files = MemoryFiles()
            write_small_file(files, "a", b"old")
            write_small_file(files, "a", b"new")
            files.power.cut_at = files.power.points + point
            try:
                remove_small_file(files, "a")
                is_removed = True
            except PowerCutError:
                is_removed = False
            files.crash(Random(seed))
            found = read_small_file(files, "a")
            assert found in (None, SmallFile(b"new", is_previous=False))
            assert not (is_removed and found)


def test_removal_of_an_absent_file_costs_no_sync() -> None:
    files = MemoryFiles()
    remove_small_file(files, "a")
    assert files.power.points == 0
