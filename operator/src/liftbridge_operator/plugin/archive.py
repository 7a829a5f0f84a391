"""The file of a support bundle: a `.tar.gz` that gets its name only once it is complete.

Only its owner can read it. It is written piece by piece, so the largest piece bounds memory.
"""

import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PARTIAL: Final = ".partial"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the bundle.

    Attributes:
        path: Path in the bundle.
        size_bytes: Size of its content, before compression.
        is_cut: Whether the beginning of it was left out.
    """

    path: str
    size_bytes: int
    is_cut: bool = False


class Archive:
    """A bundle that is being written.

    Attributes:
        entries: Its files.
        left_bytes: Bytes that still fit.
    """

    def __init__(self, path: Path, *, root: str, bytes_max: int, made_s: int) -> None:
        """Create an empty bundle next to its final path.

        Args:
            path: Final path.
            root: Folder that contains all its files.
            bytes_max: Limit of its content, before compression.
            made_s: Time of its files, Unix seconds.

        Raises:
            FileExistsError: A file of this name exists.
            OSError: It cannot be written there.
        """
        if path.exists():
            raise FileExistsError(17, "a file of this name already exists", str(path))
        self.entries: list[Entry] = []
        self.left_bytes = bytes_max
        self._path, self._root, self._made_s = path, root, made_s
        self._partial = path.with_name(path.name + PARTIAL)
        number = os.open(self._partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, _MODE)
        self._file = os.fdopen(number, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115 - until `finish`

    def add(self, name: str, content: bytes, *, is_cut: bool = False) -> bool:
        """Add a file; return False if there is no room for it."""
        if len(content) > self.left_bytes:
            return False
        self.left_bytes -= len(content)
        self._write(name, content)
        self.entries.append(Entry(name, len(content), is_cut))
        return True

    def _write(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(f"{self._root}/{name}")
        info.size, info.mtime, info.mode = len(content), self._made_s, 0o644
        self._tar.addfile(info, io.BytesIO(content))

    def finish(self, manifest: Any) -> int:
        """Add the manifest, for which there is always room, and give the file its name.

        Returns:
            Bytes of the file.
        """
        self._write("manifest.json", as_json(manifest))
        self._tar.close()
        self._file.close()
        self._partial.rename(self._path)
        return self._path.stat().st_size

    def discard(self) -> None:
        """Remove the partial file when the bundle is not completed."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


def as_json(value: Any) -> bytes:
    """Format a value as indented JSON."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
