"""Limits that the system sets this process."""

import resource
from typing import Final, NamedTuple

from liftbridge_broker.errors import LimitError

SPARE_FILES: Final = 64
"""What a broker opens besides its partitions before the first client comes."""


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
