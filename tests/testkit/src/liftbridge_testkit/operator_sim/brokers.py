"""Model of a broker cluster: its metadata group, in-sync sets, catching up, and records as numbers.

There is one metadata state, available while a majority of the voters runs on their voting
directories. Logs are on disks, and disks belong to claims. A record is acknowledged once all
in-sync replicas have it, and there are enough of them. Replicas leave the in-sync set when they are
away and join it with all records.
"""

from dataclasses import dataclass, field
from random import Random

from liftbridge_operator.cluster.planning.observation import Member
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_testkit.operator_sim.errors import ApiError, InvariantError

SESSION_MS = 3_000
Key = tuple[str, int]


@dataclass(slots=True)
class Disk:
    """A data directory on the volume of a claim."""

    dir_id: str
    founding: tuple[Member, ...] = ()
    cluster_id: str = ""
    has_metadata: bool = False
    is_retired: bool = False
    logs: dict[Key, int] = field(default_factory=dict)


@dataclass(slots=True)
class Process:
    """A broker process in a pod."""

    broker: str
    start_id: str
    disk: Disk
    since_ms: int
    is_stopping: bool = False
    is_registered: bool = False
    level: int = 1


@dataclass(slots=True)
class Registration:
    """A broker in the metadata."""

    dir_id: str
    start_id: str
    epoch: int
    is_fenced: bool = False
    is_cordoned: bool = False
    is_draining: bool = False
    is_stopping: bool = False
    seen_ms: int = 0
    away_since_ms: int = 0
    level: int = 1


@dataclass(slots=True)
class Replicas:
    """A partition."""

    key: Key
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader: str
    min_isr: int
    epoch: int = 1
    target: tuple[str, ...] = ()
    acked: int = 0
    out_since: dict[str, int] = field(default_factory=dict)
    led_since: int = 0


@dataclass(slots=True)
class Consent:
    """A token: state of a broker when it consented to a restart."""

    broker: str
    start_id: str
    dir_id: str
    expires_ms: int
    held: dict[Key, int]
    in_sync: tuple[Key, ...]


class Brokers:
    """All brokers and their metadata.

    Attributes:
        histories: Lists of founders that a cluster was formed with; more than one is a disaster.
        feature_level: Feature level in force.
        catch_up_rate: Bytes per second that each leader may send to replicas that are moved.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0
        self.disks: dict[str, Disk] = {}
        self.processes: dict[str, Process] = {}
        self.cluster_id = ""
        self.histories: list[tuple[Member, ...]] = []
        self.members: dict[Member, bool] = {}
        self.match: dict[Member, int] = {}
        self.leader = ""
        self.term = 0
        self.index = 0
        self.registered: dict[str, Registration] = {}
        self.partitions: dict[Key, Replicas] = {}
        self.tokens: dict[str, Consent] = {}
        self.feature_level = 1
        self.catch_up_rate = 0
        self._ids = 0

    # -- processes ----------------------------------------------------------------------------

    def new_disk(self, claim_uid: str) -> None:
        """An empty volume."""
        self._ids += 1
        self.disks[claim_uid] = Disk(f"dir-{self._ids}")

    def start(self, broker: str, start_id: str, claim_uid: str, level: int = 1) -> None:
        """Start a process; a retired directory becomes an empty directory with another id.

        Args:
            broker: Name of the broker.
            start_id: Id of the start.
            claim_uid: Claim of its volume.
            level: Latest feature level that it knows.
        """
        disk = self.disks[claim_uid]
        if broker in self.processes:
            raise InvariantError(f"two processes of {broker} at once")
        if disk.is_retired:
            self._ids += 1
            self.disks[claim_uid] = disk = Disk(f"dir-{self._ids}")
        self.processes[broker] = Process(broker, start_id, disk, self.now, level=level)

    def known_level(self) -> int:
        """Return the latest feature level that every broker knows, by its last registration."""
        return min((one.level for one in self.registered.values()), default=1)

    def kill(self, broker: str) -> None:
        """Kill a process."""
        self.processes.pop(broker, None)

    def stop(self, broker: str) -> None:
        """Stop a process in order: leaderships transferred, out of the in-sync sets, fenced."""
        process = self.processes.pop(broker, None)
        if process is None or not self.has_quorum_with(process):
            return
        known = self.registered.get(broker)
        if known is not None and known.start_id == process.start_id:
            self._fence(broker, known)
        self._elect_controller()

    def has_quorum_with(self, process: Process) -> bool:
        """Return whether the group had a quorum while a process was still running."""
        alive = self.alive_voters()
        me = Member(process.broker, process.disk.dir_id)
        count = len(alive) + (me in self.members and self.members[me] and me not in alive)
        return bool(self.histories) and 2 * count > self.voter_count

    # -- the metadata group -------------------------------------------------------------------

    @property
    def voter_count(self) -> int:
        """Number of voters."""
        return sum(self.members.values())

    def is_alive(self, member: Member) -> bool:
        """Return whether a member runs on its own directory."""
        process = self.processes.get(member.broker)
        return process is not None and process.disk.dir_id == member.data_dir_id

    def alive_voters(self) -> list[Member]:
        """Return the running voters."""
        return [one for one, votes in self.members.items() if votes and self.is_alive(one)]

    @property
    def has_quorum(self) -> bool:
        """Return whether the metadata can be changed."""
        return bool(self.histories) and 2 * len(self.alive_voters()) > self.voter_count

    def _elect_controller(self) -> None:
        alive = self.alive_voters()
        if not self.has_quorum:
            self.leader = ""
        elif self.leader not in {one.broker for one in alive}:
            self.term += 1
            near = [one for one in alive if self.index - self.match.get(one, 0) <= 100] or alive
            self.leader = self.rng.choice(near).broker

    def bootstrap(self, broker: Member, cluster_id: str, founders: tuple[Member, ...]) -> None:
        """Send Bootstrap to one broker."""
        process = self.processes.get(broker.broker)
        if process is None:
            raise ApiError(504, f"{broker.broker} does not answer")
        disk = process.disk
        if disk.founding:
            if disk.founding != founders:
                raise ApiError(409, "founded with another list")
            return
        me = Member(broker.broker, disk.dir_id)
        if disk.has_metadata or me not in founders:
            raise ApiError(409, "the directory is not empty, or not listed")
        disk.founding, disk.has_metadata, disk.cluster_id = founders, True, cluster_id
        self._form()

    def _form(self) -> None:
        """Form the cluster once a majority of some founders runs and received Bootstrap."""
        for process in self.processes.values():
            founders, cluster_id = process.disk.founding, process.disk.cluster_id
            told = sum(
                1
                for one in self.processes.values()
                if Member(one.broker, one.disk.dir_id) in founders and one.disk.founding == founders
            )
            if not founders or founders in self.histories or 2 * told <= len(founders):
                continue
            self.histories.append(founders)
            if len(self.histories) > 1:
                raise InvariantError(f"a second history: {self.histories}")
            self.cluster_id = cluster_id
            self.members = dict.fromkeys(founders, True)
            self.match = dict.fromkeys(founders, 0)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Advance everything that happens automatically."""
        self.now = now
        if not self.histories:
            self._form()
        self._elect_controller()
        if self.has_quorum:
            self.index += self.rng.randrange(20)
            self._sessions()
            self._elections()
            self._moves()
        self._records()
        for member in self.members:
            if self.is_alive(member) and self.has_quorum:
                behind = self.index - self.match.get(member, 0)
                self.match[member] = self.index - (behind // 2 if behind > 60 else 0)

    def _sessions(self) -> None:
        for broker, process in self.processes.items():
            disk = process.disk
            if self.now - process.since_ms < 1_000:
                continue
            if not process.is_registered:
                self._register(broker, process, disk)
            self.registered[broker].seen_ms = self.now
        for broker, known in self.registered.items():
            is_late = self.now - known.seen_ms >= SESSION_MS
            if is_late and broker not in self.processes and not known.is_fenced:
                self._fence(broker, known)

    def _register(self, broker: str, process: Process, disk: Disk) -> None:
        disk.has_metadata, disk.cluster_id = True, self.cluster_id
        process.is_registered = True
        known = self.registered.get(broker)
        self._ids += 1
        if known is not None and known.dir_id != disk.dir_id:
            for partition in self.partitions.values():
                if broker in partition.isr and len(partition.isr) > 1:
                    self._leave(partition, broker)
        keeps = known is not None
        self.registered[broker] = Registration(
            disk.dir_id,
            process.start_id,
            self._ids,
            is_cordoned=keeps and known.is_cordoned,  # type: ignore[union-attr]  # `keeps`
            is_draining=keeps and known.is_draining,  # type: ignore[union-attr]  # `keeps`
            seen_ms=self.now,
            level=process.level,
        )
        me = Member(broker, disk.dir_id)
        if me not in self.members and not disk.is_retired and self.rng.random() < 0.5:
            self.members[me] = False
            self.match[me] = 0

    def _fence(self, broker: str, known: Registration) -> None:
        known.is_fenced, known.away_since_ms = True, self.now
        for partition in self.partitions.values():
            # Without another replica it may still lead, because it has all records.
            if broker in partition.isr and any(
                self.is_up(name) for name in partition.isr if name != broker
            ):
                self._leave(partition, broker)
        self._elections()

    def _leave(self, one: Replicas, broker: str) -> None:
        one.isr = tuple(name for name in one.isr if name != broker)
        one.out_since[broker] = self.now
        one.epoch += 1

    def is_up(self, broker: str) -> bool:
        """Return whether a broker serves: registered from its current directory, and not fenced."""
        process, known = self.processes.get(broker), self.registered.get(broker)
        return (
            process is not None
            and known is not None
            and process.is_registered
            and not known.is_fenced
            and known.dir_id == process.disk.dir_id
        )

    def _elections(self) -> None:
        for partition in self.partitions.values():
            if (
                partition.leader
                and self.is_up(partition.leader)
                and partition.leader in partition.isr
            ):
                continue
            able = [
                name for name in partition.replicas if name in partition.isr and self.is_up(name)
            ]
            able = [name for name in able if self.end(name, partition.key) >= partition.acked]
            leader = able[0] if able else ""
            if leader != partition.leader:
                partition.leader, partition.led_since = leader, self.now
                partition.epoch += 1

    def end(self, broker: str, key: Key) -> int:
        """Return the log end of a partition at a running broker."""
        process = self.processes.get(broker)
        return process.disk.logs.get(key, 0) if process is not None else 0

    def _records(self) -> None:
        for partition in self.partitions.values():
            if not partition.leader or not self.is_up(partition.leader):
                continue
            logs = self.processes[partition.leader].disk.logs
            if len(partition.isr) >= min(partition.min_isr, len(partition.replicas)):
                logs[partition.key] = logs.get(partition.key, 0) + self.rng.randrange(4)
            end = logs.get(partition.key, 0)
            is_held = True
            for name in partition.isr:
                process = self.processes.get(name)
                if process is None or (self.registered[name].dir_id != process.disk.dir_id):
                    is_held = False
                else:
                    process.disk.logs[partition.key] = end
            if is_held and len(partition.isr) >= min(partition.min_isr, len(partition.replicas)):
                partition.acked = end
            if self.has_quorum:
                self._catch_up(partition, end)

    def _catch_up(self, one: Replicas, end: int) -> None:
        for name in one.replicas:
            if name in one.isr or not self.is_up(name):
                continue
            logs = self.processes[name].disk.logs
            have = min(logs.get(one.key, 0), end)
            logs[one.key] = min(end, have + self.rng.randrange(1 + end))
            if logs[one.key] == end and self.rng.random() < 0.6:
                one.isr = (*one.isr, name)
                one.epoch += 1

    def _moves(self) -> None:
        draining = {name for name, one in self.registered.items() if one.is_draining}
        for partition in self.partitions.values():
            leaving = [name for name in partition.replicas if name in draining]
            if leaving and not partition.target:
                places = [
                    name
                    for name, known in sorted(self.registered.items())
                    if name not in partition.replicas and not known.is_cordoned and self.is_up(name)
                ]
                if places:
                    place = self.rng.choice(places)
                    target = tuple(
                        place if name == leaving[0] else name for name in partition.replicas
                    )
                    self.reassign(partition.key, target, partition.epoch)
            if partition.target and set(partition.target) <= set(partition.isr):
                self._complete(partition)

    def _complete(self, one: Replicas) -> None:
        for name in set(one.replicas) - set(one.target):
            process = self.processes.get(name)
            if process is not None:
                process.disk.logs.pop(one.key, None)
        one.replicas, one.target = one.target, ()
        one.isr = tuple(name for name in one.isr if name in one.replicas)
        one.epoch += 1
        self._elections()

    # -- calls --------------------------------------------------------------------------------

    def reassign(self, key: Key, target: tuple[str, ...], epoch: int) -> None:
        """Begin to move a partition."""
        one = self.partitions.get(key)
        if one is None or one.epoch != epoch or one.target:
            raise ApiError(409, f"partition {key} has changed")
        if not target or len(set(target)) != len(target):
            raise ApiError(409, "not a list of replicas")
        added = tuple(name for name in target if name not in one.replicas)
        one.replicas, one.target = (*one.replicas, *added), target
        for name in added:
            one.out_since[name] = self.now
        one.epoch += 1

    def transfer_leaders(self, broker: str, to: str = "") -> None:
        """Transfer leaderships of a broker if others can lead; an absent broker has none."""
        if not self.is_up(broker):
            return
        for partition in self.partitions.values():
            heirs = [
                name
                for name in partition.isr
                if name != broker and self.is_up(name) and to in ("", name)
            ]
            if partition.leader == broker and heirs and self.rng.random() < 0.9:
                end = self.end(broker, partition.key)
                partition.leader, partition.led_since = self.rng.choice(heirs), self.now
                self.processes[partition.leader].disk.logs[partition.key] = end
                partition.epoch += 1

    def elect_preferred(self, keys: tuple[Key, ...]) -> None:
        """Elect first replicas that can lead."""
        for key in keys:
            one = self.partitions.get(key)
            first = one.replicas[0] if one is not None else ""
            if one is None or first not in one.isr or not self.is_up(first):
                continue
            if one.leader != first and self.is_up(one.leader):
                self.processes[first].disk.logs[key] = self.end(one.leader, key)
                one.leader, one.led_since = first, self.now
                one.epoch += 1

    def retire(self, member: Member) -> None:
        """Mark an empty directory as retired."""
        process = self.processes.get(member.broker)
        if process is None or process.disk.dir_id != member.data_dir_id:
            raise ApiError(409, "another directory")
        if self.members.get(member) or self.holds(member.broker):
            raise ApiError(409, "it has a vote or replicas")
        process.disk.is_retired = True

    def holds(self, broker: str) -> bool:
        """Return whether a broker has replicas."""
        return any(broker in partition.replicas for partition in self.partitions.values())

    def check_restart(
        self, broker: str, start_id: str, *, accepts: bool
    ) -> tuple[str, int, tuple[str, ...]]:
        """Return a token, its expiry and the blockers, as decided by the broker itself."""
        process = self.processes.get(broker)
        if process is None or process.start_id != start_id or not self.is_up(broker):
            raise ApiError(504, f"{broker} does not answer")
        against = []
        for name, known in self.registered.items():
            if name != broker and known.is_stopping:
                against.append(f"{name} is stopping")
        for partition in self.partitions.values():
            others = set(partition.replicas) - {broker}
            if broker in partition.replicas and others - set(partition.isr):
                against.append(f"{partition.key} is not in sync")
            if broker in partition.replicas and not others and not accepts:
                against.append(f"{partition.key} has one replica")
        if against:
            return "", 0, tuple(against)
        self._ids += 1
        text, expires = f"token-{self._ids}", self.now + 60_000
        logs = process.disk.logs
        mine = [partition for partition in self.partitions.values() if broker in partition.replicas]
        held = {one.key: min(one.acked, logs.get(one.key, 0)) for one in mine}
        in_sync = tuple(one.key for one in mine if broker in one.isr)
        self.tokens[text] = Consent(broker, start_id, process.disk.dir_id, expires, held, in_sync)
        return text, expires, ()

    def missing(self, text: str) -> tuple[str, ...] | None:
        """Return the records that a restarted broker lacks; None on another directory."""
        consent = self.tokens[text]
        process = self.processes.get(consent.broker)
        if process is None or not self.is_up(consent.broker):
            raise ApiError(504, f"{consent.broker} does not answer")
        if process.disk.dir_id != consent.dir_id:
            return None
        found = []
        if process.start_id == consent.start_id:
            found.append("it was not restarted")
        for key, end in consent.held.items():
            one = self.partitions.get(key)
            if one is None or consent.broker not in one.replicas:
                continue
            if key in consent.in_sync and consent.broker not in one.isr:
                found.append(f"{key} is not in sync")
            elif process.disk.logs.get(key, 0) < end:
                found.append(f"{key} lacks records")
        return tuple(found)

    # -- judgement ----------------------------------------------------------------------------

    def check_acked(self) -> None:
        """Check that every acknowledged record is on the disk of an in-sync replica.

        Raises:
            InvariantError: A record is missing.
        """
        ends: dict[str, Disk] = {disk.dir_id: disk for disk in self.disks.values()}
        for partition in self.partitions.values():
            if not partition.acked:
                continue
            for name in partition.isr:
                known = self.registered.get(name)
                disk = ends.get(known.dir_id) if known is not None else None
                if disk is not None and disk.logs.get(partition.key, 0) >= partition.acked:
                    break
            else:
                raise InvariantError(
                    f"{partition.key}: acknowledged records up to {partition.acked} are lost"
                )

    def founders_alive(self) -> list[str]:
        """Return the names of voters that run, in order."""
        return sorted((voter.broker for voter in self.alive_voters()), key=ordinal_of)
