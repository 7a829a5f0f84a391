"""Group membership and its changes: one server at a time (Diss. 4.1).

Layout of a `CONFIG` entry: u8 version (1), u16 voters, u16 learners, big-endian, then each member
as u16 length and UTF-8 of the broker, u16 length and UTF-8 of the data directory id, both lists
sorted. The whole configuration is stored, never a difference.
"""

import struct
from itertools import pairwise
from struct import Struct
from typing import Final

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.raft.types import (
    AddLearner,
    BadConfigurationError,
    ConfigChange,
    ConfigChangeRefusedError,
    Promote,
    Remove,
)

EMPTY: Final = Configuration(())
_VERSION: Final = 1
_HEADER: Final = Struct(">BHH")
_LENGTH: Final = Struct(">H")
_TEXT_BYTES_MAX: Final = 0xFFFF


def encode(configuration: Configuration) -> bytes:
    """Encode a `CONFIG` entry; the docstring of the module has the layout."""
    parts = [_HEADER.pack(_VERSION, len(configuration.voters), len(configuration.learners))]
    for peer in configuration.voters + configuration.learners:
        for text in peer:
            raw = text.encode()
            assert len(raw) <= _TEXT_BYTES_MAX
            parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)


def decode(data: bytes) -> Configuration:
    """Decode a `CONFIG` entry; inverse of `encode`.

    Raises:
        BadConfigurationError: The bytes are truncated, too long, of another version, not sorted, or
            name a member twice or no voter.
    """
    try:
        version, voter_count, learner_count = _HEADER.unpack_from(data)
        members: list[Peer] = []
        position = _HEADER.size
        for _ in range(voter_count + learner_count):
            broker, position = _text(data, position)
            data_dir_id, position = _text(data, position)
            members.append(Peer(BrokerId(broker), data_dir_id))
    except (ValueError, struct.error) as error:
        raise BadConfigurationError(f"configuration entry: {error}") from error
    if version != _VERSION:
        raise BadConfigurationError(f"configuration entry of version {version}")
    if position != len(data):
        raise BadConfigurationError("configuration entry: bytes are left over")
    configuration = Configuration(tuple(members[:voter_count]), tuple(members[voter_count:]))
    if not is_well_formed(configuration):
        raise BadConfigurationError("configuration entry: members are not distinct and sorted")
    return configuration


def _text(data: bytes, position: int) -> tuple[str, int]:
    """Decode a length-prefixed text at `position`; return it and the next position."""
    if position + _LENGTH.size > len(data):
        raise ValueError("cut short")
    (length,) = _LENGTH.unpack_from(data, position)
    begin = position + _LENGTH.size
    if begin + length > len(data):
        raise ValueError("cut short")
    return data[begin : begin + length].decode(), begin + length


def is_well_formed(configuration: Configuration) -> bool:
    """Return whether a voter exists, both lists are sorted, and no member is in both."""
    voters, learners = configuration
    return (
        bool(voters)
        and all(a < b for a, b in pairwise(voters))
        and all(a < b for a, b in pairwise(learners))
        and not set(voters) & set(learners)
    )


def changed(configuration: Configuration, change: ConfigChange) -> Configuration:
    """Return the configuration after `change`.

    Raises:
        ConfigChangeRefusedError: The change is invalid for this configuration; the text has the
            reason.
    """
    voters, learners = configuration
    peer = change.peer
    match change:
        case AddLearner():
            if peer in voters or peer in learners:
                raise ConfigChangeRefusedError(f"{peer.broker} is a member already")
            return Configuration(voters, tuple(sorted((*learners, peer))))
        case Promote():
            if peer not in learners:
                raise ConfigChangeRefusedError(f"{peer.broker} is not a learner")
            if any(voter.broker == peer.broker for voter in voters):
                # Two disks of one broker would be two votes in one failure domain (KIP-853).
                raise ConfigChangeRefusedError(
                    f"{peer.broker} still votes with its former data directory; remove that first"
                )
            rest = tuple(learner for learner in learners if learner != peer)
            return Configuration(tuple(sorted((*voters, peer))), rest)
        case Remove():
            if voters == (peer,):
                raise ConfigChangeRefusedError(f"{peer.broker} is the last voter")
            if peer not in voters and peer not in learners:
                raise ConfigChangeRefusedError(f"{peer.broker} is not a member")
            return Configuration(
                tuple(voter for voter in voters if voter != peer),
                tuple(learner for learner in learners if learner != peer),
            )
