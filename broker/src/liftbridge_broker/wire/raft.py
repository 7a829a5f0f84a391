"""Messages of the metadata group <-> bytes (`internal/v1/raft.proto`).

They come from other processes, which may be broken or of another version: any invalid message is
refused, and decoding uses at most a small multiple of the received bytes.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, Peer, SnapshotMeta
from liftbridge_broker.model.units import MIB
from liftbridge_broker.raft import types as raft
from liftbridge_broker.raft.types import Message
from liftbridge_proto.internal.v1 import raft_pb2 as pb

MESSAGE_BYTES_MAX: Final = 32 * MIB
"""Longest message: a full `Append` with one entry beyond its size, plus a margin."""

NAME_LENGTH_MAX: Final = 256
"""Characters of the name of a broker or a data directory."""

INDEX_MAX: Final = 2**62
"""Maximum of an index or term: they rise by one, so no honest peer reaches it."""

MEMBERS_MAX: Final = 1_024
ENTRIES_MAX: Final = 65_536
_SHA256_SIZE: Final = 32


def encode_message(message: Message) -> bytes:
    """Encode a message."""
    out = pb.RaftMessage(term=message.term)
    out.sender.broker, out.sender.data_dir_id = message.sender
    out.target.broker, out.target.data_dir_id = message.target
    _FILLERS[type(message)](out, message)
    return out.SerializeToString()


def decode_message(data: bytes) -> Message:
    """Decode a message.

    Raises:
        WireError: This version does not understand the bytes.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise WireError(f"metadata message: {len(data)} bytes")
    try:
        message = pb.RaftMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"metadata message: {error}") from error
    kind = message.WhichOneof("body")
    if kind is None:
        raise WireError("metadata message: a body that this version does not know")
    head = (_peer(message.sender), _peer(message.target), _number(message.term, "term"))
    return _READERS[kind](message, *head)


# -- writing ------------------------------------------------------------------------------------


def _fill_election(out: pb.RaftMessage, message: Message) -> None:
    if isinstance(message, raft.PreVote):
        election = out.pre_vote
    else:
        assert isinstance(message, raft.Vote)
        election = out.vote
        election.is_transfer = message.is_transfer
    election.SetInParent()
    election.last_index = message.last_index
    election.last_term = message.last_term


def _fill_vote(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.PreVoteReply | raft.VoteReply)
    is_pre = isinstance(message, raft.PreVoteReply)
    reply = out.pre_vote_reply if is_pre else out.vote_reply
    reply.SetInParent()
    reply.is_granted = message.is_granted


def _fill_append(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.Append)
    body = out.append
    body.SetInParent()
    body.prev_index = message.prev_index
    body.prev_term = message.prev_term
    body.commit = message.commit
    add = body.entries.add
    for entry in message.entries:
        add(term=entry.term, kind=_KIND_NUMBERS[entry.kind], data=entry.data)


def _fill_append_reply(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.AppendReply)
    body = out.append_reply
    body.SetInParent()
    body.is_success = message.is_success
    body.log_index = message.log_index
    body.hint_index = message.hint_index
    body.hint_term = message.hint_term


def _fill_heartbeat(out: pb.RaftMessage, message: Message) -> None:
    if isinstance(message, raft.Heartbeat):
        out.heartbeat.SetInParent()
        out.heartbeat.commit = message.commit
        out.heartbeat.read_context = message.read_context
        return
    assert isinstance(message, raft.HeartbeatReply)
    out.heartbeat_reply.SetInParent()
    out.heartbeat_reply.read_context = message.read_context


def _fill_chunk(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.InstallChunk)
    body, meta = out.install_chunk, message.snapshot
    body.last_index = meta.last_index
    body.last_term = meta.term
    for peers, target in (
        (meta.configuration.voters, body.voters),
        (meta.configuration.learners, body.learners),
    ):
        for broker, data_dir_id in peers:
            target.add(broker=broker, data_dir_id=data_dir_id)
    body.size_bytes = meta.size_bytes
    body.sha256 = meta.sha256
    body.position = message.position
    body.data = message.data


def _fill_chunk_reply(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.InstallChunkReply)
    body = out.install_chunk_reply
    body.SetInParent()
    body.snapshot_index = message.snapshot_index
    body.position = message.position
    body.is_done = message.is_done


def _fill_timeout(out: pb.RaftMessage, message: Message) -> None:
    assert isinstance(message, raft.TimeoutNow)
    out.timeout_now.SetInParent()


def _fill_read(out: pb.RaftMessage, message: Message) -> None:
    if isinstance(message, raft.ReadIndex):
        out.read_index.SetInParent()
        out.read_index.context = message.context
        return
    assert isinstance(message, raft.ReadIndexReply)
    out.read_index_reply.SetInParent()
    out.read_index_reply.context = message.context
    out.read_index_reply.read_index = message.read_index


_FILLERS: Final[dict[type[Message], Callable[[pb.RaftMessage, Message], None]]] = {
    raft.PreVote: _fill_election,
    raft.Vote: _fill_election,
    raft.PreVoteReply: _fill_vote,
    raft.VoteReply: _fill_vote,
    raft.Append: _fill_append,
    raft.AppendReply: _fill_append_reply,
    raft.Heartbeat: _fill_heartbeat,
    raft.HeartbeatReply: _fill_heartbeat,
    raft.InstallChunk: _fill_chunk,
    raft.InstallChunkReply: _fill_chunk_reply,
    raft.TimeoutNow: _fill_timeout,
    raft.ReadIndex: _fill_read,
    raft.ReadIndexReply: _fill_read,
}

_KIND_NUMBERS: Final[dict[EntryKind, pb.RaftEntryKind]] = {
    EntryKind.COMMAND: pb.RAFT_ENTRY_KIND_COMMAND,
    EntryKind.NOOP: pb.RAFT_ENTRY_KIND_NOOP,
    EntryKind.CONFIG: pb.RAFT_ENTRY_KIND_CONFIG,
}
_KINDS: Final = {number: kind for kind, number in _KIND_NUMBERS.items()}


# -- reading ------------------------------------------------------------------------------------


def _require(name: str, *, holds: bool) -> None:
    if not holds:
        raise WireError(f"metadata message: {name} out of bounds")


def _number(value: int, name: str) -> int:
    """Check an index, a term or a position."""
    _require(name, holds=value <= INDEX_MAX)
    return value


def _peer(message: pb.RaftIdentity) -> Peer:
    broker, data_dir_id = message.broker, message.data_dir_id
    _require("identity", holds=0 < len(broker) <= NAME_LENGTH_MAX)
    _require("identity", holds=0 < len(data_dir_id) <= NAME_LENGTH_MAX)
    return Peer(BrokerId(broker), data_dir_id)


def _pre_vote(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.pre_vote
    _require("transfer", holds=not body.is_transfer)
    last_index, last_term = _number(body.last_index, "index"), _number(body.last_term, "term")
    return raft.PreVote(sender, target, term, last_index, last_term)


def _vote(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.vote
    last_index, last_term = _number(body.last_index, "index"), _number(body.last_term, "term")
    return raft.Vote(sender, target, term, last_index, last_term, body.is_transfer)


def _append(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.append
    _require("entries", holds=len(body.entries) <= ENTRIES_MAX)
    index = prev_index = _number(body.prev_index, "index")
    entries: list[Entry] = []
    for entry in body.entries:
        kind = _KINDS.get(entry.kind)
        if kind is None:
            raise WireError(f"metadata message: an entry of kind {entry.kind}")
        index += 1
        entries.append(Entry(index, _number(entry.term, "term"), kind, entry.data))
    return raft.Append(
        sender,
        target,
        term,
        prev_index,
        _number(body.prev_term, "term"),
        tuple(entries),
        _number(body.commit, "index"),
    )


def _append_reply(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.append_reply
    return raft.AppendReply(
        sender,
        target,
        term,
        body.is_success,
        _number(body.log_index, "index"),
        _number(body.hint_index, "index"),
        _number(body.hint_term, "term"),
    )


def _heartbeat(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.heartbeat
    commit, context = _number(body.commit, "index"), _number(body.read_context, "context")
    return raft.Heartbeat(sender, target, term, commit, context)


def _install_chunk(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.install_chunk
    _require("members", holds=len(body.voters) + len(body.learners) <= MEMBERS_MAX)
    _require("digest", holds=len(body.sha256) == _SHA256_SIZE)
    configuration = Configuration(
        tuple(_peer(peer) for peer in body.voters), tuple(_peer(peer) for peer in body.learners)
    )
    meta = SnapshotMeta(
        _number(body.last_index, "index"),
        _number(body.last_term, "term"),
        configuration,
        _number(body.size_bytes, "size"),
        body.sha256,
    )
    position = _number(body.position, "position")
    _require("position", holds=position + len(body.data) <= meta.size_bytes)
    return raft.InstallChunk(sender, target, term, meta, position, body.data)


def _install_chunk_reply(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.install_chunk_reply
    index, position = _number(body.snapshot_index, "index"), _number(body.position, "position")
    return raft.InstallChunkReply(sender, target, term, index, position, body.is_done)


def _read_index_reply(message: pb.RaftMessage, sender: Peer, target: Peer, term: int) -> Message:
    body = message.read_index_reply
    context, index = _number(body.context, "context"), _number(body.read_index, "index")
    return raft.ReadIndexReply(sender, target, term, context, index)


_READERS: Final[dict[str, Callable[[pb.RaftMessage, Peer, Peer, int], Message]]] = {
    "pre_vote": _pre_vote,
    "pre_vote_reply": lambda message, sender, target, term: raft.PreVoteReply(
        sender, target, term, message.pre_vote_reply.is_granted
    ),
    "vote": _vote,
    "vote_reply": lambda message, sender, target, term: raft.VoteReply(
        sender, target, term, message.vote_reply.is_granted
    ),
    "append": _append,
    "append_reply": _append_reply,
    "heartbeat": _heartbeat,
    "heartbeat_reply": lambda message, sender, target, term: raft.HeartbeatReply(
        sender, target, term, _number(message.heartbeat_reply.read_context, "context")
    ),
    "install_chunk": _install_chunk,
    "install_chunk_reply": _install_chunk_reply,
    "timeout_now": lambda _message, sender, target, term: raft.TimeoutNow(sender, target, term),
    "read_index": lambda message, sender, target, term: raft.ReadIndex(
        sender, target, term, _number(message.read_index.context, "context")
    ),
    "read_index_reply": _read_index_reply,
}
