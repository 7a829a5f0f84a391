"""Progress of a query, as Spark stores it: JSON text that is equal if offsets are equal.

    {"streams":{"orders":{"h":{"0":[4,6]},"id":17,"p":{"0":123}}},"v":1}

The number is the next offset to read. The id distinguishes a recreated stream from the stream that
was read before. `h` has the history of a partition that was read, and the leader epoch of the
record before that offset; it is absent if nothing was read, or brokers do not report it.
"""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyspark_liftbridge.plan import values

VERSION: Final = 1


class OffsetsError(ValueError):
    """A text was not written by this source."""


class PartitionId(NamedTuple):
    """A partition by name, the key of ranges and offsets."""

    stream: str
    number: int


class History(NamedTuple):
    """History and leader epoch of the record before an offset.

    Attributes:
        unclean_epoch: History of the partition.
        leader_epoch: Leader epoch of the record; 0 if unknown.
    """

    unclean_epoch: int
    leader_epoch: int


class StreamOffsets(NamedTuple):
    """Next offsets of one stream.

    Attributes:
        stream_id: Id of the stream, 0 if the server reports none.
        next_offsets: Next offsets by partition.
        histories: Histories by partition, if records were read and brokers report histories.
    """

    stream_id: int
    next_offsets: Mapping[int, int]
    histories: Mapping[int, History] = MappingProxyType({})


class Offsets(NamedTuple):
    """Next offsets of all partitions of a query, by stream."""

    streams: Mapping[str, StreamOffsets]

    def partitions(self) -> Iterator[tuple[PartitionId, int]]:
        """Iterate over partitions with their next offset, in order."""
        for name, stream in sorted(self.streams.items()):
            for number, offset in sorted(stream.next_offsets.items()):
                yield PartitionId(name, number), offset

    def of(self, partition: PartitionId) -> int | None:
        """Return the next offset of a partition, `None` if it is unknown."""
        stream = self.streams.get(partition.stream)
        return None if stream is None else stream.next_offsets.get(partition.number)

    def with_offsets(self, offsets: Mapping[PartitionId, int]) -> "Offsets":
        """Return a copy with other next offsets of known partitions."""
        return Offsets(
            {
                name: stream._replace(
                    next_offsets={
                        number: offsets.get(PartitionId(name, number), offset)
                        for number, offset in stream.next_offsets.items()
                    }
                )
                for name, stream in self.streams.items()
            }
        )

    def not_before(self, former: "Offsets") -> "Offsets":
        """Return a copy in which no offset is below that of `former` in the same stream.

        A new leader may briefly know a lower high watermark than the previous one reported.
        """
        kept: dict[PartitionId, int] = {}
        for partition, offset in self.partitions():
            before = former.of(partition)
            if before is not None and self._is_same(former, partition.stream):
                kept[partition] = max(before, offset)
        return self.with_offsets(kept)

    def _is_same(self, other: "Offsets", stream: str) -> bool:
        return self.streams[stream].stream_id == other.streams[stream].stream_id

    def as_json(self) -> dict[str, Any]:
        """Return the form that Spark stores, keys in order."""
        return {
            "streams": {name: _as_json(one) for name, one in sorted(self.streams.items())},
            "v": VERSION,
        }


def _as_json(stream: StreamOffsets) -> dict[str, Any]:
    histories = {str(one): list(at) for one, at in sorted(stream.histories.items())}
    return {
        **({"h": histories} if histories else {}),
        "id": stream.stream_id,
        "p": {str(one): at for one, at in sorted(stream.next_offsets.items())},
    }


def parse(found: object) -> Offsets:
    """Parse the result of `as_json`.

    Args:
        found: Value that Spark returns.

    Raises:
        OffsetsError: The value is not such a result, or of a later version.
    """
    if not isinstance(found, dict) or found.get("v") != VERSION:
        version = found.get("v") if isinstance(found, dict) else None
        raise OffsetsError(
            f"offsets of version {version!r}: this package reads version {VERSION}; "
            "the checkpoint is from another source or a later package"
        )
    try:
        return Offsets(
            {name: _stream(name, one) for name, one in _mapping(found["streams"]).items()}
        )
    except (KeyError, TypeError, ValueError) as error:
        text = json.dumps(found, default=str)[:200]
        raise OffsetsError(f"offsets are damaged: {text}") from error


def _stream(name: str, found: object) -> StreamOffsets:
    stream = _mapping(found)
    by_number = {str(key): offset for key, offset in _mapping(stream["p"]).items()}
    checked = values.numbers(0)(json.dumps({name: by_number}))
    stream_id = stream["id"]
    if not isinstance(stream_id, int) or isinstance(stream_id, bool) or stream_id < 0:
        raise ValueError(stream_id)
    return StreamOffsets(stream_id, checked[name], dict(_histories(stream, checked[name])))


def _histories(
    stream: Mapping[str, Any], known: Mapping[int, int]
) -> Iterator[tuple[int, History]]:
    numbers = {str(number): number for number in known}
    for name, found in _mapping(stream.get("h", {})).items():
        history = History(*found)
        if not all(type(epoch) is int and epoch >= 0 for epoch in history):
            raise ValueError(found)
        yield numbers[name], history


def _mapping(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(found)
    return found
