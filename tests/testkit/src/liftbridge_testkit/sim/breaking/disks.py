"""Disk faults: slow, failing, full, and with other bytes than were written."""

from collections.abc import Callable, Mapping

from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.sim.breaking.parts import Breaking, Undo, nothing
from liftbridge_testkit.sim.disk import LOG_FILES, SimFiles

METADATA_FILES = "metadata/*"


def _slow_disk(faults: Breaking) -> Undo | None:
    machine = faults.any_machine()
    machine.files.speed.factor = faults.random.choice((10, 100, 2_000))

    def mend() -> None:
        machine.files.speed.factor = 1

    return mend


def _failing(faults: Breaking, operation: str) -> Undo | None:
    machine = faults.any_machine()
    # A machine whose sync failed is rebooted, and loses its unsynced data.
    if operation == "sync" and not faults.atlas.may_lose(machine):
        return None
    # A replica that cannot be read is copied again.
    if operation == "read" and not faults.atlas.may_refuse_reads(machine):
        return None
    skip = faults.random.randrange(4)
    machine.files.fail(Fault(operation, skip=skip, count=faults.random.choice((1, 1, 5))))
    return machine.files.heal


def _failing_append(faults: Breaking) -> Undo | None:
    return _failing(faults, "append")


def _failing_sync(faults: Breaking) -> Undo | None:
    return _failing(faults, "sync")


def _failing_read(faults: Breaking) -> Undo | None:
    return _failing(faults, "read")


def _failing_rename(faults: Breaking) -> Undo | None:
    return _failing(faults, "rename")


def _full_disk(faults: Breaking) -> Undo | None:
    files = faults.any_machine().files
    used = files.capacity_bytes - files.free_bytes()
    files.capacity_bytes = used + faults.random.randrange(5_000)
    return files.enlarge


def _spoiled(
    faults: Breaking, kind: str, pattern: str, spoil: Callable[[SimFiles, str], str]
) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_damage(machine):
        return None
    # Only the next process sees it: this one has its writes in memory.
    machine.kill()
    where = spoil(machine.files, pattern)
    faults.world.trace.note(faults.world.now, machine.name, kind, where)
    return nothing if where else None


def _rot(faults: Breaking) -> Undo | None:
    return _spoiled(faults, "rot", faults.plan.rot_files, SimFiles.rot)


def _metadata_rot(faults: Breaking) -> Undo | None:
    return _spoiled(faults, "rot", METADATA_FILES, SimFiles.rot)


def _misdirected_write(faults: Breaking) -> Undo | None:
    return _spoiled(faults, "misdirected", LOG_FILES, SimFiles.misdirect)


def _wiped_disk(faults: Breaking) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_damage(machine):
        return None
    machine.wipe()
    return nothing


DISKS: Mapping[str, Callable[[Breaking], Undo | None]] = {
    "slow disk": _slow_disk,
    "EIO on append": _failing_append,
    "EIO on fsync": _failing_sync,
    "EIO on read": _failing_read,
    "EIO on rename": _failing_rename,
    "disk full": _full_disk,
    "bit rot": _rot,
    "metadata rot": _metadata_rot,
    "misdirected write": _misdirected_write,
    "wiped disk": _wiped_disk,
}
