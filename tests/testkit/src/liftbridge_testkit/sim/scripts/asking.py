"""The verb of clients that query logs; answers are checked against known facts."""

from collections.abc import Callable, Sequence

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_testkit.sim.clients.askers import (
    LATER_THAN_ALL,
    Asker,
    AskerPlan,
    Inquiry,
    Kind,
)
from liftbridge_testkit.sim.clients.calls import Lost
from liftbridge_testkit.sim.scripts.publishing import leader_of, outcome_of
from liftbridge_testkit.sim.scripts.stage import Stage, split_options

NEWEST = "NEWEST"
"""The end from `FetchPartitionMetadata`; every other word is the name of a `Kind`."""


def _inquire(stage: Stage, words: Sequence[str]) -> list[str]:
    """`inquire q s/0 END|NEWEST|TIME|FORWARD|... [at=A] [replica] [later]`: see `Inquiry`.

    It queries the whole log: from the first offset, or up to a time that is later than all.
    """
    (name, place, what, *rest), options = split_options(words)
    life = stage.life
    parts = stage.world, life.calls, life.directory, life.history, stage.answers
    asker = Asker(*parts, AskerPlan(place.partition("/")[0], 1), 0)
    asked = stage.answers.ask(name, stage.newest(place).partition_id)
    kind = Kind.END if what == NEWEST else Kind[what]
    wanted = asked.known_end if kind is Kind.BACKWARD_FROM else 0
    timestamp = LATER_THAN_ALL if kind is Kind.TIME else 0
    inquiry = Inquiry(asker, asked, kind, wanted, timestamp, as_replica="replica" in rest)
    inquiry.is_newest = what == NEWEST
    stage.outcomes.pop(name, None)

    def ended(outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            stage.outcomes[name] = f"refused: {outcome.text}"
        elif isinstance(outcome, Lost):
            stage.outcomes[name] = f"lost: {outcome.reason}"
        else:
            stage.outcomes[name] = _told(stage, inquiry)

    asker.put(inquiry, stage.machine(leader_of(stage, place, options)), ended)
    return [] if "later" in rest else outcome_of(stage, (name,))


def _told(stage: Stage, inquiry: Inquiry) -> str:
    if inquiry.kind is Kind.END:
        return str(inquiry.end)
    if inquiry.kind is Kind.TIME:
        return str(inquiry.place)
    names = {write.name: name for name, write in stage.writes.items()}
    given = sorted(inquiry.given.items())
    return f"[{' '.join(names.get(value, '?') for _, value in given)}]"


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {"inquire": _inquire}
