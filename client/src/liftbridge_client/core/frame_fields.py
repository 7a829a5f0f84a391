"""Fields of many frames, decoded together: numpy takes each step for all frames.

A frame holds a serialised `proto.Message` in canonical form: fields in ascending order, each once,
defaults left out, varints in their shortest form. So callers read the fields in this order, and a
field that is not found at its place is absent.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from liftbridge_client.errors import ServerError

Positions = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

TAG_OFFSET: Final = 0x08
TAG_KEY: Final = 0x12
TAG_VALUE: Final = 0x1A
TAG_TIMESTAMP: Final = 0x20
TAG_STREAM: Final = 0x2A
TAG_PARTITION: Final = 0x30
TAG_SUBJECT: Final = 0x3A
TAG_REPLY_SUBJECT: Final = 0x42
TAG_HEADER: Final = 0x4A
TAG_ENTRY_KEY: Final = 0x0A
TAG_ENTRY_VALUE: Final = 0x12

PADDING: Final = 16
"""Zeros after the frames, so that a word can be read at the last byte."""

_ONE: Final = np.uint64(1)
_SIGNS: Final = np.uint64(0x8080808080808080)
_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_BYTES: Final = np.uint64(0x0101010101010101)
_TOP: Final = np.uint64(56)
_FOLDS: Final = tuple(
    (np.uint64(stays), np.uint64(moves), np.uint64(shift))
    for stays, moves, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
"""Steps that join groups of 7 bits: pairs of bytes, then of two bytes, then of four bytes."""


class Chunks(NamedTuple):
    """Positions of one field in all frames, from `starts` to `ends`; equal if it is absent."""

    starts: Positions
    ends: Positions


class Entries(NamedTuple):
    """Header entries of one rank, for example the third entry of every frame that has three."""

    rows: Rows
    keys: Chunks
    values: Chunks


class FrameFields:
    """Reads the fields one after another, each for all frames.

    Args:
        data: The frames, and `PADDING` zeros after the last.
        starts: Start of each message, after the prefix of its frame.
        ends: End of each message.
    """

    def __init__(self, data: bytes, starts: Positions, ends: Positions) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._at = starts.copy()
        self._ends = ends

    def numbers(self, tag: int) -> npt.NDArray[np.int64]:
        """Read a varint field; 0 where it is absent.

        Raises:
            ServerError: A varint exceeds its frame.
        """
        rows = self._with(tag)
        if rows is None:
            found, sizes = self._varints(self._at + 1)
            self._at += sizes + 1
        else:
            found = np.zeros(len(self._at), np.int64)
            if len(rows):
                found[rows], sizes = self._varints(self._at[rows] + 1)
                self._at[rows] += sizes + 1
        self._check()
        return found

    def chunks(self, tag: int) -> Chunks:
        """Read a field of bytes or text.

        Raises:
            ServerError: A length exceeds its frame.
        """
        rows = self._with(tag)
        if rows is None:
            starts, ends = self._chunks(self._at)
        else:
            starts, ends = self._at.copy(), self._at.copy()
            if len(rows):
                starts[rows], ends[rows] = self._chunks(self._at[rows])
        self._at = ends.copy()
        self._check()
        return Chunks(starts, ends)

    def headers(self) -> list[Entries]:
        """Read the header entries, those of rank 0 (the first of each frame) first.

        Raises:
            ServerError: An entry is not a key and a value.
        """
        entries: list[Entries] = []
        rows = np.arange(len(self._at))
        while len(rows := rows[self._bytes[self._at[rows]] == TAG_HEADER]):
            starts, ends = self._chunks(self._at[rows])
            self._at[rows] = ends
            self._check()
            keys = Chunks(*self._chunks(starts))
            is_key = self._bytes[starts] == TAG_ENTRY_KEY
            if not (is_key & (keys.ends < ends)).all():
                raise ServerError("a header of a record has no key or no value")
            values = Chunks(*self._chunks(keys.ends))
            is_value = self._bytes[keys.ends] == TAG_ENTRY_VALUE
            if not (is_value & (values.ends == ends)).all():
                raise ServerError("a header of a record is not a key and a value")
            entries.append(Entries(rows, keys, values))
        return entries

    def check_behind(self, tag: int) -> None:
        """Check that each next field has at least this tag, so that none was skipped.

        Raises:
            ServerError: A record has an unknown field.
        """
        if not ((self._bytes[self._at] >= tag) | (self._at == self._ends)).all():
            raise ServerError("a record has fields that this client does not know")

    def _with(self, tag: int) -> Rows | None:
        """Find the frames whose next field has a tag; `None` for all frames."""
        # A frame is followed by a zero or the magic of a batch, never a tag.
        is_there = self._bytes[self._at] == tag
        return None if is_there.all() else np.flatnonzero(is_there)

    def _chunks(self, at: Positions) -> tuple[Positions, Positions]:
        """Find the start and end of the field whose tag is at position `at` of its frame."""
        lengths, sizes = self._varints(at + 1)
        starts = at + sizes + 1
        if int(lengths.min()) < 0 or int(lengths.max()) > len(self._bytes):
            raise ServerError("a field of a record is longer than its message")
        return starts, np.minimum(starts + lengths, len(self._bytes) - PADDING)

    def _varints(self, at: Positions) -> tuple[npt.NDArray[np.int64], Positions]:
        """Decode varints; return the values and their sizes in bytes."""
        words = self._words[at]
        stops = ~words & _SIGNS
        # All bits up to the sign of the last byte; for a longer varint, the whole word.
        mask = stops ^ (stops - _ONE)
        sizes = (((mask & _BYTES) * _BYTES) >> _TOP).astype(np.int64)
        values = words & mask & _LOW_BITS
        for stays, moves, shift in _FOLDS:
            values = (values & stays) | ((values & moves) >> shift)
        is_long = stops == 0
        if is_long.any():
            rows = np.flatnonzero(is_long)
            ninth = self._bytes[at[rows] + 8].astype(np.uint64)
            tenth = self._bytes[at[rows] + 9].astype(np.uint64)
            goes_on = ninth >> np.uint64(7)
            values[rows] |= (ninth & np.uint64(0x7F)) << _TOP
            values[rows] |= (tenth & goes_on) << np.uint64(63)
            sizes[rows] = 9 + goes_on.astype(np.int64)
        return values.view(np.int64), sizes

    def _check(self) -> None:
        if (self._at > self._ends).any():
            raise ServerError("a field of a record is longer than its message")
