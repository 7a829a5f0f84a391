"""Subjects of all streams, brought up to date with the metadata."""

from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.model.ids import StreamId
from liftbridge_broker.wire.subjects import SubjectTable


class StreamSubjects:
    """Subjects of all streams, to tell whether a stream would store a message.

    Most replies go to inboxes, which no stream stores, so the first question builds the table
    (some 5 us for each stream), and each question brings it up to date.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._table: SubjectTable[StreamId] = SubjectTable()
        self._known: dict[StreamId, str] = {}

    def are_stored(self, subject: str, streams: dict[StreamId, StreamState]) -> bool:
        """Whether messages on a concrete subject are stored.

        Args:
            subject: The subject.
            streams: All streams by id, in order of creation.
        """
        self._update(streams)
        if self._table.lookup(subject):
            return True
        parent, _, last = subject.rpartition(".")
        if not parent or not (last.isascii() and last.isdigit()) or last.startswith("0"):
            return False
        return any(int(last) < len(streams[one].partitions) for one in self._table.lookup(parent))

    def _update(self, streams: dict[StreamId, StreamState]) -> None:
        known = self._known
        for stream_id in reversed(streams):
            if stream_id in known:
                break  # ids only grow: all before are known too
            known[stream_id] = streams[stream_id].subject
            self._table.add(known[stream_id], stream_id)
        if len(known) > len(streams):
            for gone in [one for one in known if one not in streams]:
                self._table.remove(known.pop(gone), gone)
