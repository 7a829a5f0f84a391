"""What a failing disk means for its data directory (storage policies 7 and 8).

A full disk is survived: publishes are refused, and the reserve and the trash make room for what
must still be written. After any other failure nothing in the directory is called durable, written
or retried any more.
"""

from collections.abc import Callable

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.directory import RESERVE
from liftbridge_broker.storage.reporting import Reporter
from liftbridge_broker.storage.reserve import SpaceGuard, SpaceLimits
from liftbridge_broker.storage.trash import TrashBin


class Disk:
    """State of the disk below a data directory: in order, full, or failed for ever.

    Attributes:
        space: Its free space, and whether publishes are refused for lack of it.
        failure: Reason why the directory is offline; empty if it is not.
        on_failed: Called with the reason when the directory goes offline.
    """

    def __init__(
        self, files: Files, limits: SpaceLimits, trash: TrashBin, reporter: Reporter, label: str
    ) -> None:
        """Start in order; `label` names the directory in messages."""
        self.space = SpaceGuard(files, RESERVE, limits, self._on_space)
        self.failure = ""
        self.on_failed: Callable[[str], None] = _ignore
        self._trash = trash
        self._reporter = reporter
        self._label = label

    @property
    def is_full(self) -> bool:
        """Return whether publishes must be refused for lack of space."""
        return self.space.is_full

    def run(self, act: Callable[[], None], now: Instant) -> None:
        """Do disk work unless the directory is offline; handle its failure."""
        if self.failure:
            return
        try:
            act()
        except FilesError as error:
            self.on_error(error, now)

    def on_error(self, error: FilesError, now: Instant) -> None:
        """Handle a failure: survive a full disk; otherwise take the directory offline."""
        if error.is_full:
            self.on_full(now)
        else:
            self.fail(error)

    def on_full(self, now: Instant) -> None:
        """Handle a write to a full disk: free as much space as possible."""
        self.run(lambda: self.space.on_full(now), now)
        self.run(self._trash.on_pressure, now)

    def fail(self, error: FilesError) -> None:
        """Take the directory offline."""
        if self.failure:
            return
        self.failure = error.text
        self._reporter.report("data_directory_offline", path=self._label, reason=error.text)
        self.on_failed(error.text)

    def on_timer(self, now: Instant) -> None:
        """Check a full disk again if that is due; raises `FilesError`."""
        if self.space.is_full and now >= self.space.check_due:
            self.space.check(now)
            self.make_room()

    def make_room(self) -> None:
        """Purge the next entry of the trash if the disk is full; raises `FilesError`."""
        if self.space.is_full:
            self._trash.on_pressure()

    def _on_space(self, free_bytes: int) -> None:
        if self.space.is_full:
            limit = self.space.limits.free_bytes_min
            self._reporter.report("disk_full", free_bytes=free_bytes, limit_bytes=limit)
        else:
            self._reporter.report("disk_space_regained", free_bytes=free_bytes)


def _ignore(_reason: str) -> None:
    """Ignore the failure: no listener is set."""
