"""Check random runs step by step against the state machine of the Raft specification.

The specification (Ongaro's thesis, appendix B; the same actions as in the TLA+ models of etcd and
KIP-853) allows a change only as one of its actions. Here each step of a core is split into those
actions. Their preconditions are checked against everything that any disk has ever held:

- BecomeLeader: a majority of the voters have a vote for it in its term that no crash can undo: on
  disk, or its peer has gone on to a later term, and that is on disk.
- ClientRequest: an entry comes only from the leader of its own term.
- AdvanceCommitIndex: a leader commits an entry of its own term that a majority of the voters hold
  on disk; whoever else commits, commits what a leader has committed by that rule.
- AppendEntries: nothing that is committed goes from a disk that holds it.
- ChangeMembers: a leader that committed an entry of its term makes one change, and the next one
  when that is committed; a peer that is not a voter by a committed change leads no longer.

And beyond the specification: what others may count on, entries and
snapshots, is on disk before they hear of it, and so is what is to be applied.
"""

from collections import defaultdict

from liftbridge_broker.model.metadata_log import Entry, EntryKind, Peer
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.types import InstallChunkReply, Message, Ready, VoteReply
from liftbridge_testkit.raft.cluster import RaftCluster, Watch
from liftbridge_testkit.raft.storage import MemoryLog


class Model(Watch):
    """Replaces the `Watch` of a cluster.

    Attributes:
        action_counts: Count of each action of the specification.
    """

    def __init__(self, cluster: RaftCluster) -> None:
        super().__init__()
        self.action_counts: dict[str, int] = defaultdict(int)
        self._cluster = cluster
        self._held: dict[Peer, set[tuple[int, int]]] = defaultdict(set)
        self._covered: dict[Peer, int] = defaultdict(int)
        self._created: set[tuple[int, int]] = set()
        self._allowed = 0
        self._elected: set[tuple[Peer, int]] = set()
        self._promised: dict[tuple[Peer, int], Peer] = {}
        self._changes: set[tuple[int, int]] = set()
        cluster.watch = self
        for host in cluster.hosts.values():
            host.watch = self
            self._look_at_disk(host.peer)

    def on_step(self, core: RaftCore, commit_before: int) -> None:
        """Check a step of a peer, split into actions."""
        self._look_at_disk(core.me)
        if core.is_leader:
            self._check_leader(core)
            assert core.leading is not None
            most = core._options.inflight_messages_max
            for progress in core.leading.progress.values():
                assert len(progress._inflight) <= most, f"{core.me} sends too much at once"
            is_removed = core.me not in core.log.membership.latest.voters
            assert not (is_removed and core.log.is_configuration_committed), (
                f"{core.me} still leads"
            )
        if core.log.commit > commit_before:
            self._check_commit(core)
        super().on_step(core, commit_before)

    def on_write(self, core: RaftCore, storage: MemoryLog, ready: Ready) -> None:
        """Check the source of entries, and the entries that they replace."""
        if core.is_leader:
            self._note_created(core)
            for entry in ready.entries:
                if entry.kind is EntryKind.CONFIG and entry.term == core.term:
                    self._check_change(core, entry.entry_index)
        for entry in ready.entries:
            key = (entry.entry_index, entry.term)
            assert key in self._created, f"{core.me} writes {key}, which no leader made"
        if ready.snapshot is not None:
            meta = ready.snapshot.meta
            is_held = storage.term_at(meta.last_index) == meta.term
            assert not is_held, f"{core.me} drops a log that holds the end of the snapshot"
        if ready.entries and ready.snapshot is None:
            terms = {entry.entry_index: entry.term for entry in ready.entries}
            for index in range(min(terms), storage.last_index + 1):
                held = storage.term_at(index)
                is_cut = held == self.committed.get(index) and terms.get(index) != held
                assert not is_cut, f"{core.me} cuts {index}/{held}, which is committed"
            self.action_counts["AppendEntries"] += 1
        super().on_write(core, storage, ready)

    def on_send(self, message: Message, storage: MemoryLog) -> None:
        """Check that a vote is given once, and only when no crash can change it."""
        if isinstance(message, VoteReply) and message.is_granted:
            term, candidate = message.term, message.target
            disk = storage.hard_state()
            is_durable = disk.term > term or (disk.term == term and disk.vote == candidate)
            assert is_durable, f"{message.sender} gives a vote in {term} that is not durable"
            vote = self._promised.setdefault((message.sender, term), candidate)
            assert vote == candidate, f"{message.sender} gave two votes in {term}"
        elif isinstance(message, InstallChunkReply) and message.is_done:
            is_held = storage.last_index >= message.snapshot_index
            assert is_held, f"{message.sender} takes a snapshot that is not durable"

    def on_told(self, entry: Entry, storage: MemoryLog) -> None:
        """Check that an entry is on disk before it is applied."""
        term = storage.term_at(entry.entry_index)
        assert term in (None, entry.term), f"{entry.entry_index} is told with another term"
        assert storage.last_index >= entry.entry_index, f"{entry.entry_index} is not durable"

    def _check_change(self, core: RaftCore, index: int) -> None:
        """Check that a change of members is allowed now."""
        if (index, core.term) in self._changes:
            return
        self._changes.add((index, core.term))
        own = [at for at, term in self.committed.items() if term == core.term and at < index]
        assert own, f"{core.me} changes members before it committed anything in {core.term}"
        for at, term in self._changes:
            if at < index and core.log.term_at(at) == term:
                is_committed = self.committed.get(at) == term
                assert is_committed, f"{core.me} makes change {index} before {at} is committed"

    def _look_at_disk(self, peer: Peer) -> None:
        """Record durable state. A peer that holds an entry holds all before it."""
        storage, held = self._cluster.hosts[peer].storage, self._held[peer]
        self._covered[peer] = max(self._covered[peer], storage.snapshot_meta.last_index)
        for index in range(storage.last_index, storage.first_index - 1, -1):
            term = storage.term_at(index)
            assert term is not None
            if (index, term) in held:
                return
            held.add((index, term))

    def _note_created(self, core: RaftCore) -> None:
        for index in range(core.log.last_index, 0, -1):
            key = (index, core.term)
            if core.log.term_at(index) != core.term or key in self._created:
                return
            self._created.add(key)
            self.action_counts["ClientRequest"] += 1

    def _check_leader(self, core: RaftCore) -> None:
        self._note_created(core)
        if (core.me, core.term) in self._elected:
            return
        self._elected.add((core.me, core.term))
        voters = core.log.membership.latest.voters
        votes = [self._promised.get((peer, core.term)) == core.me for peer in voters]
        own = self._cluster.hosts[core.me].storage.hard_state()
        votes.append(core.me in voters and (own.term, own.vote) == (core.term, core.me))
        assert sum(votes) * 2 > len(voters), f"{core.me} leads {core.term} without a majority"
        self.action_counts["BecomeLeader"] += 1

    def _check_commit(self, core: RaftCore) -> None:
        index = core.log.commit
        # A leader that removed itself stops leading when the removal is committed.
        if not core.is_leader and (core.me, core.term) not in self._elected:
            assert index <= self._allowed, f"{core.me} commits {index}, which no leader has"
            return
        term = core.log.term_at(index)
        assert term == core.term, f"{core.me} commits {index}/{term} in term {core.term}"
        voters = core.log.membership.latest.voters
        count = sum(self._has(peer, index, term) for peer in voters)
        assert count * 2 > len(voters), f"{index}/{term} is on {count} of {len(voters)} disks"
        self._allowed = max(self._allowed, index)
        self.action_counts["AdvanceCommitIndex"] += 1

    def _has(self, peer: Peer, index: int, term: int) -> bool:
        return (index, term) in self._held[peer] or self._covered[peer] >= index
