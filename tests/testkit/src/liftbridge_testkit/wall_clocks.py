"""Wall clocks of broker processes that tests set apart from the machine's clock."""

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "leaping_clock"


class WallClocks:
    """Files in a folder with the lead of each clock."""

    def __init__(self, folder: Path) -> None:
        """Begin with correct clocks."""
        self._folder = folder

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the variables for a process of this name."""
        path = self._folder / f"{name}.clock"
        path.write_text("0", encoding="ascii")
        return {"PYTHONPATH": str(FOLDER), "LIFTBRIDGE_TESTKIT_CLOCK": str(path)}

    def set_ahead(self, ahead_ns: int, *names: str) -> None:
        """Set the lead of the clocks of processes; 0 makes them correct again."""
        for name in names:
            fresh = self._folder / f"{name}.clock.new"
            fresh.write_text(str(ahead_ns), encoding="ascii")
            fresh.rename(self._folder / f"{name}.clock")
