"""Detects files that are replaced while the broker runs: certificates, keys, authorities.

A Secret that Kubernetes mounts changes when a symbolic link is redirected; other tools rewrite
files. Both show in the `stat` of the resolved path, so no signal is needed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 5.0
"""Interval between two checks."""

_Seen = tuple[tuple[int, int, int, int] | None, ...]


class FileWatch:
    """Detects changed files.

    Args:
        paths: Files to watch; empty paths are ignored.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(Path(path) for path in paths if path)
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Return whether any file was replaced, written, created or removed since the last call."""
        seen = self._look()
        has_changed, self._seen = seen != self._seen, seen
        return has_changed

    def _look(self) -> _Seen:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
