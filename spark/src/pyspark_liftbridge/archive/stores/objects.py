"""Objects in S3 and compatible stores, in GCS and in Azure, by obstore's conditional put."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from pyspark_liftbridge.archive.errors import DamagedError, StoreError, UnsupportedStoreError
from pyspark_liftbridge.archive.stores.found import Found

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")

# Options of the connection, for any kind of store. obstore expects them separately from other
# options, and panics otherwise.
_CONNECTION: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
_PREFIXES: Final = re.compile(r"^(?:aws|google|azure)_")
_ERROR: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")

_PART_BYTES: Final = 1 << 20
"""Minimum part of an object to request: extra bytes cost less than another call."""

# obstore raises some failures as Python's built-in errors.
_FAILURES: Final = (BaseError, OSError, ValueError)


def open_objects(uri: str, options: Mapping[str, str]) -> "Objects":
    """Open the bucket or container at an address.

    Raises:
        UnsupportedStoreError: The address or options are invalid for that store.
    """
    plain = {_PREFIXES.sub("", name.lower()): value for name, value in options.items()}
    connection = {name: value for name, value in plain.items() if name in _CONNECTION}
    others = {name: value for name, value in plain.items() if name not in _CONNECTION}
    try:
        # Names differ by the kind of store; obstore refuses unknown names, and parses all values.
        store = from_url(  # type: ignore[call-overload]  # texts, of any kind of store
            uri, config=others, client_options=connection
        )
    except UnknownConfigurationKeyError as error:
        raise UnsupportedStoreError(
            f"archive address {uri!r}: unknown option among {', '.join(options)} "
            f"({_in_short(error)})"
        ) from error
    except _FAILURES as error:
        raise UnsupportedStoreError(f"archive address {uri!r}: {_in_short(error)}") from error
    return Objects(store, uri)


class Objects:
    """A `Store` backed by a store of obstore."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        try:
            # In one piece: a multipart put has no condition.
            obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except _FAILURES as error:
            raise self._failed("written", path, error) from error
        return True

    def replace(self, path: str, data: bytes) -> None:
        """See `Store`."""
        try:
            obstore.put(self._store, path, data, use_multipart=False)
        except _FAILURES as error:
            raise self._failed("written", path, error) from error

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        try:
            result = obstore.get(self._store, path)
            size = result.meta["size"]
            data = bytes(result.bytes()) if size <= bytes_max else b""
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("read", path, error) from error
        if size > bytes_max:
            raise DamagedError(
                f"{self._name}/{path}: {size} bytes, more than the maximum of {bytes_max}"
            )
        return data

    def open(self, path: str) -> BinaryIO | None:
        """See `Store`."""
        try:
            size = obstore.head(self._store, path)["size"]
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise self._failed("read", path, error) from error
        return io.BufferedReader(_Parts(self, path, size), _PART_BYTES)

    def part(self, path: str, start: int, end: int) -> bytes:
        """Read bytes of an object.

        Args:
            path: Path of the object.
            start: First byte.
            end: First byte not to read; more than `start`.
        """
        try:
            return bytes(obstore.get_range(self._store, path, start=start, end=end))
        except _FAILURES as error:
            raise self._failed("read", path, error) from error

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """See `Store`."""
        try:
            pages = obstore.list(self._store, prefix or None, offset=after or None)
            return sorted(
                Found(one["path"], one["size"], int(one["last_modified"].timestamp() * 1_000))
                for page in pages
                for one in page
            )
        except _FAILURES as error:
            raise self._failed("listed", prefix, error) from error

    def delete(self, path: str) -> None:
        """See `Store`."""
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise self._failed("removed", path, error) from error

    def _failed(self, done: str, path: str, error: Exception) -> StoreError:
        return StoreError(f"{self._name}/{path}: cannot be {done} ({_in_short(error)})")


def _in_short(error: Exception) -> str:
    """Shorten obstore's message: without the values that it parsed and the store's XML."""
    text = str(error).partition("Debug source:")[0]
    match = _ERROR.search(text)
    if match is not None:
        text = f"{text[: text.find('<')]}{match[1]}: {match[2]}"
    return " ".join(text.split())


class _Parts(io.RawIOBase):
    """An object as a file that is read in parts."""

    def __init__(self, objects: Objects, path: str, size: int) -> None:
        self._objects = objects
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        target = memoryview(buffer).cast("B")
        end = min(self._at + len(target), self._size)
        if end <= self._at:
            return 0
        data = self._objects.part(self._path, self._at, end)
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
