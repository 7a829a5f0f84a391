"""Write the definitions into a folder: `python -m liftbridge_operator.model.crds [FOLDER]`."""

import argparse
from pathlib import Path

from liftbridge_operator.model.crds.definitions import files


def main() -> None:
    """Write every definition; the caller removes files of dropped definitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("deploy/crds"))
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
