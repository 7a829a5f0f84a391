"""Errors of an archive, divided by the remedy of the caller."""


class ArchiveError(Exception):
    """Base of all errors of an archive.

    The text names value, rule, place and remedy in one line.
    """

    def __str__(self) -> str:
        """Return the text in one line; quoted foreign errors may have several lines."""
        return " ".join(super().__str__().splitlines())


class UnsupportedStoreError(ArchiveError):
    """The store cannot hold an archive: its scheme is unknown, or two writers can both win."""


class StoreError(ArchiveError):
    """A store did not answer properly; the request may have been executed or not."""


class DamagedError(ArchiveError):
    """Data in the archive violates its format."""


class FileGoneError(ArchiveError):
    """A file that a snapshot names no longer exists; a newer snapshot names others."""


class UnsupportedTableError(ArchiveError):
    """A valid table that this package must not read or write."""


class OtherStreamError(ArchiveError):
    """A table holds the records of another stream."""


class ClaimError(ArchiveError):
    """A claim or rewrite to commit is inconsistent; nothing was written."""


class RecordsError(ArchiveError):
    """Records to be written do not belong to their range."""


class ConflictError(ArchiveError):
    """Another writer has taken the number of the log entry.

    Attributes:
        version: The number.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"entry {version} is there already: read it, and plan upon it")
        self.version = version


class UnknownOutcomeError(ArchiveError):
    """It is unknown whether an entry was written; a later read of the log shows it."""


class CatalogError(ArchiveError):
    """An Iceberg catalog did not answer properly; the catalog shows what is published."""


class ContentionError(ArchiveError):
    """Other writers won every attempt; nothing was written."""
