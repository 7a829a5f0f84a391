"""An administrator that changes streams, settings and pauses at random moments.

It proposes commands to a random broker as the API does. Streams named by the plan are never
deleted. The administrator creates and deletes its own streams under few names, so that names are
used again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPlan:
    """Behaviour of the administrator.

    Attributes:
        streams: Streams that always exist and may be altered, paused, made read-only.
        passing: Names of streams that it creates and deletes.
        replication_factor: Replication factor of streams it creates.
        think_ns: Longest pause between commands.
        operations: Its operations, of `OPERATIONS`.
    """

    streams: tuple[str, ...]
    passing: tuple[str, ...] = ("x", "y")
    replication_factor: int = 1
    think_ns: int = 2 * SECOND_NS
    operations: tuple[str, ...] = ()


@dataclass(slots=True)
class Admin:
    """One administrator from `start` until `stop`, which leaves all streams usable."""

    world: World
    calls: Calls
    directory: Directory
    plan: AdminPlan
    is_stopped: bool = False
    _random: Random = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._random = self.world.new_random()

    def start(self) -> None:
        """Begin."""
        if self.plan.operations:
            self._later()

    def stop(self) -> None:
        """Stop proposing."""
        self.is_stopped = True

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(self.plan.think_ns + 1), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        name = self._random.choice(self.plan.operations)
        self.propose(name, OPERATIONS[name](self))
        self._later()

    def propose(self, name: str, command: Command, done: Answer | None = None) -> None:
        """Propose a command to a random broker."""
        self._count += 1

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(command, now, answer)

        def answered(outcome: object) -> None:
            is_done = not isinstance(outcome, LiftbridgeError | Lost)
            kind = "admin" if is_done else "admin refused"
            self.world.coverage.count(kind, name)
            self.world.trace.note(self.world.now, "admin", name, is_done)
            if done is not None:
                done(outcome)

        self.calls.call("admin", self.directory.any_machine(), serve, answered)

    # Operations.

    def _any_stream(self) -> StreamName:
        return StreamName(self._random.choice(self.plan.streams + self.plan.passing))

    def create(self) -> Command:
        """Create a temporary stream."""
        name = self._random.choice(self.plan.passing)
        return CreateStream(
            name=StreamName(name),
            subject=f"sub.{name}",
            partitions=self._random.choice((1, 1, 3)),
            replication_factor=self.plan.replication_factor,
            creation_timestamp=self._count,
        )

    def delete(self) -> Command:
        """Delete a temporary stream."""
        return DeleteStream(name=StreamName(self._random.choice(self.plan.passing)))

    def alter(self) -> Command:
        """Change segment sizes and ages."""
        overrides = StreamOverrides(
            segment_bytes_max=self._random.choice((500, 2_000, 100_000)),
            segment_age_ms_max=self._random.choice((0, 300)),
        )
        return AlterStream(name=self._any_stream(), overrides=overrides)

    def pause(self) -> Command:
        """Pause a stream; the next publish to it resumes it."""
        return PauseStream(name=self._any_stream(), resume_all=bool(self._random.randrange(2)))

    def resume(self) -> Command:
        """Resume a stream."""
        return ResumeStream(name=self._any_stream())

    def readonly(self) -> Command:
        """Make a temporary stream read-only, or writable."""
        name = StreamName(self._random.choice(self.plan.passing))
        return SetReadonly(name=name, readonly=bool(self._random.randrange(2)))


OPERATIONS: dict[str, Callable[[Admin], Command]] = {
    "create": Admin.create,
    "delete": Admin.delete,
    "alter": Admin.alter,
    "pause": Admin.pause,
    "resume": Admin.resume,
    "readonly": Admin.readonly,
}
