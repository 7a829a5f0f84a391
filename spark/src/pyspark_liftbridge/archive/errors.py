"""What can go wrong with an archive, by what its caller can do about it."""


class ArchiveError(Exception):
    """Of every error here; the text names value, rule, place and remedy, in one line."""

    def __str__(self) -> str:
        """The text; what it quotes of foreign errors may go over several lines."""
        return " ".join(super().__str__().splitlines())


class UnsupportedStoreError(ArchiveError):
    """A place that cannot hold an archive: its scheme is unknown, or it lets two writers win."""


class StoreError(ArchiveError):
    """A store did not answer, or not as it should; what was asked may have been done or not."""


class DamagedError(ArchiveError):
    """Something in the archive is not what its format says."""


class FileGoneError(ArchiveError):
    """A file that a snapshot names is not there any more; a newer one names others."""


class UnsupportedTableError(ArchiveError):
    """A sound table that this package must not read or write."""


class OtherStreamError(ArchiveError):
    """A table holds the records of another stream."""


class ClaimError(ArchiveError):
    """What is to be committed does not hold together; nothing was written."""


class RecordsError(ArchiveError):
    """Records that are to be written are not those of their range."""


class ConflictError(ArchiveError):
    """Another writer has the number of the log that an entry was for.

    Attributes:
        version: The number.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"entry {version} is there already: read it, and plan upon it")
        self.version = version


class UnknownOutcomeError(ArchiveError):
    """Whether an entry was written could not be found out; who reads the log later knows."""


class CatalogError(ArchiveError):
    """A catalog of Iceberg did not answer as it should; what is published can be seen there."""


class ContentionError(ArchiveError):
    """Other writers were first, time and again; nothing was written."""
