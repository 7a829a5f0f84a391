"""Limits that the system sets this process."""

import resource
from typing import NamedTuple


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
