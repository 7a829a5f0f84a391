"""Raft cores with hosts that execute exactly `Ready`, on a controlled network.

`Watch` compares each applied entry, write and role change with all earlier ones. A broken invariant
of Raft (fig. 3) raises `AssertionError` at once.
"""

import hashlib
from collections.abc import Callable
from random import Random

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, Peer, Snapshot
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.types import Drop, Message, Ready, Role
from liftbridge_testkit.raft.storage import MemoryLog

Report = Callable[[str], None]


def peer_of(name: str) -> Peer:
    """Parse a peer.

    `2` is broker 2 with its first data directory, `2'` with the next, and so on.
    """
    bare = name.rstrip("'")
    return Peer(BrokerId(bare), f"d{len(name) - len(bare)}")


def name_of(peer: Peer) -> str:
    """Format a peer; the inverse of `peer_of`."""
    return peer.broker + "'" * int(peer.data_dir_id[1:])


class Watch:
    """Invariants over everything that the peers have done so far.

    Attributes:
        committed: Term of each index that any peer considered committed.
        last_committed: The highest of them.
    """

    def __init__(self) -> None:
        self._leaders: dict[int, Peer] = {}
        self._entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self._states: dict[int, bytes] = {}
        self._votes: dict[tuple[Peer, int], Peer] = {}
        self._terms: dict[Peer, int] = {}
        self._leader_logs: dict[tuple[Peer, int], int] = {}
        self.committed: dict[int, int] = {}
        self.last_committed = 0
        self.election_count = 0
        self.truncation_count = 0
        self.snapshot_count = 0

    def on_step(self, core: RaftCore, commit_before: int) -> None:
        """Check a peer after any event."""
        commit = core.log.commit
        assert commit >= commit_before, "commit index went back"
        for index in range(max(commit_before, 0) + 1, commit + 1):
            term = core.log.term_at(index)
            if term is not None:
                seen = self.committed.setdefault(index, term)
                assert seen == term, f"index {index} committed with terms {seen} and {term}"
        self.last_committed = max(self.last_committed, commit)
        if core.is_leader:
            self._on_leader(core)

    def _on_leader(self, core: RaftCore) -> None:
        key = (core.me, core.term)
        last = self._leader_logs.get(key)
        if last is None:
            seen = self._leaders.setdefault(core.term, core.me)
            assert seen == core.me, f"two leaders in term {core.term}"
            self.election_count += 1
            for index, term in self.committed.items():
                mine = core.log.term_at(index)
                assert mine in (None, term), f"leader of {core.term} lacks {index}/{term}"
                assert index <= core.log.last_index, f"leader of {core.term} lacks {index}"
        else:
            assert core.log.last_index >= last, "a leader removed entries of its log"
        self._leader_logs[key] = core.log.last_index

    def on_write(self, core: RaftCore, storage: MemoryLog, ready: Ready) -> None:
        """Check that a write of a peer matches every log (Raft fig. 3, log matching)."""
        if ready.entries:
            first = ready.entries[0].entry_index
            self.truncation_count += first <= storage.last_index and ready.snapshot is None
            prev_term = core.log.term_at(first - 1)
            for entry in ready.entries:
                if prev_term is not None:
                    key = (entry.entry_index, entry.term)
                    seen = self._entries.setdefault(key, (prev_term, entry))
                    assert seen == (prev_term, entry), f"logs differ at {key}"
                prev_term = entry.term

    def on_synced(self, peer: Peer, ready: Ready) -> None:
        """Check the durable state of a peer: terms rise, with one vote in each."""
        hard_state = ready.hard_state
        assert hard_state is not None
        assert hard_state.term >= self._terms.get(peer, 0), "a term fell"
        self._terms[peer] = hard_state.term
        if hard_state.vote is not None:
            vote = self._votes.setdefault((peer, hard_state.term), hard_state.vote)
            assert vote == hard_state.vote, f"{peer} voted twice in {hard_state.term}"

    def on_send(self, message: Message, storage: MemoryLog) -> None:
        """Check a message that a host with this disk sends."""

    def on_told(self, entry: Entry, storage: MemoryLog) -> None:
        """Check an entry that a core gave to its host with this disk to apply."""

    def on_apply(self, index: int, state: bytes) -> None:
        """Check that every peer's state at `index` is the same."""
        seen = self._states.setdefault(index, state)
        assert seen == state, f"states differ at {index}"


class Host:
    """One broker: a core, its log, and a state machine that is a chain of digests.

    Attributes:
        core: `None` while it is down.
        applied: Index of the last entry applied.
        commands: Data of the commands applied since the start or the last snapshot, in order.
        reads: Tokens served, with the index.
        is_holding: Whether syncs wait for `sync`.
    """

    def __init__(
        self, peer: Peer, configuration: Configuration, options: RaftOptions, watch: Watch
    ) -> None:
        self.peer = peer
        self.storage = MemoryLog(configuration)
        self.options = options
        self.watch = watch
        self.core: RaftCore | None = None
        self.applied = 0
        self.state = b""
        self.commands: list[bytes] = []
        self.reads: list[tuple[int, int]] = []
        self.reads_failed: list[int] = []
        self.is_holding = False

    def start(self, rng: Random, now: int) -> None:
        """Start from the durable state."""
        assert self.core is None
        self.storage.staged = None
        self.applied = self.storage.snapshot_meta.last_index
        self.state = self.storage.state
        self.commands = []
        self.core = RaftCore(self.peer, self.storage, self.options, rng, now)

    def crash(self, steps: int) -> None:
        """Lose memory, and all but `steps` steps of the unsynced writes."""
        self.core = None
        self.storage.crash(steps)

    def work(self, send: Callable[[Message], None]) -> None:
        """Execute the requests of the core until there are none."""
        core = self.core
        while core is not None and (ready := core.ready()) is not None:
            for message in ready.messages_before:
                send(message)
            for entry in ready.committed:
                self._apply(entry)
            for read in ready.reads:
                assert read.read_index <= self.applied
                self.reads.append((read.token, read.read_index))
            self.reads_failed += ready.reads_failed
            if ready.must_persist:
                self.watch.on_write(core, self.storage, ready)
                self.storage.write(ready)
                if not self.is_holding:
                    self.sync(send)

    def sync(self, send: Callable[[Message], None]) -> None:
        """Complete the sync, and send the messages that waited for it."""
        assert self.core is not None
        ready = self.storage.sync()
        self.watch.on_synced(self.peer, ready)
        self.core.persisted(ready)
        if ready.snapshot is not None:
            self._restore(ready.snapshot)
        for message in ready.messages_after:
            send(message)

    def _apply(self, entry: Entry) -> None:
        assert entry.entry_index == self.applied + 1
        self.watch.on_told(entry, self.storage)
        self.applied = entry.entry_index
        part = b"%d %d %d " % (entry.entry_index, entry.term, entry.kind) + entry.data
        self.state = hashlib.sha256(self.state + part).digest()
        if entry.kind is EntryKind.COMMAND:
            self.commands.append(entry.data)
        self.watch.on_apply(self.applied, self.state)

    def _restore(self, snapshot: Snapshot) -> None:
        self.applied = snapshot.meta.last_index
        self.state = snapshot.state
        self.commands = []
        self.watch.snapshot_count += 1
        self.watch.on_apply(self.applied, self.state)

    def compact(self, entries_kept: int) -> bool:
        """Take a snapshot of the present state. Return whether there was something to compact."""
        if self.core is None or self.applied <= self.storage.snapshot_meta.last_index:
            return False
        configuration = self.core.log.configuration_at(self.applied)
        self.storage.keep_snapshot(self.applied, self.state, configuration, entries_kept)
        return True


class RaftCluster:
    """Hosts and a network that delivers only on request.

    Attributes:
        hosts: Hosts by identity, in the order they were added.
        network: Messages on their way, oldest first.
        cut: Pairs (from, to) between which all messages are lost.
        now: Time of all peers, in nanoseconds.
        report: Called with one line for each notable event.
    """

    def __init__(self, options: RaftOptions, seed: int = 0, watch: Watch | None = None) -> None:
        self.options = options
        self.rng = Random(seed)
        self.watch = watch or Watch()
        self.hosts: dict[Peer, Host] = {}
        self.network: list[Message] = []
        self.cut: set[tuple[Peer, Peer]] = set()
        self.now = 0
        self.report: Report = lambda _: None

    def add(self, peer: Peer, configuration: Configuration) -> Host:
        """Add a stopped host with an empty disk."""
        host = Host(peer, configuration, self.options, self.watch)
        self.hosts[peer] = host
        return host

    def start(self, peer: Peer) -> None:
        """Start a process."""
        host = self.hosts[peer]
        host.start(Random(self.rng.randrange(1 << 30)), self.now)
        self.act(peer, lambda _: None)

    def running(self) -> list[Host]:
        """Return the hosts that are up."""
        return [host for host in self.hosts.values() if host.core is not None]

    def leader(self) -> RaftCore | None:
        """Return the leader of the highest term, if there is one."""
        leaders = [h.core for h in self.running() if h.core is not None and h.core.is_leader]
        return max(leaders, key=lambda core: core.term) if leaders else None

    def send(self, message: Message) -> None:
        """Send a message, unless the link is cut."""
        self.watch.on_send(message, self.hosts[message.sender].storage)
        if (message.sender, message.target) not in self.cut:
            self.network.append(message)

    def act(self, peer: Peer, action: Callable[[RaftCore], None]) -> None:
        """Call a function on a core, let its host work, and check."""
        host = self.hosts[peer]
        core = host.core
        assert core is not None
        before = (core.role, core.term, core.leader, core.log.commit, list(core.dropped))
        try:
            action(core)
        finally:
            host.work(self.send)
            self.watch.on_step(core, before[3])
            self._tell(core, before)

    def sync(self, peer: Peer) -> None:
        """Complete the writes of a host whose disk holds them back."""
        host = self.hosts[peer]
        if host.storage.staged is not None:
            self.act(peer, lambda _: host.sync(self.send))

    def _tell(self, core: RaftCore, before: tuple[Role, int, Peer | None, int, list[int]]) -> None:
        role, term, leader, commit, dropped = before
        name = name_of(core.me)
        if (core.role, core.term) != (role, term):
            self.report(f"{name} {core.role.name.lower()} term={core.term}")
        if core.leader != leader and core.leader is not None and core.leader != core.me:
            self.report(f"{name} follows {name_of(core.leader)}")
        if core.log.commit != commit:
            self.report(f"{name} commit={core.log.commit}")
        for reason, (new, old) in enumerate(zip(core.dropped, dropped, strict=True)):
            if new != old:
                self.report(f"{name} drops {Drop(reason).name.lower()}")

    def deliver(self, message: Message) -> None:
        """Deliver a message if its target is running."""
        host = self.hosts.get(message.target)
        if host is not None and host.core is not None:
            self.act(message.target, lambda core: core.step(message, self.now))

    def settle(self, deliveries_max: int = 100_000) -> None:
        """Deliver messages in order until none is left."""
        for _ in range(deliveries_max):
            if not self.network:
                return
            self.deliver(self.network.pop(0))
        raise AssertionError("the group does not come to rest")

    def tick(self, peer: Peer) -> None:
        """Give a peer the present time."""
        self.act(peer, lambda core: core.tick(self.now))

    def elapse(self, duration_ns: int) -> None:
        """Advance time as in a healthy process: no deadline is late and all messages arrive."""
        end = self.now + duration_ns
        while True:
            deadlines = [
                (deadline, host.peer)
                for host in self.running()
                if host.core is not None and (deadline := host.core.next_deadline()) is not None
            ]
            deadline, peer = min(deadlines, default=(end + 1, None))
            if deadline > end or peer is None:
                break
            self.now = max(self.now, deadline)
            self.tick(peer)
            self.settle()
        self.now = end

    def partition(self, groups: list[list[Peer]]) -> None:
        """Cut all links between different groups. A peer in no group is isolated."""
        place = {peer: number for number, group in enumerate(groups) for peer in group}
        everyone = list(self.hosts)
        self.cut = {
            (a, b)
            for a in everyone
            for b in everyone
            if a != b and (a not in place or place.get(a) != place.get(b))
        }
        self.network = [m for m in self.network if (m.sender, m.target) not in self.cut]
