"""Limits that the operating system sets for this process."""

import os
import resource
import sys
from pathlib import Path
from typing import Final, NamedTuple

from liftbridge_broker.errors import LimitError

SPARE_FILES: Final = 64
"""Files that a broker opens besides partitions before the first client connects."""

OPERATOR_FILES: Final = 16
"""Connections of operators beyond those that clients may have."""

REPLICA_BYTES: Final = 64 * 1024
"""Memory of a replica, rounded up: 18 KiB were measured for a replica with few writes."""

REPLICA_DISK_BYTES: Final = 64 * 1024
"""Disk space of an empty replica, rounded up: a directory and some files of 1 or 2 blocks each."""

REPLICA_INODES: Final = 8
"""Inodes of a replica with one segment, rounded up."""

CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of a container, for control groups of version 2 and 1."""


class OpenFiles(NamedTuple):
    """Limit of open files and connections.

    Attributes:
        before: Limit when the process started.
        limit: Current limit.
    """

    before: int
    limit: int


def raise_open_files() -> OpenFiles:
    """Raise the limit to the system's maximum: each active partition and connection needs a file.

    The default soft limit of 1,024 on many systems is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return OpenFiles(soft, soft)  # a sandbox may refuse: continue with the current limit
    return OpenFiles(soft, hard)


def client_files_max() -> int:
    """Return the limit of file descriptor numbers for client connections.

    An eighth is kept for logs and for the links to NATS. Otherwise a client could open connections
    until an append gets no file descriptor, which looks like a disk failure.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - max(limit // 8, SPARE_FILES)


def replicas_max(directory: str) -> int:
    """Return the number of replicas that the system can hold, so that no later start fails.

    A quarter of the open files is reserved for clients and for the files that `client_files_max`
    reserves. Half of the memory is reserved for records in transit and the page cache, and half of
    the disk for records.

    Args:
        directory: The data directory.
    """
    bounds = [_memory_bytes() // 2 // REPLICA_BYTES, *_disk_bounds(directory)]
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY:
        bounds.append((limit - SPARE_FILES) * 3 // 4)
    return max(1, min(bounds))


def _disk_bounds(directory: str) -> list[int]:
    """Return the bounds by disk size, and by inodes if the file system counts them."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return []  # data in memory
    bounds = [disk.f_blocks * disk.f_frsize // 2 // REPLICA_DISK_BYTES]
    if disk.f_files:
        bounds.append(disk.f_files // 2 // REPLICA_INODES)
    return bounds


def _memory_bytes() -> int:
    """Return the machine's memory, or the limit of this process's control group if it is lower."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text()
        except OSError:
            continue
        if text.strip().isdecimal():  # `max` means no limit
            size = min(size, int(text))
    return size


def require_open_files(partitions: int) -> None:
    """Refuse to start with more partitions than files that can be open at the same time.

    Otherwise a later append would reach the limit, which looks like a disk failure.

    Args:
        partitions: Number of partitions in the data directory.

    Raises:
        LimitError: The limit does not allow a file for each partition.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = partitions + SPARE_FILES
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise LimitError(
            f"{partitions} partitions need {needed} open files, and the system allows {limit}: "
            "raise the limit (ulimit -n, LimitNOFILE)"
        )
