"""Random lives of a cluster that loses connections to NATS, and at the end a broker.

The judgement is that of `liftbridge_testkit.saturation`, in virtual time: as long as no connection
is away for longer than the brokers excuse (`broker/node/peers/outage.py`), no leader changes, no
replica leaves the in-sync set, no broker is fenced, and each record is soon on all replicas. What
is longer, or hangs, must not hide behind it.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.sim.scripts import looking
from liftbridge_testkit.sim.scripts.play import act
from liftbridge_testkit.sim.scripts.stage import Stage

ROUNDS: Final = 3
REFILL_NS: Final = 6 * SECOND_NS
"""Time between two outages, in which the credit for them refills."""

OUTAGE_NS_MAX: Final = 850 * MILLISECOND_NS
RETURN_NS_MAX: Final = 60 * MILLISECOND_NS
"""Time from the return of a broker to that of the next."""

BREAK_NS_MAX: Final = 40 * MILLISECOND_NS
BREAK_RETURN_NS_MAX: Final = 8 * MILLISECOND_NS
"""The same when NATS serves the others; together less than the time in which an absence counts."""

ACK_NS_MAX: Final = 250 * MILLISECOND_NS
"""Time after the return of all in which a record must be acknowledged."""

LAG_NS: Final = 700 * MILLISECOND_NS
"""Time for which a follower hangs, and stays in sync."""

GAP_NS: Final = 20 * MILLISECOND_NS
"""Length of the connection breaks beside a broker that hangs."""

HANG_NS_MAX: Final = 15 * SECOND_NS
"""Time in which a leader that hangs is replaced, although breaks excuse its silence about once a
second."""

FENCE_NS_MAX: Final = 2 * SECOND_NS
"""Time in which a metadata leader without connections fences itself, and another one leads."""

FAILOVER_NS_MAX: Final = 250 * MILLISECOND_NS
"""Time in which another broker leads what a killed one led."""

PARTITIONS: Final = 250
PROPOSALS_MAX: Final = 65
"""In-sync sets that a broker with many partitions proposes at once, and a change of its session."""

LATE_NS_MAX: Final = 2 * SECOND_NS
"""Time in which nothing of the metadata log reaches a broker with an empty disk."""

JOIN_NS_MAX: Final = 2 * SECOND_NS
"""Time in which a broker that came back is in sync, also with an empty disk."""


class OutageLife:
    """Three brokers with one partition.

    Attributes:
        random: Choices of the seed.
        stage: Its brokers and the histories of what was published.
    """

    def __init__(self, seed: int) -> None:
        """Found the cluster; leaders of partition and metadata are random."""
        self.random = Random(seed)
        self.stage = Stage(seed=seed)
        conditions = self.stage.world.network.conditions
        conditions.delay_ns_min = self.random.choice((200 * MICROSECOND_NS, MILLISECOND_NS))
        conditions.delay_ns_jitter = self.random.choice((0, MILLISECOND_NS))
        self._names = ["A", "B", "C"]
        self._published = 0
        self._do("cluster A B C probes=on")
        self._do(f"create s rf=3 min-isr=2 on={','.join(self._shuffled())}")
        self._do(f"lead {self.random.choice(self._names)}")
        self._publish()
        self.stage.run_for(2 * SECOND_NS)

    def run(self) -> int:
        """Play the life; return the number of its events."""
        for _ in range(ROUNDS):
            self.random.choice((self._outage, self._break))()
            self.stage.run_for(REFILL_NS)
        losses = (self._hang, self._lag, self._lose, self._kill, self._wipe, self._crowd)
        self.random.choice(losses)()
        self._do("settle")
        return self.stage.world.scheduler.event_count

    def _do(self, command: str) -> None:
        act(self.stage, command)

    def _shuffled(self) -> list[str]:
        return self.random.sample(self._names, len(self._names))

    def _publish(self) -> str:
        self._published += 1
        name = f"v{self._published}"
        self._do(f"publish s {name} all later")
        return name

    def _outage(self) -> None:
        """Take NATS away from all, and give it back to one after the other."""
        self._away(self._shuffled(), OUTAGE_NS_MAX, RETURN_NS_MAX)

    def _break(self) -> None:
        """Break the connections of one or two brokers."""
        count = self.random.choice((1, 1, 2))
        self._away(self._shuffled()[:count], BREAK_NS_MAX, BREAK_RETURN_NS_MAX)

    def _away(self, names: Sequence[str], away_ns_max: int, return_ns_max: int) -> None:
        """Take the connections of brokers for a while; nothing else may come of it than a delay."""
        before = self._judged()
        records: list[str] = []
        if self.random.random() < 0.5:
            leader = self._leader()
            for name in self._names if leader in names else names:
                self._do(f"drop {leader}>{name} fetch_reply")
            records.append(self._publish())
            self.stage.run_for(10 * MILLISECOND_NS)
            self._do(f"unlink {' '.join(names)}")
            self._do("deliver")
        else:
            self._do(f"unlink {' '.join(names)}")
        self._return(names, away_ns_max, return_ns_max)
        self._acked(records)
        self.stage.run_for(2 * SECOND_NS)
        self._acked([self._publish()])
        assert self._judged() == before, f"{self._judged()} after an outage, {before} before"

    def _return(self, names: Sequence[str], away_ns_max: int, return_ns_max: int) -> None:
        """Give brokers their connections back after a while, one after the other."""
        self.stage.run_for(self.random.randrange(1, away_ns_max))
        for name in names:
            self._do(f"relink {name}")
            self.stage.run_for(self.random.randrange(1, return_ns_max))

    def _acked(self, records: Sequence[str]) -> None:
        self.stage.run_for(ACK_NS_MAX)
        for record in records:
            fate = looking.fate(self.stage, (record,))
            assert fate == "acked", f"{record} is {fate} after {ACK_NS_MAX // MILLISECOND_NS} ms"

    def _judged(self) -> dict[str, object]:
        """Return what an outage may not change."""
        fences = [looking.told(self.stage, (name, "self_fenced")) for name in self._names]
        return {**self._roles(), "fences": fences}

    def _roles(self) -> dict[str, object]:
        """Return who leads, and which in-sync set this is."""
        state = self.stage.newest("s/0")
        return {
            "leader": state.leader,
            "partition epoch": state.partition_epoch,
            "metadata": self._metadata(),
        }

    def _leader(self) -> str:
        leader = self.stage.newest("s/0").leader
        assert leader is not None
        return leader

    def _lag(self) -> None:
        """Let a follower hang, and take NATS away meanwhile: it is not blamed for both.

        It fences itself when both together last as long as a session; it cannot know better.
        """
        before = self._roles()
        leaders = {self._leader(), self._metadata()[0]}
        name = self.random.choice([name for name in self._names if name not in leaders])
        self._do(f"pause {name}")
        self.stage.run_for(LAG_NS - self.random.randrange(100 * MILLISECOND_NS))
        self._do("unlink")
        self._do(f"resume {name}")
        self._return(self._shuffled(), OUTAGE_NS_MAX, RETURN_NS_MAX)
        self.stage.run_for(2 * SECOND_NS)
        assert self._roles() == before, f"{self._roles()} after an outage, {before} before"

    def _hang(self) -> None:
        """Let the leader hang while the connections of the others break: it is replaced."""
        hanging = self._leader()
        others = " ".join(name for name in self._names if name != hanging)
        pause_ns = self.random.randrange(200, 400) * MILLISECOND_NS
        self._do(f"pause {hanging}")
        until = self.stage.world.now + HANG_NS_MAX
        while self.stage.newest("s/0").leader in {hanging, None}:
            assert self.stage.world.now < until, "the leader that hangs is not replaced"
            self._do(f"unlink {others}")
            self.stage.run_for(GAP_NS)
            self._do(f"relink {others}")
            self.stage.run_for(pause_ns)
        self._do(f"resume {hanging}")

    def _lose(self) -> None:
        """Take all connections of the metadata leader for good: it fences itself, another leads."""
        name, _ = self._metadata()
        self._do(f"unlink {name}")
        self.stage.run_for(FENCE_NS_MAX)
        assert looking.told(self.stage, (name, "self_fenced")) == "1", f"{name} is not fenced"
        assert name not in {self._leader(), self._metadata()[0]}, f"{name} still leads"
        self._do(f"relink {name}")

    def _kill(self) -> None:
        """Kill a broker: another one leads what it led soon, and the rest stays."""
        name = self.random.choice(self._names)
        leader, metadata = self._leader(), self._metadata()
        self._do(f"kill {name}")
        self.stage.run_for(FAILOVER_NS_MAX)
        leaders = {self._leader(), self._metadata()[0]}
        assert leaders.isdisjoint({name, "none"}), f"{name} was killed, and these lead: {leaders}"
        self._do(f"start {name}")
        self.stage.run_for(2 * SECOND_NS)
        assert name == leader or self._leader() == leader, "another leader without need"
        assert name == metadata[0] or self._metadata() == metadata, "an election without need"

    def _wipe(self) -> None:
        """Wipe a broker: it joins again, once, though the log reaches it late, and is in sync."""
        name = self.random.choice(self._names)
        former = self.stage.broker(name).me
        self._do(f"wipe {name}")
        self.stage.run_for(self.random.randrange(FAILOVER_NS_MAX, 2 * SECOND_NS))
        self._do(f"drop *>{name} append")
        self._do(f"start {name}")
        self._join(former, self.random.randrange(1, LATE_NS_MAX))
        self._do("deliver")
        self._join(former, JOIN_NS_MAX)
        assert name in self.stage.newest("s/0").isr, f"{name} is not in sync"

    def _crowd(self) -> None:
        """Let a broker come back to many partitions: their leaders let it in some at a time."""
        self._do(f"create many rf=3 partitions={PARTITIONS}")
        name = self.random.choice(self._names)
        self._do(f"kill {name}")
        self.stage.run_for(2 * SECOND_NS)
        self._do(f"start {name}")
        until = self.stage.world.now + JOIN_NS_MAX
        while self.stage.world.now < until:
            self.stage.run_for(MILLISECOND_NS)
            for leader in set(self._names) - {name}:
                count = self.stage.broker(leader).node.context.metadata.pending_count
                assert count <= PROPOSALS_MAX, f"{leader} awaits {count} answers"
        places = [f"many/{number}" for number in range(PARTITIONS)]
        assert all(name in self.stage.newest(place).isr for place in places), f"without {name}"

    def _join(self, former: Peer, duration_ns: int) -> None:
        """Let time pass, in which the successor of a member, once let in, stays in the group."""
        is_in = False
        until = self.stage.world.now + duration_ns
        while self.stage.world.now < until:
            self.stage.run_for(MILLISECOND_NS)
            leader = self._metadata()[0]
            if leader != "none":
                group = self.stage.broker(leader).consensus
                was_in = is_in
                same = [p for p in (*group.voters, *group.learners) if p.broker == former.broker]
                is_in = any(peer != former for peer in same)
                assert is_in or not was_in, f"{leader} removed the successor of {former}"

    def _metadata(self) -> tuple[str, int]:
        """Return the leader of the metadata, or `none`, and its term."""
        name = looking.metadata(self.stage, ())
        return name, 0 if name == "none" else self.stage.broker(name).consensus.term


def life(seed: int) -> int:
    """Play the life of a seed; return the number of its events."""
    return OutageLife(seed).run()
