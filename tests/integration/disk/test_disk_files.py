"""The port `Files` on a real file system: order of events, cold reads, full disks, the lock."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from liftbridge_broker.adapters.disk import files as disk
from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.adapters.disk.lock import SharedLock
from liftbridge_broker.errors import FilesError
from liftbridge_broker.ports.files import FileEvent, Files, Token


class Inbox:
    """Collects events and wakes a waiter when enough have come."""

    def __init__(self) -> None:
        self.batches: list[Sequence[FileEvent]] = []
        self._changed = asyncio.Event()

    @property
    def events(self) -> list[FileEvent]:
        return [event for batch in self.batches for event in batch]

    def receive(self, events: Sequence[FileEvent]) -> None:
        self.batches.append(events)
        self._changed.set()

    async def wait(self, count: int) -> list[FileEvent]:
        async with asyncio.timeout(20):
            while len(self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.events


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
async def files(tmp_path: Path, inbox: Inbox) -> AsyncIterator[DiskFiles]:
    loop = asyncio.get_running_loop()
    made = DiskFiles(tmp_path / "data", post=loop.call_soon_threadsafe, deliver=inbox.receive)
    yield made
    made.shut_down()


def unheard(_: Callable[[], None]) -> None:
    """A loop that never runs what is posted to it."""


async def test_what_is_appended_is_read_back_at_any_position(files: DiskFiles) -> None:
    port: Files = files
    port.make_directory("a/b")
    handle = port.open("a/b/log", create=True)
    port.append(handle, b"0123")
    port.append(handle, b"456789")

    assert port.read(handle, 2, 5) == b"23456"
    assert port.read(handle, 8, 100) == b"89"
    assert port.read(handle, 50, 10) == b""
    assert port.size(handle) == 10


async def test_names_are_listed_renamed_and_removed(files: DiskFiles) -> None:
    for name in ("b", "a", "c"):
        files.close(files.open(name, create=True))
    files.make_directory("d/e")
    files.rename("a", "b")
    files.remove("c")
    files.remove("never there")
    files.sync_directory("")
    assert files.list("") == [".lock", "b", "d"]

    files.remove("d")

    assert not files.exists("d")
    assert files.list("d") == ()


async def test_open_of_an_absent_file_fails_without_create(files: DiskFiles) -> None:
    with pytest.raises(FilesError, match="open none: No such file or directory"):
        files.open("none")


async def test_truncated_file_is_appended_at_its_new_end(files: DiskFiles) -> None:
    handle = files.open("a", create=True)
    files.append(handle, b"0123456789")
    files.truncate(handle, 4)
    files.append(handle, b"x")
    assert files.read(handle, 0, 100) == b"0123x"


async def test_syncs_and_reads_are_answered_in_order_of_submission(
    files: DiskFiles, inbox: Inbox
) -> None:
    handle = files.open("a", create=True)
    files.append(handle, b"0123456789")
    for number in range(50):
        files.submit_sync(Token(number), [handle])
        files.submit_read(Token(1000 + number), handle, number % 10, 1)

    events = await inbox.wait(100)

    syncs = [event for event in events if event.token < 1000]
    reads = [event for event in events if event.token >= 1000]
    assert [event.token for event in syncs] == list(range(50))
    assert [event.token for event in reads] == list(range(1000, 1050))
    assert b"".join(event.data for event in reads) == b"0123456789" * 5


async def test_events_ready_in_one_turn_arrive_together(files: DiskFiles, inbox: Inbox) -> None:
    handle = files.open("a", create=True)
    files.append(handle, b"x")
    for number in range(20):
        files.submit_read(Token(number), handle, 0, 1)
    # The loop does not run meanwhile, so all results wait for its next turn.
    files._reader.close()

    await inbox.wait(20)

    assert [len(batch) for batch in inbox.batches] == [20]


async def test_close_waits_for_calls_submitted_on_the_handle(
    files: DiskFiles, inbox: Inbox
) -> None:
    handle = files.open("a", create=True)
    files.append(handle, b"data")
    files.submit_read(Token(1), handle, 0, 4)
    files.close(handle)
    descriptors = len(files._descriptors)

    events = await inbox.wait(1)

    assert descriptors == 1
    assert events == [FileEvent(Token(1), b"data")]
    assert len(files._descriptors) == 0


async def test_read_of_what_is_not_in_memory_answers_at_once_with_nothing(
    files: DiskFiles, inbox: Inbox
) -> None:
    handle = files.open("cold", create=True)
    data = os.urandom(1 << 20)
    files.append(handle, data)
    files.sync(handle)
    descriptor = files._descriptors[handle]
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    assert files.try_read(handle, 0, 300_000) is None
    files.submit_read(Token(1), handle, 0, 300_000)
    (event,) = await inbox.wait(1)

    assert event.data == data[:300_000]
    assert files.try_read(handle, 0, 300_000) == data[:300_000]
    assert files.try_read(handle, 1, 700_000) in (None, data[1:700_001])


async def test_cached_read_at_the_end_is_short_and_not_a_miss(files: DiskFiles) -> None:
    handle = files.open("a", create=True)
    files.append(handle, b"0123456789")
    files.read(handle, 0, 10)
    assert files.try_read(handle, 6, 4096) == b"6789"
    assert files.try_read(handle, 10, 4096) == b""


async def test_file_system_without_the_flag_sends_every_read_to_the_thread(inbox: Inbox) -> None:
    """`/dev/shm` is a tmpfs, which knows no `RWF_NOWAIT` up to Linux 6."""
    root = Path("/dev/shm") / f"liftbridge-test-{os.getpid()}"  # noqa: S108 - a tmpfs is wanted
    loop = asyncio.get_running_loop()
    files = DiskFiles(root, post=loop.call_soon_threadsafe, deliver=inbox.receive)
    try:
        handle = files.open("a", create=True)
        files.append(handle, b"0123")
        assert files.try_read(handle, 0, 4) in (None, b"0123")
        files.submit_read(Token(1), handle, 0, 4)
        (event,) = await inbox.wait(1)
        assert event.data == b"0123"
    finally:
        files.remove("a")
        files.shut_down()
        (root / ".lock").unlink()
        root.rmdir()


async def test_failed_submitted_call_is_an_event_with_an_error(
    files: DiskFiles, inbox: Inbox
) -> None:
    handle = files.open("a", create=True)
    os.close(files._descriptors[handle])
    files.submit_sync(Token(5), [handle])
    (event,) = await inbox.wait(1)
    del files._descriptors[handle]
    assert event.token == 5
    assert event.error is not None
    assert str(event.error) == "sync a: Bad file descriptor"
    assert not event.error.is_full


async def test_submitted_sync_includes_directories_but_those_that_are_gone(
    files: DiskFiles, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.make_directory("d")
    handle = files.open("d/a", create=True)
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda number: synced.append(place_of(number)))
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(place_of(number)))
    files.submit_sync(Token(5), [handle], ["gone", "d"])
    files.submit_sync(Token(6), [], ["d/a"])
    good, bad = await inbox.wait(2)
    assert (good.token, good.error) == (5, None)
    assert synced == ["a", "d"]
    assert str(bad.error) == "sync directory d/a: Not a directory"


def place_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


async def test_submitted_removal_removes_a_directory_with_all_it_holds(
    files: DiskFiles, inbox: Inbox
) -> None:
    files.make_directory("d/e")
    files.close(files.open("d/e/f", create=True))
    files.submit_remove(Token(1), "d")
    assert await inbox.wait(1) == [FileEvent(Token(1))]
    assert not files.exists("d")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a/", "a\0b"])
async def test_path_that_could_leave_the_directory_is_refused(files: DiskFiles, path: str) -> None:
    for call in (files.open, files.remove, files.make_directory, files.list, files.exists):
        with pytest.raises(FilesError, match="leaves the data directory"):
            call(path)


async def test_symbolic_link_is_not_followed(files: DiskFiles, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(FilesError, match="open link"):
        files.open("link")


async def test_second_owner_in_this_process_is_refused(files: DiskFiles, tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=f"is in use by process {os.getpid()} on "):
        DiskFiles(tmp_path / "data", post=unheard, deliver=lambda _: None)


HOLD = """
import sys
from pathlib import Path
from liftbridge_broker.adapters.disk.files import DiskFiles
files = DiskFiles(Path(sys.argv[1]), post=lambda call: None, deliver=lambda events: None)
print("held", flush=True)
sys.stdin.read()
"""


def test_second_process_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FilesError, match=f"in use by process {holder.pid} on "):
            DiskFiles(tmp_path, post=unheard, deliver=lambda _: None)
        with pytest.raises(FilesError, match=f"in use by process {holder.pid} on "):
            SharedLock(tmp_path)
        # The kernel gives the lock back however the holder ends.
        holder.kill()
        holder.wait()
        DiskFiles(tmp_path, post=unheard, deliver=lambda _: None).shut_down()


def test_readers_share_the_lock_and_keep_an_owner_out(tmp_path: Path) -> None:
    SharedLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []
    DiskFiles(tmp_path, post=unheard, deliver=lambda _: None).shut_down()
    first, second = SharedLock(tmp_path), SharedLock(tmp_path)
    with pytest.raises(FilesError, match="in use by"):
        DiskFiles(tmp_path, post=unheard, deliver=lambda _: None)
    first.release()
    second.release()
    DiskFiles(tmp_path, post=unheard, deliver=lambda _: None).shut_down()


FILL = """
import resource, sys
from pathlib import Path
from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.errors import FilesError
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
files = DiskFiles(Path(sys.argv[1]), post=lambda call: None, deliver=lambda events: None)
handle = files.open("a", create=True)
files.append(handle, b"x" * 9_000)
try:
    files.append(handle, b"y" * 5_000)
except FilesError as error:
    print(error.is_full, files.size(handle), error)
files.append(handle, b"z" * 1_000)
print(files.size(handle))
"""


def test_append_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The kernel writes 1,000 of 5,000 bytes and then refuses: those 1,000 are taken back."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    result = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, check=True, timeout=60
    )
    assert result.stdout.decode().splitlines() == [
        "True 9000 append to a: File too large",
        "10000",
    ]


def test_full_device_is_told_from_a_broken_one() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(FilesError, match="cut back a short append") as refused:
            disk.append_rest(descriptor, b"data", 0, "a")
        assert isinstance(refused.value.__context__, OSError)
    finally:
        os.close(descriptor)
    for number, is_full in (
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EFBIG, True),
        (errno.EIO, False),
        (errno.EROFS, False),
    ):
        assert disk.translated(OSError(number, "x"), "append to", "a").is_full is is_full


async def test_size_of_the_volume_is_known(files: DiskFiles) -> None:
    assert 0 < files.free_bytes() <= files.total_bytes()


async def test_no_event_comes_after_the_end(tmp_path: Path, inbox: Inbox) -> None:
    loop = asyncio.get_running_loop()
    files = DiskFiles(tmp_path, post=loop.call_soon_threadsafe, deliver=inbox.receive)
    handle = files.open("a", create=True)
    files.submit_sync(Token(1), [handle])
    files.shut_down()
    done = asyncio.Event()
    loop.call_soon(done.set)
    await done.wait()
    assert inbox.events == []


async def test_file_closed_while_it_is_synced_is_closed_once(tmp_path: Path) -> None:
    """The end of the sync may be told only after everything is shut down."""
    posted: list[Callable[[], None]] = []
    files = DiskFiles(tmp_path, post=posted.append, deliver=lambda _: None)
    handle = files.open("log", create=True)
    files.submit_sync(Token(1), (handle,))
    files.close(handle)
    files.shut_down()
    assert files.open_count == 0
    for drain in posted:
        drain()
    assert files.open_count == 0


async def test_what_is_written_again_lies_where_it_was(files: DiskFiles, tmp_path: Path) -> None:
    data = bytes(range(251)) * (2 * disk.REWRITE_BYTES // 251)
    handle = files.open("log", create=True)
    files.append(handle, data)
    os.utime(tmp_path / "data" / "log", ns=(0, 0))

    files.rewrite(handle, 300)

    assert (tmp_path / "data" / "log").stat().st_mtime_ns > 0
    files.append(handle, b"end")
    assert files.read(handle, 0, len(data) + 10) == data + b"end"
