"""Rounds of a group whose members and coordinator come and go, on real brokers."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_client import Ack, LiftbridgeError, Outgoing, connect_sync
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_proto.ext.v1.groups_pb2_grpc import GroupsStub
from liftbridge_testkit.consumers.members import PATIENCE_SECONDS, MemberProcess
from liftbridge_testkit.load import Worker
from liftbridge_testkit.processes import ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from liftbridge_testkit.cluster import ClusterKit
    from liftbridge_testkit.consumers.history import History
    from liftbridge_testkit.consumers.members import Program

STREAM: Final = "consumed"
GROUP: Final = "readers"
PARTITIONS: Final = 16
SESSION_SECONDS: Final = 2
MEMBERS_MIN: Final = 2
MEMBERS_MAX: Final = 5
PUBLISH_SECONDS: Final = 0.1
"""Time between two messages of a partition: how exactly an owner's return is measured."""

STEADY_SECONDS: Final = 0.5
"""Time in which each member sends a heartbeat: a member of a classic group that has not said since
the last change that it is there may be silent for longer."""

CALL_SECONDS: Final = 2.0
CONFIG: Final = {
    "cursors.stream.partitions": 4,
    "groups.consumer.timeout": f"{SESSION_SECONDS}s",
    "groups.coordinator.timeout": f"{SESSION_SECONDS}s",
}
KINDS: Final = {"join": 3, "leave": 2, "kill": 4, "coordinator": 1}
"""What happens in a round, with weights."""


class Publisher(Worker):
    """Publishes to all partitions, all the time."""

    def __init__(self, servers: str, history: History) -> None:
        super().__init__("publisher")
        self._servers = servers
        self._history = history

    def run(self) -> None:
        """Publish until stopped."""
        batch = [Outgoing(b"value", partition=number) for number in range(PARTITIONS)]
        with connect_sync(self._servers) as lb:
            while not self._stopping.is_set():
                try:
                    with lb.streams.get(STREAM).publisher(
                        ack_policy="all", idempotent=True
                    ) as sender:
                        while not self._stopping.wait(PUBLISH_SECONDS):
                            for result in sender.publish_batch(batch):
                                if not isinstance(result, Ack):
                                    raise result
                                self._history.acked(result.partition, result.offset)
                            self._succeeded()
                except LiftbridgeError:
                    self._stopping.wait(PUBLISH_SECONDS)


class Rounds:
    """A group on a cluster.

    Attributes:
        assigned_seconds: For each member that was killed, the time until its partitions were
            others', as the brokers tell.
        given_seconds: For each partition of each member that was killed, the time until another
            one was given it.
        owner_seconds: The same until another one read it.
    """

    def __init__(
        self,
        cluster: ClusterKit,
        program: Program,
        history: History,
        work_dir: Path,
        random: Random,
    ) -> None:
        self._cluster = cluster
        self._program = program
        self._history = history
        self._work_dir = work_dir
        self._random = random
        self._members: list[MemberProcess] = []
        self._made_count = 0
        self.servers = ",".join(broker.address for broker in cluster.brokers.values())
        self.assigned_seconds: list[float] = []
        self.given_seconds: list[float] = []
        self.owner_seconds: list[float] = []

    def create(self) -> None:
        """Create the stream."""
        with connect_sync(self.servers) as lb:
            lb.streams.create(STREAM, partitions=PARTITIONS, replication=3)

    def begin(self) -> None:
        """Start the first members."""
        for _ in range(MEMBERS_MIN):
            self._join()

    def draw(self) -> str:
        """Choose what happens in a round."""
        count = len(self._members)
        kinds = {
            kind: weight
            for kind, weight in KINDS.items()
            if (kind != "join" or count < MEMBERS_MAX)
            and (kind not in ("leave", "kill") or count > MEMBERS_MIN)
        }
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        return kind

    def play(self, kind: str) -> None:
        """Play a round of a kind, and wait until all partitions are read again.

        Raises:
            ProcessError: They are not in time, or a member ended by itself.
        """
        moment = monotonic()
        if kind == "join":
            self._join()
        elif kind == "coordinator":
            self._kill_coordinator()
        else:
            self._lose_member(kind)
        self._await_all(moment)
        self._until(self._is_settled, "members and readers are the processes")
        self._await_all(monotonic() + STEADY_SECONDS)

    def _lose_member(self, kind: str) -> None:
        victim = self._members.pop(self._random.randrange(len(self._members)))
        owned = [one for one, who in self._history.owners().items() if who == victim.number]
        moment = monotonic()
        if kind == "leave":
            victim.leave()
            return
        victim.kill()
        self._until(lambda: self._is_replaced(victim), f"expiry of {victim.name}")
        self.assigned_seconds.append(monotonic() - moment)
        self._await_all(moment)
        living = frozenset(member.number for member in self._members)
        for one in owned:
            given = self._history.given_since(one, moment, living)
            read = self._history.read_since(one, moment, living)
            assert given is not None
            assert read is not None
            self.given_seconds.append(given - moment)
            self.owner_seconds.append(read - moment)

    def end(self) -> None:
        """Wait until everything is read, then let all members leave."""
        self._until(lambda: not self._history.missing_count(), "all messages read")
        for member in self._members:
            member.leave()

    def close(self) -> None:
        """Kill what runs."""
        for member in self._members:
            if member.is_alive:
                member.kill()

    def _join(self) -> None:
        """Start a member and wait until it reads a partition."""
        self._made_count += 1
        number = self._made_count
        log = self._work_dir / f"member-{number}.log"
        place = self.servers, GROUP, STREAM
        self._members.append(MemberProcess(number, self._program, place, self._history, log))
        self._until(lambda: number in self._history.owners().values(), f"a partition of {number}")

    def _described(self) -> groups_pb2.DescribeGroupResponse | None:
        """Return the group, as all brokers tell that answer; `None` while they do not agree."""
        request, found = groups_pb2.DescribeGroupRequest(group_id=GROUP), []
        for broker in self._cluster.living:
            with broker.channel() as channel, suppress(grpc.RpcError):
                stub = GroupsStub(channel)  # type: ignore[no-untyped-call] # generated
                found.append(stub.DescribeGroup(request, timeout=CALL_SECONDS))
        return found[0] if found and all(one == found[0] for one in found) else None

    def _is_replaced(self, victim: MemberProcess) -> bool:
        """Return whether others hold all partitions."""
        group = self._described()
        others = [one for one in group.members if one.member_id != victim.name] if group else []
        held = [len(held.partitions) for one in others for held in one.held]
        return sum(held) == PARTITIONS

    def _is_settled(self) -> bool:
        """Return whether the processes are the members, and act on the latest group epoch.

        One that does not may be about to lose its membership, which is not what is measured next.
        """
        group, epochs = self._described(), self._history.epochs()
        return (
            group is not None
            and {one.member_id for one in group.members} == {one.name for one in self._members}
            and epochs <= {0, group.group_epoch}
        )

    def _has_coordinator(self, *, but: str) -> bool:
        """Return whether another broker coordinates."""
        group = self._described()
        return group is not None and group.coordinator != but

    def _kill_coordinator(self) -> None:
        """Kill the broker that coordinates; it starts again when another does."""
        for broker in self._cluster.living:
            self._cluster.until(broker.is_ready, f"{broker.name} is ready")
        broker = self._cluster[self._coordinator()]
        broker.kill()
        self._until(lambda: self._has_coordinator(but=broker.name), "another coordinator")
        broker.spawn()
        self._await_all(monotonic())

    def _coordinator(self) -> str:
        found = ""

        def is_known() -> bool:
            nonlocal found
            group = self._described()
            found = "" if group is None else group.coordinator
            return bool(found)

        self._until(is_known, "a coordinator")
        return found

    def _await_all(self, moment: float) -> None:
        """Wait until living members have read all partitions after a moment."""
        living = frozenset(member.number for member in self._members)
        waiting = set(range(PARTITIONS))

        def are_read() -> bool:
            read = (one for one in waiting if self._history.read_since(one, moment, living))
            waiting.difference_update(list(read))
            return not waiting

        self._until(are_read, "readers of all partitions")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            ProcessError: It did not in time, or a member ended by itself.
        """
        deadline = monotonic() + PATIENCE_SECONDS
        while not condition():
            if not all(member.is_alive for member in self._members):
                raise ProcessError("a member ended by itself; its output is beside the logs")
            if monotonic() > deadline:
                raise ProcessError(f"not {what} after {PATIENCE_SECONDS} s")
            sleep(0.02)
