"""Directories that left a cluster: never a voter's again, whenever the power fails."""

from random import Random

import pytest

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.storage.directory import (
    CLEAN,
    IDENTITY,
    RETIRED,
    DataDirectory,
    Identity,
    read_identity,
)
from liftbridge_broker.storage.retirement import is_retired, renew_retired, retire
from liftbridge_broker.storage.smallfile import PREVIOUS_SUFFIX, write_small_file
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError

FORMER = Identity("d-1", BrokerId("b-1"))
METADATA = "metadata"


def member() -> MemoryFiles:
    """A directory with metadata, a marker of a clean stop and a log."""
    files = MemoryFiles()
    DataDirectory.open(files, FORMER, (METADATA,))
    files.make_directory(METADATA)
    files.sync_directory("")
    for name in ("1.wal", "2.snapshot"):
        write_small_file(files, f"{METADATA}/{name}", b"vote")
    write_small_file(files, CLEAN, b"{}")
    return files


def test_directory_that_stays_is_left_alone() -> None:
    files = member()
    assert not is_retired(files, FORMER)
    assert not renew_retired(files, "d-2", (METADATA,))
    assert read_identity(files) == FORMER
    assert files.list(METADATA)


def test_retired_directory_is_another_member_with_the_same_name() -> None:
    files = member()
    retire(files, FORMER)
    retire(files, FORMER)
    assert is_retired(files, FORMER)
    assert renew_retired(files, "d-2", (METADATA,))
    assert read_identity(files) == Identity("d-2", FORMER.broker_id)
    assert not files.list(METADATA)
    assert not files.exists(CLEAN)
    assert DataDirectory.open(files, FORMER, (METADATA,)).unknown == ()


def test_it_founds_nothing_until_it_has_the_metadata_of_a_cluster() -> None:
    files = member()
    retire(files, FORMER)
    assert renew_retired(files, "d-2", (METADATA,))
    assert renew_retired(files, "d-3", (METADATA,))
    assert read_identity(files) == Identity("d-2", FORMER.broker_id)
    write_small_file(files, f"{METADATA}/1.wal", b"new")
    assert not renew_retired(files, "d-3", (METADATA,))
    assert not files.exists(RETIRED)
    assert files.list(METADATA)


def test_power_that_fails_at_any_step_leaves_no_voter_and_keeps_the_name() -> None:
    files = member()
    retire(files, FORMER)
    first = files.power.points
    renew_retired(files, "d-2", (METADATA,))
    assert files.power.points > first + 5
    for point in range(first + 1, files.power.points + 1):
        for seed in range(5):
            cut = member()
            retire(cut, FORMER)
            cut.power.cut_at = point
            with pytest.raises(PowerCutError):
                renew_retired(cut, "d-2", (METADATA,))
            cut.crash(Random(seed))
            assert renew_retired(cut, "d-3", (METADATA,))
            assert not cut.list(METADATA)
            stored = read_identity(cut)
            assert stored is not None
            assert stored.data_dir_id in {"d-2", "d-3"}
            assert stored.broker_id == FORMER.broker_id
            assert not cut.exists(f"{IDENTITY}{PREVIOUS_SUFFIX}")
