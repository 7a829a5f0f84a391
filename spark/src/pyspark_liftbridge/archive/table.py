"""The table of a stream: found below the root of an archive, or created there.

    <root>/<stream>/         the stream that was archived there first
    <root>/<stream>@<id>/    one of the same name that was created later, by its id

The id in the table identifies the stream, not the folder's name.
"""

import re
from typing import Final, NamedTuple

from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import (
    ConflictError,
    OtherStreamError,
    StoreError,
    UnknownOutcomeError,
)
from pyspark_liftbridge.archive.stores.store import Below, Store
from pyspark_liftbridge.plan.options import OptionError

_TRIES_MAX: Final = 5


class Table(NamedTuple):
    """An existing table, or the place for a new one.

    Attributes:
        root: Folder of the table below the root of the archive; ends with `/`.
        store: That folder, as a store.
        snapshot: Latest snapshot of its log.
    """

    root: str
    store: Store
    snapshot: log.Snapshot


class Making(NamedTuple):
    """Values for a new table.

    Attributes:
        table_id: Random UUID.
        now_ms: Current time in milliseconds since 1970.
    """

    table_id: str
    now_ms: int


def folder_of(stream: str) -> str:
    """Return the folder of a stream's table: its name, unusual bytes as `,` and two hex digits.

    No stream has a comma in its name, so folders stay distinct. `.` and `..` would be other
    folders.
    """
    return re.sub(r"\A\.{1,2}\Z|[^A-Za-z0-9._-]", _escaped, stream)


def parts_named(name: str) -> tuple[str, str]:
    """Split a table's name into the stream's name, and `@<id>` if the stream was recreated.

    A number after the last `@` is an id; names may contain an `@` as well. For a stream whose own
    name ends like this, use its folder: `x,409` is the stream `x@9`.

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
    """Return the folder of the table of a stream, or of `<stream>@<id>` for a recreated stream.

    Raises:
        OptionError: No name is left.
    """
    stream, suffix = parts_named(name)
    return f"{folder_of(stream)}{suffix}/"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f",{byte:02X}" for byte in found[0].encode())


def find_table(store: Store, stream: str, stream_id: int) -> Table | None:
    """Find the table of a stream, `None` if there is none.

    Args:
        store: The root of the archive.
        stream: Name of the stream.
        stream_id: Id of the stream.

    Raises:
        OtherStreamError: A table of another stream is in its place.
        DamagedError, UnsupportedTableError, StoreError: As for `log.load`.
    """
    table = _look(store, stream, stream_id)
    return None if table.snapshot.metadata is None else table


def open_table(store: Store, stream: str, stream_id: int, making: Making) -> Table:
    """Open the table of a stream; create it if there is none.

    Args:
        store: The root of the archive.
        stream: Name of the stream.
        stream_id: Id of the stream.
        making: Values for a new table.

    Raises:
        OtherStreamError, DamagedError, UnsupportedTableError: As for `find_table`.
        UnknownOutcomeError: The store does not answer; a retry does no harm.
    """
    failure: StoreError | None = None
    for _ in range(_TRIES_MAX):
        try:
            table = _look(store, stream, stream_id)
            if table.snapshot.metadata is not None:
                return table
            actions = _first_entry(stream, stream_id, making)
            return table._replace(snapshot=log.append(table.store, table.snapshot, actions))
        except ConflictError:
            continue  # created by another writer, or by the previous attempt
        except StoreError as error:
            failure = error
    raise UnknownOutcomeError(
        f"the table of stream {stream} (id {stream_id}) could not be created in {_TRIES_MAX} "
        f"attempts ({failure}); try again"
    )


def _look(store: Store, stream: str, stream_id: int) -> Table:
    """Find the table of a stream, or the place to create it."""
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
    """Return whether a table is of a stream, or does not exist yet."""
    metadata = table.snapshot.metadata
    return metadata is None or (metadata.stream, metadata.stream_id) == (stream, stream_id)


def _first_entry(stream: str, stream_id: int, making: Making) -> list[delta.Action]:
    configuration = {
        delta.STREAM: stream,
        delta.STREAM_ID: str(stream_id),
        # Other writers must also keep entries, because only entries record lost offsets.
        "delta.enableExpiredLogCleanup": "false",
        "delta.checkpointInterval": "100",
    }
    return [
        delta.CommitInfo(making.now_ms, "CREATE TABLE", delta.ENGINE, None),
        delta.Versions(),
        delta.Metadata(making.table_id, configuration, making.now_ms),
    ]
