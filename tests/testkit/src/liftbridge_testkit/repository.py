"""The files of this repository, without those that git ignores."""

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
GENERATED = ROOT / "proto" / "src" / "liftbridge_proto"
PRODUCTS = ("broker/src/", "client/src/", "operator/src/", "spark/src/")
"""Folders of the products' code."""

_NEVER_ENTERED = {".git"}


@cache
def files(suffix: str = "") -> tuple[Path, ...]:
    """Return all files that git would not ignore, sorted; with `suffix`, only such names."""
    ignored, patterns = _ignored()
    found: list[Path] = []
    pending = [ROOT]
    while pending:
        for path in pending.pop().iterdir():
            if path.is_dir():
                if path.name not in ignored and path.relative_to(ROOT).as_posix() not in ignored:
                    pending.append(path)
            elif path.name.endswith(suffix) and not any(path.match(each) for each in patterns):
                found.append(path)
    return tuple(sorted(found))


@cache
def python_files() -> tuple[Path, ...]:
    """Return every Python file written by hand."""
    return tuple(path for path in files(".py") if GENERATED not in path.parents)


def relative(path: Path) -> str:
    """Return the `/`-separated path from the root of the repository, for messages."""
    return path.relative_to(ROOT).as_posix()


def _ignored() -> tuple[set[str], list[str]]:
    """Return folders and patterns in `.gitignore`, by name or by path from the root."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = {line.strip("/") for line in lines if line.endswith("/")}
    return _NEVER_ENTERED | folders, [line for line in lines if line and not line.endswith("/")]
