"""Random runs of a Raft group: inject every fault, then require recovery (R19).

One seed gives one run. In the first phase messages are lost, duplicated and reordered, links are
cut, processes stop with any part of their unsynced data, disks are slow, loops stall, logs are
compacted, members change and leadership is transferred. In the second phase all faults stop, and
the group must elect a leader and commit at every voter within a bounded time. `Watch` checks every
step.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.types import (
    AddLearner,
    Append,
    ConfigChange,
    Promote,
    RaftRefusalError,
    Remove,
)
from liftbridge_testkit.raft.cluster import Host, RaftCluster, peer_of
from liftbridge_testkit.raft.weather import Weather

OPTIONS = RaftOptions(
    append_bytes_max=400,
    append_entries_max=8,
    inflight_messages_max=4,
    inflight_bytes_max=2_000,
    uncommitted_bytes_max=3_000,
    committed_bytes_max=300,
    chunk_bytes_max=7,
    catch_up_entries_max=20,
)
"""Bounds small enough that a short run reaches all of them."""

NETWORK_MAX = 400
SHORT_LIVES = 4
SHORT_PART = 10
"""Steps of the first part for each step of a short part."""

UNCOUNTED_BYTES = 500
"""Allowance for entries that may exceed the bound: membership changes and the first of a term."""

UNDISTURBED_NS = 3_000 * MILLISECOND_NS
"""Time for which a disturbed group must keep its leader."""

RECOVERY_NS = 20_000 * MILLISECOND_NS
"""Maximum time to recover: about twenty election timeouts."""


@dataclass
class Life:
    """Events under one seed."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)


class Chaos:
    """Injects faults into one cluster from one random generator.

    The number of voters may be random.
    """

    def __init__(self, seed: int, voter_count: int = 0, spare_count: int = 2) -> None:
        self.rng = Random(seed)
        self.life = Life(seed)
        options = replace(
            OPTIONS,
            append_entries_max=self.rng.choice((1, 2, 8)),
            inflight_messages_max=self.rng.choice((1, 4, 16)),
        )
        # A learner that receives one entry at a time never catches up with a group under load.
        self.cluster: RaftCluster = RaftCluster(OPTIONS if voter_count else options, seed)
        count = voter_count or self.rng.choice((1, 3, 3, 3, 5))
        self.spares = [peer_of(str(n)) for n in range(count + 1, count + 1 + spare_count)]
        configuration = Configuration(tuple(peer_of(str(n)) for n in range(1, count + 1)))
        for peer in configuration.voters:
            self.cluster.add(peer, configuration)
        for peer in self.spares:
            self.cluster.add(peer, EMPTY)
        for peer in list(self.cluster.hosts):
            self.cluster.start(peer)
        self.read_floors: dict[int, int] = {}
        self.token = 0
        self.loss = self.rng.choice((0, 0, 2, 10, 30))
        weights: list[tuple[int, Callable[[], None]]] = [
            (60, self.deliver),
            (20, self.pass_time),
            (8, self.propose),
            (2, self.read),
            (2, self.hold_or_sync),
            (1, self.crash),
            (2, self.restart),
            (1, self.partition),
            (1, self.depose),
            (1, self.heal),
            (1, self.stall),
            (2, self.compact),
            (2, self.change_members),
            (1, self.transfer),
            (1, self.abandon),
            (1, self.stale_copy),
        ]
        # A subset of the faults makes each fault more visible (swarm testing).
        self.actions = [
            (weight, action)
            for number, (weight, action) in enumerate(weights)
            if number < 3 or self.rng.randrange(4)
        ]
        self.old_messages: list[Append] = []
        self.weather = Weather(self, seed)

    def run(self, steps: int) -> Life:
        """Run `live` and `recover`, then repeat both a few times with short runs.

        A state from which a group cannot recover is mostly repaired by chance while faults
        continue. So each recovery is another chance to see one.
        """
        for length in (steps, *[steps // SHORT_PART] * SHORT_LIVES):
            self.live(length)
            self.recover()
        self.disturb()
        self.check_reads()
        watch = self.cluster.watch
        self.life.counts.update(
            steps=steps,
            elections=watch.election_count,
            truncations=watch.truncation_count,
            snapshots=watch.snapshot_count,
            committed=watch.last_committed,
        )
        return self.life

    def live(self, steps: int) -> None:
        """Take this number of random steps."""
        weights = [weight for weight, _ in self.actions]
        actions = [action for _, action in self.actions]
        for action in self.rng.choices(actions, weights, k=steps):
            action()
            self.weather.after_step()

    def calm(self) -> None:
        """Stop all faults except lost messages; proposals continue."""
        self.loss = 10
        self.actions = [(100, self.deliver), (10, self.pass_time), (3, self.propose)]

    # --- Faults ---------------------------------------------------------------------------------

    def count(self, name: str) -> None:
        self.life.counts[name] += 1

    def some_host(self) -> Host | None:
        running = self.cluster.running()
        return self.rng.choice(running) if running else None

    def deliver(self) -> None:
        network = self.cluster.network
        for _ in range(self.rng.randrange(1, 6)):
            if not network:
                return
            position = 0 if self.rng.randrange(4) else self.rng.randrange(len(network))
            message = network.pop(position)
            if self.rng.randrange(100) < self.loss:
                self.count("lost")
                continue
            if not self.rng.randrange(20):
                network.append(message)
                self.count("doubled")
            if isinstance(message, Append) and not self.rng.randrange(30):
                self.old_messages.append(message)
            self.cluster.deliver(message)
        del network[:-NETWORK_MAX]

    def stale_copy(self) -> None:
        """Deliver an old message again."""
        if self.old_messages:
            self.cluster.deliver(self.rng.choice(self.old_messages))
            self.count("stale")

    def pass_time(self) -> None:
        self.cluster.now += self.rng.randrange(60 * MILLISECOND_NS)
        for host in self.cluster.running():
            core = host.core
            if core is None:
                continue
            deadline = core.next_deadline()
            if deadline is not None and deadline <= self.cluster.now:
                self.cluster.tick(host.peer)

    def propose(self) -> None:
        leaders = [h for h in self.cluster.running() if h.core is not None and h.core.is_leader]
        for host in leaders:
            for _ in range(self.rng.randrange(1, 5)):
                data = b"%d" % self.rng.randrange(10**6) * self.rng.randrange(1, 20)
                self.attempt(host.peer, "proposed", lambda core, data=data: self.put(core, data))

    @staticmethod
    def put(core: RaftCore, data: bytes) -> None:
        """Propose an entry. A leader that transfers leadership must not accept it."""
        leading = core.leading
        transferee = None if leading is None else leading.transferee
        core.propose(data)
        assert leading is not None
        assert transferee is None, f"{core.me} takes a proposal during a hand-over"
        most = OPTIONS.uncommitted_bytes_max + UNCOUNTED_BYTES
        assert leading.uncommitted_bytes <= most, f"{core.me} takes too many proposals"

    def attempt(self, peer: Peer, name: str, action: Callable[..., object]) -> None:
        try:
            self.cluster.act(peer, lambda core: void(action(core)))
            self.count(name)
        except RaftRefusalError:
            self.count(f"{name} refused")

    def read(self) -> None:
        host = self.some_host()
        if host is not None:
            self.read_at(host)

    def read_at(self, host: Host) -> None:
        """Ask a member for a read, which must not return less than is committed now."""
        self.token += 1
        self.read_floors[self.token] = self.cluster.watch.last_committed
        self.attempt(host.peer, "read", lambda core: core.read(self.token, self.cluster.now))

    def check_reads(self) -> None:
        for host in self.cluster.hosts.values():
            for token, index in host.reads:
                assert index >= self.read_floors[token], f"stale read {token} at {index}"
            self.life.counts["reads served"] += len(host.reads)

    def hold_or_sync(self) -> None:
        host = self.some_host()
        if host is not None:
            host.is_holding = not host.is_holding
            self.count("slow disk")
            if not host.is_holding:
                self.cluster.sync(host.peer)

    def crash(self) -> None:
        host = self.some_host()
        if host is not None:
            host.crash(self.rng.randrange(host.storage.write_count + 1))
            host.is_holding = bool(self.rng.randrange(2))
            self.count("crash")

    def restart(self) -> None:
        down = [host for host in self.cluster.hosts.values() if host.core is None]
        if down:
            self.cluster.start(self.rng.choice(down).peer)

    def partition(self) -> None:
        peers = list(self.cluster.hosts)
        if self.rng.randrange(2):
            place = [self.rng.randrange(2) for _ in peers]
            groups = [[p for p, g in zip(peers, place, strict=True) if g == n] for n in (0, 1)]
            self.cluster.partition(groups)
        else:
            # One-way and non-transitive cuts.
            for _ in range(len(peers)):
                a, b = self.rng.choice(peers), self.rng.choice(peers)
                self.cluster.cut.add((a, b))
        self.count("partition")

    def depose(self) -> None:
        """Isolate the leader with one follower, or crash it: few peers get its last entries."""
        leader = self.cluster.leader()
        if leader is None:
            return
        self.count("depose")
        if self.rng.randrange(2):
            host = self.cluster.hosts[leader.me]
            host.crash(self.rng.randrange(host.storage.write_count + 1))
            return
        others = [peer for peer in self.cluster.hosts if peer != leader.me]
        friend = self.rng.choice(others)
        rest = [peer for peer in others if peer != friend]
        self.cluster.partition([[leader.me, friend], rest])

    def heal(self) -> None:
        self.cluster.cut.clear()

    def stall(self) -> None:
        """Advance the time while no loop runs."""
        self.cluster.now += self.rng.randrange(2_000 * MILLISECOND_NS)
        self.count("stall")

    def compact(self) -> None:
        host = self.some_host()
        if host is not None and host.compact(self.rng.randrange(5)):
            self.count("compaction")

    def change_members(self) -> None:
        leader = self.cluster.leader()
        if leader is None:
            return
        voters, learners = leader.log.membership.latest
        change: ConfigChange
        draw = self.rng.randrange(3)
        if draw == 0:
            change = AddLearner(self.rng.choice(list(self.cluster.hosts)))
        elif learners and (draw == 1 or self.rng.randrange(3)):
            change = Promote(self.rng.choice(learners))
        else:
            change = Remove(self.rng.choice(voters + learners))
        name = type(change).__name__
        self.attempt(leader.me, name, lambda core: core.propose_config(change))

    def transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            peer = self.rng.choice(leader.log.membership.latest.voters)
            self.attempt(leader.me, "transfer", lambda core: core.transfer(peer, self.cluster.now))

    def abandon(self) -> None:
        """Let a peer believe that the process of its leader has ended, truly or not."""
        host = self.some_host()
        if host is not None and host.core is not None and host.core.leader is not None:
            delay = self.rng.randrange(100 * MILLISECOND_NS)
            host.core.abandon(host.core.leader, delay, self.cluster.now)
            self.count("abandon")

    # --- Recovery -------------------------------------------------------------------------------

    def recover(self) -> None:
        """Heal everything: a leader and a commit at every voter must follow in bounded time."""
        cluster = self.cluster
        cluster.cut.clear()
        for host in cluster.hosts.values():
            host.is_holding = False
            if host.core is None:
                cluster.start(host.peer)
            cluster.sync(host.peer)
        cluster.settle()
        begin = cluster.now
        while not self.is_settled():
            assert cluster.now < begin + RECOVERY_NS, "nothing is committed after all was healed"
            cluster.elapse(100 * MILLISECOND_NS)
        leader = cluster.leader()
        assert leader is not None
        self.life.counts["recovery ms"] = (cluster.now - begin) // MILLISECOND_NS
        cluster.act(leader.me, lambda core: void(core.propose(b"last")))
        cluster.elapse(5_000 * MILLISECOND_NS)
        for peer in leader.log.membership.latest.voters + leader.log.membership.latest.learners:
            host = cluster.hosts[peer]
            assert host.applied == leader.log.last_index, f"{peer.broker} did not catch up"

    # --- Disturbances ---------------------------------------------------------------------------

    def disturb(self) -> None:
        """Check that a leader survives a stall and a cut link, and resigns without a quorum."""
        leader = self.cluster.leader()
        assert leader is not None
        voters = leader.log.membership.latest.voters
        if len(voters) < 3:
            return
        term = leader.term
        self.cluster.now += UNDISTURBED_NS
        self.cluster.elapse(UNDISTURBED_NS)
        assert leader.is_leader, "a group that stood still replaced its leader"
        other = next(voter for voter in voters if voter != leader.me)
        self.cluster.cut.add((leader.me, other))
        self.cluster.elapse(UNDISTURBED_NS)
        self.cluster.cut.clear()
        self.cluster.elapse(UNDISTURBED_NS)
        assert leader.is_leader, "a peer that heard nothing deposed the leader"
        assert leader.term == term, "a peer that heard nothing raised the term"
        self.cluster.partition([[peer for peer in self.cluster.hosts if peer != leader.me]])
        self.cluster.elapse(UNDISTURBED_NS)
        assert not leader.is_leader, "a leader without a quorum goes on"
        self.recover()

    def is_settled(self) -> bool:
        """Return whether a leader has committed its whole log and takes proposals."""
        leader = self.cluster.leader()
        if leader is None or leader.leading is None:
            return False
        return leader.leading.transferee is None and leader.log.commit == leader.log.last_index


def void(_: object) -> None:
    """Ignore a result."""
