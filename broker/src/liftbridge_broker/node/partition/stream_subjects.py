"""Subjects of all streams, kept up to date with the metadata."""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.model.ids import StreamId
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.node.scheduling.chores import Chores, Steps

ADD_WEIGHT: Final = 8
"""Weight of adding a stream, for `Chores`."""


class StreamSubjects:
    """Subjects of all streams, to tell whether a stream would store a message.

    Invariant: `_known` holds the oldest streams, by id.

    Args:
        streams: Returns all streams by id, in order of creation.
        chores: Builds the table in steps.
    """

    def __init__(self, streams: Callable[[], dict[StreamId, StreamState]], chores: Chores) -> None:
        """Start empty: most brokers never need the table."""
        self._streams = streams
        self._chores = chores
        self._table: SubjectTable[StreamId] = SubjectTable()
        self._known: dict[StreamId, str] = {}
        self._is_prepared = False

    def prepare(self) -> None:
        """Start to build the table before the first lookup; no-op once started."""
        if not self._is_prepared:
            self._is_prepared = True
            self._chores.begin(self._build())

    def are_stored(self, subject: str) -> bool:
        """Return whether a stream stores messages on a concrete subject."""
        streams = self._streams()
        self._update(streams)
        if self._table.lookup(subject):
            return True
        parent, _, last = subject.rpartition(".")
        if not parent or not (last.isascii() and last.isdigit()) or last.startswith("0"):
            return False
        return any(int(last) < len(streams[one].partitions) for one in self._table.lookup(parent))

    def _build(self) -> Steps:
        for stream_id in list(self._streams()):
            stream = self._streams().get(stream_id)
            if stream is not None and stream_id not in self._known:
                self._add(stream_id, stream)
                yield ADD_WEIGHT

    def _add(self, stream_id: StreamId, stream: StreamState) -> None:
        self._known[stream_id] = stream.subject
        self._table.add(stream.subject, stream_id)

    def _update(self, streams: dict[StreamId, StreamState]) -> None:
        known = self._known
        missing: list[StreamId] = []
        for stream_id in reversed(streams):
            if stream_id in known:
                break
            missing.append(stream_id)
        for stream_id in reversed(missing):
            self._add(stream_id, streams[stream_id])
        if len(known) > len(streams):
            for gone in [one for one in known if one not in streams]:
                self._table.remove(known.pop(gone), gone)
