"""The port to the store of an archive: objects by path, each created by exactly one writer.

The archive relies only on `create` having exactly one winner. `open_store` tests that once and
refuses a store that violates it.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

from pyspark_liftbridge.archive.errors import UnsupportedStoreError
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.stores.found import Found
from pyspark_liftbridge.archive.stores.objects import SCHEMES, open_objects

_PROBE: Final = "_probe/"


class Store(Protocol):
    """Objects by path. A failed or unanswered request raises `StoreError`."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that does not exist yet, atomically and durably.

        Returns:
            Whether it was written; `False` if the path is taken, possibly by an earlier attempt of
            the same writer whose answer was lost.
        """

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """Read the contents of an object, `None` if there is none.

        Raises:
            DamagedError: The object is larger than `bytes_max`.
        """

    def open(self, path: str) -> BinaryIO | None:
        """Open an object to read parts of it, `None` if there is none; the caller closes it."""

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """List objects below a folder in the order of their paths.

        Args:
            prefix: Empty, or ends with `/`.
            after: List only paths after this path.
        """

    def delete(self, path: str) -> None:
        """Remove an object; no-op if it does not exist."""


@dataclass(frozen=True)
class Below:
    """A folder of a store, as a store.

    Attributes:
        store: The whole store.
        prefix: Path of the folder; ends with `/`.
    """

    store: Store
    prefix: str

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        return self.store.create(self.prefix + path, data)

    def replace(self, path: str, data: bytes) -> None:
        """See `Store`."""
        self.store.replace(self.prefix + path, data)

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        return self.store.read(self.prefix + path, bytes_max=bytes_max)

    def open(self, path: str) -> BinaryIO | None:
        """See `Store`."""
        return self.store.open(self.prefix + path)

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """See `Store`."""
        start = self.prefix + after if after else ""
        cut = len(self.prefix)
        files = self.store.listing(self.prefix + prefix, after=start)
        return [file._replace(path=file.path[cut:]) for file in files]

    def delete(self, path: str) -> None:
        """See `Store`."""
        self.store.delete(self.prefix + path)


def open_store(uri: str, options: Mapping[str, str] | None = None) -> Store:
    """Open the store at an address, and test it once.

    Args:
        uri: A path, or `file://`, `s3://`, `gs://`, `az://` and their aliases.
        options: Options of an object store, by obstore's names (`endpoint`, `region`,
            `allow_http`); the usual variables of the environment also apply. Empty for a folder.

    Raises:
        UnsupportedStoreError: The scheme is unknown, options are wrong, or two writers can both
            win.
        StoreError: The store does not answer.
    """
    store = opened(uri, options or {})
    check_store(store, uri)
    return store


def opened(uri: str, options: Mapping[str, str]) -> Store:
    """Open the store at an address that was tested before, as tasks do.

    Args:
        uri: As for `open_store`.
        options: As for `open_store`.

    Raises:
        UnsupportedStoreError: The scheme is unknown, or options are wrong.
    """
    try:
        parts = urlsplit(uri if "://" in uri else "")
    except ValueError as error:
        raise UnsupportedStoreError(f"archive address {uri!r}: {error}") from error
    scheme = parts.scheme
    if scheme in SCHEMES:
        return open_objects(uri, options)
    if scheme not in ("", "file") or not uri:
        raise UnsupportedStoreError(
            f"archive address {uri!r}: the scheme {scheme!r} is not one of "
            f"file, {', '.join(SCHEMES)}; give one of these, or a path"
        )
    if options:
        raise UnsupportedStoreError(
            f"archive address {uri!r}: a folder takes no options, but {', '.join(options)} is set"
        )
    if parts.netloc not in ("", "localhost"):
        raise UnsupportedStoreError(
            f"archive address {uri!r} names the host {parts.netloc!r}; "
            "a folder on this machine needs three slashes: file:///archive"
        )
    return LocalFolder(unquote(parts.path) if scheme else uri)


def check_store(store: Store, uri: str) -> None:
    """Check that the second write of one object is refused.

    Raises:
        UnsupportedStoreError: The second write was not refused.
        StoreError: The store does not answer.
    """
    path = f"{_PROBE}{secrets.token_hex(8)}"
    first = store.create(path, b"first")
    second = store.create(path, b"second")
    kept = store.read(path, bytes_max=16)
    store.delete(path)
    if second or kept != b"first":  # guard Archive.store
        problem = "was overwritten" if second else f"reads {kept!r}"
        raise UnsupportedStoreError(
            f"{uri}: an existing object {problem} when it was created again "
            f"(first answer {first}, second {second}). An archive needs a store that refuses "
            "this (If-None-Match on S3): use another store, or a newer version of this one"
        )
