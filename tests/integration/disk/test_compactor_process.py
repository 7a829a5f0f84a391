"""Compaction by the helper process on real files, and what happens when somebody dies."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from liftbridge_broker.adapters.disk.compactor import CompactorProcess
from liftbridge_broker.adapters.disk.files import LocalFiles
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import read_header
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    SegmentRef,
    cleaned_path,
    decode_result,
)
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits
from liftbridge_testkit.stores import START_WALL_NS, batch_of, key_of, values_in

A = key_of(1)


class Bed:
    """A log on a real file system and a helper for it."""

    def __init__(self, root: Path) -> None:
        self.events: asyncio.Queue[FileEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.files = LocalFiles(root, post=loop.call_soon_threadsafe, deliver=self.deliver)
        self.compactor = CompactorProcess(
            root, post=loop.call_soon_threadsafe, deliver=self.deliver
        )
        self.log, _ = PartitionLog.open(
            self.files, "log", A, LogLimits(0, 0), EMPTY_STATE, clean=True, commit=False
        )

    def deliver(self, events: Sequence[FileEvent]) -> None:
        for event in events:
            self.events.put_nowait(event)

    def fill(self, batches: int, *, size: int = 100) -> None:
        for number in range(batches):
            key = b"%d" % (number % 3)
            value = b"%d" % number + b"." * size
            batch = batch_of(A, self.log.log_end_offset, [value], keys=[key])
            self.log.append(batch, read_header(batch, 0), START_WALL_NS)
        self.log.roll()

    def job(self) -> CompactionJob:
        infos = [info for info in self.log.segments() if info.bytes]
        return CompactionJob(
            directory="log",
            partition_id=A,
            segments=tuple(SegmentRef(info.base, info.end, info.bytes) for info in infos),
            sealed_count=len(infos),
            until=self.log.log_end_offset,
            map_start=Offset(0),
            segment_bytes_max=0,
        )

    async def ask(self, token: int, job: CompactionJob) -> FileEvent:
        self.compactor.submit(Token(token), job)
        async with asyncio.timeout(30):
            return await self.events.get()


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.compactor.shut_down()
    made.log.abandon()
    made.files.shut_down()


async def test_helper_compacts_and_the_log_takes_the_result(bed: Bed) -> None:
    bed.fill(9)
    event = await bed.ask(1, bed.job())
    assert event.token == 1
    result = decode_result(event)
    assert result.removed_count == 6
    for replacement in result.replacements:
        bases = [segment.base for segment in replacement.segments]
        bed.log.replace_segments(bases, cleaned_path("log", bases[0]))
    assert sorted(values_in(bed.log)) == [6, 7, 8]


async def test_failed_job_is_answered_with_its_reason_and_the_helper_goes_on(bed: Bed) -> None:
    bed.fill(3)
    good = bed.job()
    bad = bed.job()
    object.__setattr__(bad, "directory", "nowhere")
    event = await bed.ask(1, bad)
    assert event.error is not None
    assert "nowhere/00000000000000000000.log: No such file or directory" in str(event.error)
    assert (await bed.ask(2, good)).error is None


async def test_damage_is_told_with_its_file_and_place(tmp_path: Path, bed: Bed) -> None:
    bed.fill(3)
    path = "log/00000000000000000000.log"
    with (tmp_path / path).open("r+b") as log:
        log.seek(100)
        log.write(b"\xff\xff")
    with pytest.raises(CorruptionError) as caught:
        decode_result(await bed.ask(1, bed.job()))
    assert (caught.value.path, caught.value.position) == (path, 0)
    assert str(caught.value).count(path) == 1


async def test_helper_that_was_killed_is_replaced_for_the_next_job(bed: Bed) -> None:
    bed.fill(3)
    assert (await bed.ask(1, bed.job())).error is None
    first = bed.compactor._process
    assert first is not None
    first.kill()
    first.wait()
    event = await bed.ask(2, bed.job())
    assert str(event.error) == "compactor ended with code -9"
    assert (await bed.ask(3, bed.job())).error is None


async def test_end_of_the_broker_ends_a_job_under_way(bed: Bed) -> None:
    bed.fill(400, size=100_000)
    assert (await bed.ask(1, bed.job())).error is None
    process = bed.compactor._process
    assert process is not None
    bed.compactor.submit(Token(2), bed.job())
    bed.compactor.shut_down()
    assert process.returncode == -signal.SIGKILL
    assert bed.events.empty()


HOLD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_compactor_process import Bed

async def main():
    bed = Bed(Path(sys.argv[1]))
    bed.fill(3)
    await bed.ask(1, bed.job())
    print(bed.compactor._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_helper_ends_with_a_broker_that_was_killed(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), here], stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        helper = os.pidfd_open(int(broker.stdout.readline()))
        broker.kill()
        poll = select.poll()
        poll.register(helper, select.POLLIN)
        assert poll.poll(20_000), "the helper outlived its broker"
        os.close(helper)
