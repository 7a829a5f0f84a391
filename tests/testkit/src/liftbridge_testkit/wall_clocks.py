"""Wall clocks of broker processes, each of which a test sets apart from the machine's."""

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "leaping_clock"


class WallClocks:
    """Files that say how far clocks are ahead, in a folder."""

    def __init__(self, folder: Path) -> None:
        """Begin with clocks that are right."""
        self._folder = folder

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the variables for a process of this name."""
        path = self._folder / f"{name}.clock"
        path.write_text("0", encoding="ascii")
        return {"PYTHONPATH": str(FOLDER), "LIFTBRIDGE_TESTKIT_CLOCK": str(path)}

    def set_ahead(self, ahead_ns: int, *names: str) -> None:
        """Set the clocks of processes; 0 makes them right again."""
        for name in names:
            fresh = self._folder / f"{name}.clock.new"
            fresh.write_text(str(ahead_ns), encoding="ascii")
            fresh.rename(self._folder / f"{name}.clock")
