"""An operator who resets positions of a group: after it ended, while members read, and late."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.groups.positions import PositionService
from liftbridge_broker.controller.consumer_groups.commands import DeleteGroup
from liftbridge_broker.model.ids import Instant, PartitionId, number_of
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.named import DEADLINE, GROUPS, Named
from liftbridge_testkit.sim.clients.positions import place_of
from liftbridge_testkit.sim.clients.unary import Unary
from liftbridge_testkit.sim.invariants.access import Act
from liftbridge_testkit.sim.invariants.groups import GroupRules
from liftbridge_testkit.sim.world import World

LATE_RESET: Final = "late reset"
"""Fault: the reset of a position arrives long after the operator saw that nobody reads there."""

LATE_NS_MAX: Final = 3 * SECOND_NS
LATE_PPM: Final = 300_000
ENDS_PPM: Final = 200_000
"""Chance that the operator ends the group first, whose members then join again."""


@dataclass(slots=True)
class Resetter:
    """One operator from `start` until `stop`.

    Attributes:
        group: The group; an incremental one.
        named: Whom the operator acts for, in a world with access rules.
        think_ns: Maximum time between two resets.
    """

    world: World
    calls: Calls
    directory: Directory
    rules: GroupRules
    group: str
    named: Named | None = None
    think_ns: int = 500 * MILLISECOND_NS
    is_stopped: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"resetter {self.world.seed}")

    def start(self) -> None:
        """Begin to reset positions."""
        self._later()

    def stop(self) -> None:
        """Reset nothing more."""
        self.is_stopped = True

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(1, self.think_ns), self._go)

    def _chance(self, ppm: int) -> bool:
        return self._random.randrange(1_000_000) < ppm

    def _go(self) -> None:
        if self.is_stopped:
            return
        if self._chance(ENDS_PPM):
            self._end_group()
        else:
            self._reset_any()
        self._later()

    def _end_group(self) -> None:
        """End the group with all its members, then reset a position."""

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(DeleteGroup(group_id=self.group), now, answer)

        machine = self.directory.any_machine()
        self.calls.call("resetter", machine, serve, lambda _outcome: self._reset_any())

    def _reset_any(self) -> None:
        state = self.directory.state()
        known = () if state is None else state.partitions()
        partitions = [
            one.partition_id for stream, one in known if stream.name not in RESERVED_STREAMS
        ]
        if not partitions:
            return
        partition, delay_ns = self._random.choice(partitions), 0
        if self._chance(LATE_PPM):
            delay_ns = self._random.randrange(LATE_NS_MAX)
            self.world.coverage.count("fault", LATE_RESET)
        self.world.scheduler.after(delay_ns, self._reset, partition)

    def _reset(self, partition: PartitionId) -> None:
        place = place_of(self.world, self.directory, self.group, partition)
        if place is None or self.is_stopped:
            return
        mark = self.rules.next_reset()
        request = groups_pb2.ResetPositionsRequest(group_id=self.group)
        request.positions.add(stream=place.stream, partition=number_of(partition), offset=mark)

        def serve(serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
            self.rules.reset_arrived(mark)

            def stored(outcome: object) -> None:
                if isinstance(outcome, bytes):
                    index = int(serving.node.state.applied_index)
                    self.rules.reset_done(self.group, partition, mark, index)
                answer(outcome)

            if self.named is None:
                unary = Unary(serving.node, now, wall_ns)
                service = PositionService(unary.context())
                call = unary.call(stored, deadline=DEADLINE)
                service.reset(call, request.SerializeToString())
                return
            acts = (
                Act(Operation.DELETE, ResourceKind.GROUP, self.group),
                Act(Operation.DESCRIBE, ResourceKind.STREAM, place.stream),
            )
            self.named.ask(
                serving,
                place.keeper,
                GROUPS + "ResetPositions",
                PositionService(self.named.context(serving)).reset,
                request,
                acts,
                lambda message, code: stored(code or message),
            )

        def answered(outcome: object) -> None:
            is_done = isinstance(outcome, bytes)
            self.world.coverage.count("client", "position reset" if is_done else "reset refused")
            self.world.trace.note(self.world.now, "resetter", str(mark), is_done)

        self.calls.call("resetter", place.keeper, serve, answered)
