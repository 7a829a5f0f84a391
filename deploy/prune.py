"""Remove files from a virtual environment that an image does not need at run time.

It removes tests, headers and sources, and the parts of Spark that only Hive, YARN or systems other
than Linux need. The build of the image then loads the remaining packages.
"""

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

FOLDERS = {"tests", "test", "include"}
SUFFIXES = {".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h"}
JARS = (
    "HikariCP-*",
    "commons-dbcp-*",
    "datanucleus-*",
    "derby*",
    "hive-[!s]*",  # Parquet and ORC need hive-storage-api
    "hive-s[!t]*",
    "javax.jdo-*",
    "jdo-api-*",
    "libfb303-*",
    "spark-hive*",
    "spark-yarn*",
    "*-osx-*",
    "*-windows-*",
)
"""Jars of Spark to remove."""


def main(environment: Path) -> None:
    """Prune the packages of the environment; print the number of bytes removed."""
    removed = 0
    for packages in environment.glob("lib/python3.*/site-packages"):
        doomed = [path for path in packages.rglob("*") if is_idle(path)]
        removed += sum(map(remove, doomed))
    sys.stdout.write(f"{removed // 1_000_000} MB removed\n")


def is_idle(path: Path) -> bool:
    """Return whether no program reads this path at run time."""
    if path.is_dir():
        return path.name in FOLDERS
    if path.suffix == ".jar":
        return any(fnmatch(path.name, pattern) for pattern in JARS)
    return path.suffix in SUFFIXES


def remove(path: Path) -> int:
    """Remove a file or a folder, if it exists; return its size in bytes."""
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
