"""Port between a kind of fault and its world."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.disk import LOG_FILES
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

Undo = Callable[[], None]


class Atlas(Protocol):
    """Decides which losses keep within the promise, and knows the most important replicas."""

    def may_lose(self, machine: Machine) -> bool:
        """Return whether this machine may lose its unsynced data now."""
        ...

    def may_refuse_reads(self, machine: Machine) -> bool:
        """Return whether the data of this machine may become unreadable now."""
        ...

    def may_damage(self, machine: Machine) -> bool:
        """Return whether durable bytes of this machine may be damaged or wiped now."""
        ...

    def may_replace(self, machine: Machine) -> bool:
        """Return whether an already damaged disk may be replaced by an empty one now."""
        ...

    def leading(self) -> list[Machine]:
        """Return the machines that consider themselves leader of the group or of a partition."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Fault kinds of a run.

    Attributes:
        kinds: Names of kinds, of `KINDS`.
        pace_ns: Longest time between two faults.
        duration_ns: Longest time a fault lasts.
        restart_ns: Longest time until an ended process is started again.
        down_max: Machines that may be without a process, or paused, at a time.
        rot_files: Number of files to damage; the process restarts afterwards.
    """

    kinds: tuple[str, ...]
    pace_ns: int = SECOND_NS
    duration_ns: int = 3 * SECOND_NS
    restart_ns: int = 2 * SECOND_NS
    down_max: int = 1
    rot_files: str = LOG_FILES


class Breaking(Protocol):
    """Port to the world for a kind of fault."""

    world: World
    plan: FaultPlan
    atlas: Atlas
    random: Random

    def any_running(self) -> Machine | None:
        """Return a machine whose process runs and is not paused, if one more may be down."""
        ...

    def any_leading(self) -> Machine | None:
        """Return a machine that leads a partition; `None` when none may go down."""
        ...

    def any_coordinating(self) -> Machine | None:
        """Return a machine that coordinates a consumer group; `None` when none may go down."""
        ...

    def any_machine(self) -> Machine:
        """Return any machine, running or not."""
        ...

    def pair(self) -> tuple[str, str] | None:
        """Return two machines, if there are two."""
        ...


def nothing() -> None:
    """No-op end of a fault that happens at once."""
