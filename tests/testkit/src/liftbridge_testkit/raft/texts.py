"""Format messages and peers as short text for scripts; parse them where scripts need it."""

from collections.abc import Callable

from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, Peer, SnapshotMeta
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.raft.configuration import decode
from liftbridge_broker.raft.types import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallChunk,
    InstallChunkReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from liftbridge_testkit.raft.cluster import Host, name_of, peer_of


def entry_text(entry: Entry) -> str:
    """Format an entry as `3/2:a`: index, term and data; `noop`, or the members in brackets."""
    place = f"{entry.entry_index}/{entry.term}"
    if entry.kind is EntryKind.NOOP:
        return f"{place}:noop"
    if entry.kind is EntryKind.CONFIG:
        return f"{place}:{members_text(decode(entry.data))}"
    return f"{place}:{entry.data.decode()}"


def members_text(configuration: Configuration) -> str:
    """Format members as `(1 2 3)`, or `(1 2 3 +4)` with learner 4."""
    names = [name_of(peer) for peer in configuration.voters]
    names += [f"+{name_of(peer)}" for peer in configuration.learners]
    return f"({' '.join(names)})"


def message_text(message: Message) -> str:
    """Format a message as one line."""
    kind = type(message)
    head = f"{name_of(message.sender)}>{name_of(message.target)} {kind.__name__}"
    return f"{head} term={message.term}{_BODIES[kind](message)}"


def _append_text(message: Append) -> str:
    entries = " ".join(entry_text(entry) for entry in message.entries)
    return f" prev={message.prev_index}/{message.prev_term} [{entries}] commit={message.commit}"


def _append_reply_text(message: AppendReply) -> str:
    if message.is_success:
        return f" match={message.log_index}"
    return f" reject={message.log_index} hint={message.hint_index}/{message.hint_term}"


def _chunk_text(message: InstallChunk) -> str:
    end = message.position + len(message.data)
    return f" snapshot={message.snapshot.last_index} bytes={message.position}-{end}"


def _chunk_reply_text(message: InstallChunkReply) -> str:
    done = " done" if message.is_done else ""
    return f" snapshot={message.snapshot_index} position={message.position}{done}"


_BODIES: dict[type[Message], Callable[..., str]] = {
    PreVote: lambda m: f" last={m.last_index}/{m.last_term}",
    PreVoteReply: lambda m: " yes" if m.is_granted else " no",
    Vote: lambda m: f" last={m.last_index}/{m.last_term}{' transfer' if m.is_transfer else ''}",
    VoteReply: lambda m: " yes" if m.is_granted else " no",
    Append: _append_text,
    AppendReply: _append_reply_text,
    Heartbeat: lambda m: f" commit={m.commit} context={m.read_context}",
    HeartbeatReply: lambda m: f" context={m.read_context}",
    InstallChunk: _chunk_text,
    InstallChunkReply: _chunk_reply_text,
    TimeoutNow: lambda _: "",
    ReadIndex: lambda m: f" context={m.context}",
    ReadIndexReply: lambda m: f" context={m.context} index={m.read_index}",
}
_KINDS = {kind.__name__: kind for kind in _BODIES}


def host_text(host: Host) -> str:
    """Format the state of a peer."""
    name = name_of(host.peer)
    core = host.core
    if core is None:
        return f"{name} down"
    parts = [f"{name} {core.role.name.lower()} term={core.term}"]
    terms = [core.log.term_at(i) for i in range(1, core.log.last_index + 1)]
    log = ",".join("-" if term is None else str(term) for term in terms)
    parts.append(f"log={log} commit={core.log.commit} applied={host.applied}")
    parts.append(members_text(core.log.membership.latest))
    if core.is_leader:
        matches = " ".join(
            f"{name_of(status.peer)}:{status.match}{'' if state is None else state.name[0].lower()}"
            for status in core.peers()
            for state in [status.state]
        )
        parts.append(f"match={matches}")
    return " ".join(parts)


def parse_entries(text: str) -> tuple[Entry, ...]:
    """Parse entries such as `3/2:a,4/2:noop`."""
    found = []
    for part in text.split(",") if text else ():
        place, _, data = part.partition(":")
        index, _, term = place.partition("/")
        kind = EntryKind.NOOP if data == "noop" else EntryKind.COMMAND
        raw = b"" if data == "noop" else data.encode()
        if data == "config":
            kind, raw = EntryKind.CONFIG, b"nonsense"
        found.append(Entry(int(index), int(term), kind, raw))
    return tuple(found)


def parse_message(words: list[str]) -> Message:
    """Parse a message, valid or not: kind, then `field=value`; omitted fields are 0.

    A snapshot is `index,term,size,bytes of digest,position` and `data` a number of zero bytes.
    """
    kind, given = _KINDS[words[0]], dict(word.partition("=")[::2] for word in words[1:])
    values: dict[str, object] = {
        "sender": peer_of(given.pop("from")),
        "target": peer_of(given.pop("to")),
    }
    for name in kind._fields[2:]:
        text = given.pop(name, "")
        if name == "entries":
            values[name] = parse_entries(text)
        elif name == "snapshot":
            index, term, size, digest = map(int, text.split(","))
            voters = Configuration((peer_of("1"),))
            values[name] = SnapshotMeta(index, term, voters, size, bytes(digest))
        elif name == "data":
            values[name] = bytes(int(text or "0"))
        else:
            values[name] = text == "yes" if name.startswith("is_") else int(text or "0")
    if given:
        raise ValueError(f"{words[0]} has no {', '.join(given)}")
    make: Callable[..., Message] = kind
    return make(**values)


def peers_of(words: list[str]) -> list[Peer]:
    """Parse a list of peers."""
    return [peer_of(word) for word in words]


def milliseconds(text: str) -> int:
    """Parse a number of milliseconds. Return nanoseconds."""
    return int(text) * MILLISECOND_NS
