"""How the previous broker left a data directory, as far as its files prove it."""

from liftbridge_broker.model.ids import MetadataIndex, stream_of
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.directory import DataDirectory, read_known_index
from liftbridge_broker.storage.journal import LoadedJournal


class LastStop:
    """What a start knows of the end of the previous process.

    Attributes:
        was_clean: Whether that stop was in order, without changes since.
        broker_epoch: Broker epoch of the previous broker; `None` if its stop was not clean.
        known_index: Metadata index whose fsync policies it certainly applied.
        is_journal_whole: Whether its journal exists and is undamaged.
    """

    def __init__(self, directory: DataDirectory, loaded: LoadedJournal) -> None:
        """Read the marker of a clean stop; raises `FilesError`."""
        self._directory = directory
        self.is_journal_whole = loaded.stamp is not None and not loaded.damaged_count
        self.was_clean = False
        self.broker_epoch: int | None = None
        self.known_index = MetadataIndex(0)
        marker = directory.read_clean_marker()
        stamp = loaded.stamp if self.is_journal_whole and not loaded.torn_bytes else None
        # Another program restored a marker that does not match the journal.
        if marker is not None and marker.journal == stamp:
            self.was_clean = True
            self.broker_epoch = marker.broker_epoch

    def read_known(self, files: Files, applied_index: MetadataIndex) -> None:
        """Read `known_index`, once these metadata are applied; raises `FilesError`."""
        self.known_index = read_known_index(files, applied_index)  # guard Log.known_index

    @property
    def proven_index(self) -> int:
        """Return the greatest metadata index that files prove: a stream's id, or the last epoch."""
        streams = (int(stream_of(partition)) for partition in self._directory.logs())
        return max(self.broker_epoch or 0, *streams, 0)
