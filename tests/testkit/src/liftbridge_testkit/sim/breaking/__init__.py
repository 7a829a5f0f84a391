"""Kinds of faults by name; `sim/faults.py` draws from them."""

from collections.abc import Callable, Mapping

from liftbridge_testkit.sim.breaking.disks import DISKS
from liftbridge_testkit.sim.breaking.links import LINKS
from liftbridge_testkit.sim.breaking.parts import Breaking, Undo
from liftbridge_testkit.sim.breaking.processes import PROCESSES

KINDS: Mapping[str, Callable[[Breaking], Undo | None]] = {**PROCESSES, **LINKS, **DISKS}
