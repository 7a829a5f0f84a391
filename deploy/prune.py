"""Remove from a virtual environment what is not needed to run what an image is for.

Tests, headers and sources go. The build of the image loads what stays.
"""

import shutil
import sys
from pathlib import Path

FOLDERS = {"tests", "test", "include"}
SUFFIXES = {".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h"}


def main(environment: Path) -> None:
    """Prune the packages of the environment; says how many bytes went."""
    removed = 0
    for packages in environment.glob("lib/python3.*/site-packages"):
        doomed = [path for path in packages.rglob("*") if is_idle(path)]
        removed += sum(map(remove, doomed))
    sys.stdout.write(f"{removed // 1_000_000} MB removed\n")


def is_idle(path: Path) -> bool:
    """Whether nothing that runs reads this."""
    return path.name in FOLDERS if path.is_dir() else path.suffix in SUFFIXES


def remove(path: Path) -> int:
    """Remove a file or a folder that may be gone already; its bytes."""
    if path.is_dir():
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        shutil.rmtree(path)
        return size
    if not path.exists():
        return 0
    size = path.stat().st_size
    path.unlink()
    return size


if __name__ == "__main__":
    main(Path(sys.argv[1]))
