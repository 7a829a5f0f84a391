"""State that the records of a Raft log produce: entries, hard state, configurations.

Writing records and reading them again take the same steps, so that a restart restores the same
state. A record that does not follow from the records before is corruption: the chain of checksums
holds, so no crash explains it.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, HardState, Peer
from liftbridge_broker.raft import configuration as configurations
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.types import BadConfigurationError
from liftbridge_broker.storage.raft_log.records import ENTRY_OF_KIND, Record, RecordKind

_BASE: Final = Struct(">QQHH")
_TEXT_BYTES_MAX: Final = 0xFFFF


def encode_vote(vote: Peer | None) -> bytes:
    """Encode a vote: broker and data directory, separated by a zero byte; empty for no vote."""
    return b"" if vote is None else f"{vote.broker}\0{vote.data_dir_id}".encode()


def decode_vote(data: bytes) -> Peer | None:
    """Decode a vote; inverse of `encode_vote`.

    Raises:
        CorruptionError: The bytes are not a vote.
    """
    if not data:
        return None
    broker, separator, data_dir_id = data.partition(b"\0")
    try:
        vote = Peer(BrokerId(broker.decode()), data_dir_id.decode())
    except UnicodeDecodeError as error:
        raise CorruptionError("metadata log: a vote that is not UTF-8") from error
    if not separator:
        raise CorruptionError("metadata log: a vote without a data directory")
    return vote


def encode_configuration(configuration: Configuration) -> bytes:
    """Encode a configuration as in an entry; empty for the empty configuration."""
    return b"" if configuration == EMPTY else configurations.encode(configuration)


def decode_configuration(data: bytes) -> Configuration:
    """Decode a configuration; inverse of `encode_configuration`.

    Raises:
        CorruptionError: The bytes are not a configuration.
    """
    try:
        return configurations.decode(data) if data else EMPTY
    except BadConfigurationError as error:
        raise CorruptionError(f"metadata log: {error}") from error


class LogState:
    """Entries after a base, with the hard state that must survive a crash.

    Attributes:
        base_index: Index before the first entry.
        base_term: Term of that index.
        base_configuration: Configuration in force at that index.
        entries: All entries after the base, contiguous.
        hard_state: Term, vote and commit.
    """

    def __init__(self, base_index: int, base_term: int, configuration: Configuration) -> None:
        """Start without entries."""
        self.base_index = base_index
        self.base_term = base_term
        self.base_configuration = configuration
        self.entries: list[Entry] = []
        self.hard_state = HardState(0, None, 0)

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the base."""
        return self.base_index + len(self.entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, or of the base."""
        return self.entries[-1].term if self.entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """Return the term at an index, `None` if unknown."""
        place = index - self.base_index
        if place == 0:
            return self.base_term
        return self.entries[place - 1].term if 0 < place <= len(self.entries) else None

    def holds(self, index: int, term: int) -> bool:
        """Return whether the log continues a snapshot, or can be shortened to continue it."""
        return index < self.base_index or self.term_at(index) == term

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration in force at an index between base and end."""
        assert self.base_index <= index <= self.last_index
        for place in range(index - self.base_index - 1, -1, -1):
            if self.entries[place].kind is EntryKind.CONFIG:
                return decode_configuration(self.entries[place].data)
        return self.base_configuration

    def cut(self, last_index: int) -> None:
        """Drop the entries after an index."""
        assert self.base_index <= last_index
        del self.entries[last_index - self.base_index :]

    def drop_until(self, index: int) -> None:
        """Make an index the base; drop the entries up to it."""
        if index <= self.base_index:
            return
        self.base_configuration = self.configuration_at(index)
        term = self.term_at(index)
        assert term is not None
        del self.entries[: index - self.base_index]
        self.base_index, self.base_term = index, term

    # -- records ------------------------------------------------------------------------------

    def base_payload(self) -> bytes:
        """Encode the payload of a base.

        U64 term and commit, u16 lengths, vote, configuration at the end.
        """
        vote = encode_vote(self.hard_state.vote)
        configuration = encode_configuration(self.configuration_at(self.last_index))
        assert max(len(vote), len(configuration)) <= _TEXT_BYTES_MAX
        head = _BASE.pack(
            self.hard_state.term, self.hard_state.commit, len(vote), len(configuration)
        )
        return head + vote + configuration

    @classmethod
    def from_base(cls, record: Record) -> "LogState":
        """Create the state at the start of a file from its base.

        Raises:
            CorruptionError: The record is not a base.
        """
        hard_state, configuration = _decode_base(record.payload)
        state = cls(record.entry_index, record.term, configuration)
        state.hard_state = hard_state
        return state

    def apply(self, record: Record, path: str) -> None:
        """Apply the next record.

        Raises:
            CorruptionError: The record does not follow from the records before it.
        """
        match record.kind:
            case RecordKind.HARD_STATE:
                vote = decode_vote(record.payload)
                self.hard_state = HardState(record.term, vote, record.entry_index)
            case RecordKind.CUT:
                self._apply_cut(record, path)
            case RecordKind.BASE:
                if (record.entry_index, record.term) != (self.last_index, self.last_term):
                    raise _misplaced(record, path)
                self.hard_state, _ = _decode_base(record.payload)
            case RecordKind.RESET:
                self.hard_state, self.base_configuration = _decode_base(record.payload)
                self.base_index, self.base_term = record.entry_index, record.term
                self.entries.clear()
            case RecordKind.COMMAND | RecordKind.NOOP | RecordKind.CONFIG:
                if record.entry_index != self.last_index + 1 or record.term < self.last_term:
                    raise _misplaced(record, path)
                kind = ENTRY_OF_KIND[record.kind]
                self.entries.append(Entry(record.entry_index, record.term, kind, record.payload))

    def _apply_cut(self, record: Record, path: str) -> None:
        if not self.hard_state.commit <= record.entry_index < self.last_index:
            raise _misplaced(record, path)
        if record.entry_index >= self.base_index:
            if self.term_at(record.entry_index) != record.term:
                raise _misplaced(record, path)
            self.cut(record.entry_index)
            return
        # Entries from before this file are dropped, since a snapshot covers them.
        self.entries.clear()
        self.base_index, self.base_term = record.entry_index, record.term
        self.base_configuration = decode_configuration(record.payload)


def _decode_base(data: bytes) -> tuple[HardState, Configuration]:
    if len(data) < _BASE.size:
        raise CorruptionError("metadata log: a base that is cut short")
    term, commit, vote_size, size = _BASE.unpack_from(data)
    vote_end = _BASE.size + vote_size
    if vote_end + size != len(data):
        raise CorruptionError("metadata log: a base of another length")
    vote = decode_vote(data[_BASE.size : vote_end])
    return HardState(term, vote, commit), decode_configuration(data[vote_end:])


def _misplaced(record: Record, path: str) -> CorruptionError:
    kind = record.kind.name.lower()
    return CorruptionError(
        f"metadata log: {kind} of index {record.entry_index} and term {record.term} "
        "is out of place",
        path=path,
        position=record.position,
    )
