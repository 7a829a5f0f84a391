"""Calls of clients to brokers, with the semantics of gRPC.

A call takes time both ways. It is answered, refused, or *lost*. A lost call certainly had no effect
only if the broker never received it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol, cast

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.node import Node
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.program import Program
from liftbridge_testkit.sim.world import World

TIMEOUT_NS = 5 * SECOND_NS


class Serving(Program, Protocol):
    """A program that serves clients.

    Attributes:
        node: The broker behind the API.
    """

    node: Node


def serving_on(machine: Machine) -> Serving | None:
    """Return the broker of a machine that accepts requests.

    Only for worlds whose programs serve.
    """
    program = machine.program
    return cast("Serving", program) if program is not None and program.is_ready else None


class Lost(NamedTuple):
    """A call without an answer.

    Attributes:
        is_refused: Whether the broker certainly never received it.
        reason: Why, for the trace.
    """

    is_refused: bool
    reason: str


Answer = Callable[[object], None]
Serve = Callable[[Serving, Instant, int, Answer], None]
"""Serves a call within a turn of the process; answers once, at once or later, or raises."""


@dataclass(slots=True, eq=False)
class _Call:
    """One pending call; it ends once."""

    done: Answer
    client: str
    is_settled: bool = False
    has_arrived: bool = False
    machine: Machine | None = None


@dataclass(slots=True)
class Calls:
    """Carries calls in one world.

    Attributes:
        delay_ns_min: Least time one way.
        delay_ns_jitter: Maximum random addition.
    """

    world: World
    random: Random = field(init=False)
    delay_ns_min: int = 100 * MICROSECOND_NS
    delay_ns_jitter: int = 1 * MILLISECOND_NS

    def __post_init__(self) -> None:
        self.random = self.world.new_random()

    def call(
        self,
        client: str,
        machine: Machine,
        serve: Serve,
        done: Answer,
        *,
        timeout_ns: int = TIMEOUT_NS,
    ) -> None:
        """Call a broker.

        Args:
            client: Caller, as named in cuts of links.
            machine: Target.
            serve: Handler of the broker; refusals may be raised.
            done: Gets the answer, a `LiftbridgeError` for a refusal, or `Lost`; once.
            timeout_ns: Time after which the client gives up.
        """
        call = _Call(done, client)
        scheduler = self.world.scheduler
        scheduler.after(timeout_ns, self._settle, call, Lost(is_refused=False, reason="timeout"))
        scheduler.after(self._delay(), self._arrive, call, machine, serve)

    def _delay(self) -> int:
        return self.delay_ns_min + self.random.randrange(self.delay_ns_jitter + 1)

    def _arrive(self, call: _Call, machine: Machine, serve: Serve) -> None:
        if call.is_settled or self.world.network.is_cut(call.client, machine.name):
            return
        if machine.program is None:
            self._answer(call, machine, Lost(is_refused=True, reason="connection refused"))
            return
        call.machine = machine
        machine.ended[call] = lambda: self._lose(call, machine)
        machine.turn(machine.incarnation, self._serve, call, machine, serve)

    def _serve(self, call: _Call, machine: Machine, serve: Serve) -> None:
        # A client that gives up cancels its call; the broker drops it if it learns in time.
        if call.is_settled and self.random.randrange(2):
            return
        program = serving_on(machine)
        call.has_arrived = True
        if program is None:
            self._answer(call, machine, Lost(is_refused=True, reason="not ready"))
            return
        try:
            serve(
                program,
                machine.now(),
                machine.wall_ns(),
                lambda outcome: self._answer(call, machine, outcome),
            )
        except LiftbridgeError as error:
            self._answer(call, machine, error)

    def _answer(self, call: _Call, machine: Machine, outcome: object) -> None:
        """Send the answer back; it is lost if the link is cut."""
        self.world.scheduler.after(self._delay(), self._deliver, call, machine, outcome)

    def _deliver(self, call: _Call, machine: Machine, outcome: object) -> None:
        if not self.world.network.is_cut(machine.name, call.client):
            self._settle(call, outcome)

    def _lose(self, call: _Call, machine: Machine) -> None:
        """Handle the end of the process. Answers it sent before may still arrive first."""
        lost = Lost(is_refused=not call.has_arrived, reason="connection lost")
        self._answer(call, machine, lost)

    def _settle(self, call: _Call, outcome: object) -> None:
        if not call.is_settled:
            call.is_settled = True
            if call.machine is not None:
                call.machine.ended.pop(call, None)
            call.done(outcome)
