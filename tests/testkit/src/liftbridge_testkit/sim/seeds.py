"""Run seeds one after the other: draw the world, run it, and report it."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import process_time
from traceback import format_exception
from typing import Protocol

from liftbridge_testkit.sim.cluster_life import make_cluster_life, make_shapes_life
from liftbridge_testkit.sim.life import Turns
from liftbridge_testkit.sim.lone_life import make_lone_life
from liftbridge_testkit.sim.trace import Sink, Trace
from liftbridge_testkit.sim.voter_life import make_group_life
from liftbridge_testkit.sim.world import World

TAIL_LINES = 60
COLLECTING = (50_000, 50, 50)
"""Thresholds of the garbage collector.

A run leaves few cycles, and searching took a tenth of the time.
"""


class Run(Protocol):
    """A run of any kind of world."""

    world: World
    turns: Turns

    def run(self) -> None:
        """Run all phases; raise for a broken promise."""
        ...


WORLDS: Mapping[str, Callable[[int, Trace], Run]] = {
    "lone": make_lone_life,
    "group": make_group_life,
    "cluster": make_cluster_life,
    "shapes": make_shapes_life,
}
"""Kinds of worlds."""

TURN = ("cluster", "group", "shapes", "lone", "cluster")
"""Kinds for seeds of a range without a kind, in turn; most are whole clusters."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Outcome of one seed.

    Attributes:
        seed: The seed.
        kind: Kind of world.
        events: Turns of processes.
        virtual_ns: Simulated time.
        seconds: CPU time.
        trace_hash: Hash of everything that happened.
        counts: Counts of events; see `Coverage`.
        failure: Failure, with the last lines of the trace; empty for none.
    """

    seed: int
    kind: str
    events: int
    virtual_ns: int
    seconds: float
    trace_hash: str
    counts: Mapping[tuple[str, str], int]
    failure: str = ""


def kind_of(seed: int) -> str:
    """Return the kind of world of a seed without a given kind."""
    return TURN[seed % len(TURN)]


def seed_range(text: str) -> range:
    """Parse `a:b` as the seeds from a to b - 1, or `a` as one seed."""
    first, colon, end = text.partition(":")
    return range(int(first), int(end)) if colon else range(int(first), int(first) + 1)


def replay_command(seed: int, kind: str) -> str:
    """Return the command that repeats a seed."""
    return f"python -m liftbridge_testkit.sim --replay {seed} --world {kind} --verbose"


def run_seed(
    seed: int,
    kind: str = "",
    sink: Sink | None = None,
    prepare: Callable[[World], None] | None = None,
) -> SeedResult:
    """Run one seed until its end or its failure.

    Args:
        seed: Seed of all random choices.
        kind: Kind of world, of `WORLDS`; empty takes the seed's own.
        sink: Receives every line of the trace; `None` keeps only the last ones.
        prepare: Changes the world before it begins, for tests of the simulator that break it on
            purpose.
    """
    kind = kind or kind_of(seed)
    trace = Trace(sink)
    began = process_time()
    life = WORLDS[kind](seed, trace)
    if prepare is not None:
        prepare(life.world)
    failure = ""
    thresholds = gc.get_threshold()
    gc.set_threshold(*COLLECTING)
    try:
        life.run()
    except Exception as error:  # noqa: BLE001 - whatever a seed breaks is told, with the seed
        # The last frames show the place; the chain of callbacks above them shows little.
        lines = format_exception(error)
        text = "".join(lines[-4:]) if sink is None else "".join(lines)
        tail = "\n".join(trace.tail(TAIL_LINES)) if sink is None else ""
        failure = (
            f"seed {seed} ({kind}): {type(error).__name__}: {error}\n{tail}\n{text}"
            f"replay: {replay_command(seed, kind)}"
        )
    finally:
        gc.set_threshold(*thresholds)
    return SeedResult(
        seed,
        kind,
        life.turns.count,
        life.world.now,
        process_time() - began,
        trace.hash,
        dict(life.world.coverage.counts),
        failure,
    )
