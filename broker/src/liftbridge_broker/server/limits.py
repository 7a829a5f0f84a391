"""Limits that the system sets this process."""

import os
import resource
import sys
from pathlib import Path
from typing import Final, NamedTuple

from liftbridge_broker.errors import LimitError

SPARE_FILES: Final = 64
"""What a broker opens besides its partitions before the first client comes."""

OPERATOR_FILES: Final = 16
"""Connections of operators beyond those that clients may have."""

REPLICA_BYTES: Final = 64 * 1024
"""Memory of a replica, generously: 18 KiB were measured for one that is written seldom."""

REPLICA_DISK_BYTES: Final = 64 * 1024
"""Disk of an empty replica, generously: a directory and some small files, each a block or two."""

REPLICA_INODES: Final = 8
"""Directory entries of a replica with one segment, generously."""

CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container finds its limit of memory, in versions 2 and 1 of control groups."""


class OpenFiles(NamedTuple):
    """How many files and connections may be open at once.

    Attributes:
        before: When the process began.
        limit: From now on.
    """

    before: int
    limit: int


def raise_open_files() -> OpenFiles:
    """Take what the system allows: each active partition and each connection needs one.

    The soft limit of 1,024 that many systems begin with is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return OpenFiles(soft, soft)  # a sandbox may refuse even that: serve with what there is
    return OpenFiles(soft, hard)


def client_files_max() -> int:
    """Numbers of files below which connections of clients have to stay.

    An eighth is kept for logs and for the links to NATS. Otherwise whoever may connect could open
    connections until an append finds no file, which looks like a disk that failed.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - max(limit // 8, SPARE_FILES)


def replicas_max(directory: str) -> int:
    """How many replicas the system carries, so that a start with all of them does not fail.

    A quarter of the open files stays for clients and what `client_files_max` keeps, half of the
    memory for records on their way and the page cache, and half of the disk for records.

    Args:
        directory: The data directory.
    """
    bounds = [_memory_bytes() // 2 // REPLICA_BYTES, *_disk_bounds(directory)]
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY:
        bounds.append((limit - SPARE_FILES) * 3 // 4)
    return max(1, min(bounds))


def _disk_bounds(directory: str) -> list[int]:
    """Replicas by the size of the disk, and by its inodes where they are counted."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return []  # data in memory
    bounds = [disk.f_blocks * disk.f_frsize // 2 // REPLICA_DISK_BYTES]
    if disk.f_files:
        bounds.append(disk.f_files // 2 // REPLICA_INODES)
    return bounds


def _memory_bytes() -> int:
    """Memory of the machine, or of the control group of this process where that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text()
        except OSError:
            continue
        if text.strip().isdecimal():  # `max` is no limit
            found = min(found, int(text))
    return found


def require_open_files(partitions: int) -> None:
    """Refuse to start with more partitions than may be written at the same time.

    Otherwise the limit would be met at some append later, which looks like a disk that failed.

    Args:
        partitions: How many lie in the data directory.

    Raises:
        LimitError: Each cannot have a file open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = partitions + SPARE_FILES
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise LimitError(
            f"{partitions} partitions need {needed} open files, and the system allows {limit}: "
            "raise the limit (ulimit -n, LimitNOFILE)"
        )
