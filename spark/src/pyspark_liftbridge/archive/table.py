"""The table of a stream: found below the root of an archive, or made there.

    <root>/<stream>/         the stream that was archived there first
    <root>/<stream>@<id>/    one of the same name that was made later, by its id

The id in the table decides which is which, not the name.
"""

import re
from typing import Final, NamedTuple

from pyspark_liftbridge.archive import delta, log
from pyspark_liftbridge.archive.errors import (
    ConflictError,
    OtherStreamError,
    StoreError,
    UnknownOutcomeError,
)
from pyspark_liftbridge.archive.store import Below, Store
from pyspark_liftbridge.plan.options import OptionError

_TRIES_MAX: Final = 5


class Table(NamedTuple):
    """A table that is there.

    Attributes:
        root: Its folder below the root of the archive; ends with `/`.
        store: The same as a store of its own.
        snapshot: What its log says.
    """

    root: str
    store: Store
    snapshot: log.Snapshot


class Making(NamedTuple):
    """What a new table is given.

    Attributes:
        table_id: A random UUID.
        now_ms: Current time in milliseconds since 1970.
    """

    table_id: str
    now_ms: int


def folder_of(stream: str) -> str:
    """Folder of a stream's table: its name, with what is not usual in paths as `,` and two digits.

    No stream has a comma in its name, so names stay apart. `.` and `..` would be other folders.
    """
    return re.sub(r"\A\.{1,2}\Z|[^A-Za-z0-9._-]", _escaped, stream)


def parts_named(name: str) -> tuple[str, str]:
    """Name of the stream of a table, and `@<id>` if the stream was created again.

    What stands after the last `@` is an id when it is a number; names may hold an `@` as well.
    A name that ends like that itself is given as its folder is: `x,409` is the stream `x@9`.

    Raises:
        OptionError: No name is left.
    """
    stream, at, stream_id = name.rpartition("@")
    if not (at and stream_id.isascii() and stream_id.isdecimal()):
        stream, suffix = name, ""
    else:
        suffix = f"{at}{stream_id}"
    if not stream:
        raise OptionError(f"{name!r} is not a stream: give its name, or <name>@<id>")
    plain = re.sub(rb",([0-9A-F]{2})", lambda one: bytes.fromhex(one[1].decode()), stream.encode())
    return plain.decode(errors="replace"), suffix


def folder_named(name: str) -> str:
    """Folder of the table of a stream, or of `<stream>@<id>` for one that was created again.

    Raises:
        OptionError: No name is left.
    """
    stream, suffix = parts_named(name)
    return f"{folder_of(stream)}{suffix}/"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f",{byte:02X}" for byte in found[0].encode())


def find_table(store: Store, stream: str, stream_id: int) -> Table | None:
    """The table of a stream, `None` if there is none.

    Args:
        store: The root of the archive.
        stream: Name of the stream.
        stream_id: Its id.

    Raises:
        OtherStreamError: A table of another stream is in its place.
        DamagedError, UnsupportedTableError, StoreError: As for `log.load`.
    """
    found = _look(store, stream, stream_id)
    return None if found.snapshot.metadata is None else found


def open_table(store: Store, stream: str, stream_id: int, making: Making) -> Table:
    """The table of a stream, created if there is none.

    Args:
        store: The root of the archive.
        stream: Name of the stream.
        stream_id: Its id.
        making: What a new one is given.

    Raises:
        OtherStreamError, DamagedError, UnsupportedTableError: As for `find_table`.
        UnknownOutcomeError: The store does not answer; another try does no harm.
    """
    failure: StoreError | None = None
    for _ in range(_TRIES_MAX):
        try:
            found = _look(store, stream, stream_id)
            if found.snapshot.metadata is not None:
                return found
            actions = _first_entry(stream, stream_id, making)
            return found._replace(snapshot=log.append(found.store, found.snapshot, actions))
        except ConflictError:
            continue  # made by another, or by the try before
        except StoreError as error:
            failure = error
    raise UnknownOutcomeError(
        f"the table of stream {stream} (id {stream_id}) could not be created in {_TRIES_MAX} "
        f"attempts ({failure}); try again"
    )


def _look(store: Store, stream: str, stream_id: int) -> Table:
    """The table of a stream, or the place where it is to be made."""
    name = folder_of(stream)
    first = _at(store, f"{name}/")
    if _is_of(first, stream, stream_id):
        return first
    later = _at(store, f"{name}@{stream_id}/")
    if _is_of(later, stream, stream_id):
        return later
    metadata = later.snapshot.metadata
    assert metadata is not None, "an empty place is anybody's"
    raise OtherStreamError(
        f"{later.root} holds stream {metadata.stream} of id {metadata.stream_id}, not {stream} of "
        f"id {stream_id}: its name was given by hand; use another root"
    )


def _at(store: Store, root: str) -> Table:
    folder = Below(store, root)
    return Table(root, folder, log.load(folder))


def _is_of(table: Table, stream: str, stream_id: int) -> bool:
    """Whether a table is of a stream, or is not there yet."""
    metadata = table.snapshot.metadata
    return metadata is None or (metadata.stream, metadata.stream_id) == (stream, stream_id)


def _first_entry(stream: str, stream_id: int, making: Making) -> list[delta.Action]:
    configuration = {
        delta.STREAM: stream,
        delta.STREAM_ID: str(stream_id),
        # Other writers leave entries in place too: what was lost stands nowhere else.
        "delta.enableExpiredLogCleanup": "false",
        "delta.checkpointInterval": "100",
    }
    return [
        delta.CommitInfo(making.now_ms, "CREATE TABLE", delta.ENGINE, None),
        delta.Versions(),
        delta.Metadata(making.table_id, configuration, making.now_ms),
    ]
