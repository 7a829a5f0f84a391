"""Files that others replace while the broker runs: certificates, keys, authorities.

A Secret that Kubernetes mounts changes by a link that is put elsewhere, other tools write files
anew; both show in what the system says of the file that the path leads to. Nobody has to send a
signal then.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 5.0
"""Between two looks."""

_Seen = tuple[tuple[int, int, int, int] | None, ...]


class FileWatch:
    """Tells when files are others than before.

    Args:
        paths: Files; empty ones are left out.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(Path(path) for path in paths if path)
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether any file was replaced, written, made or removed since the last question."""
        seen = self._look()
        has_changed, self._seen = seen != self._seen, seen
        return has_changed

    def _look(self) -> _Seen:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
