"""How long a stop waits for a metadata leader, by what is known of the other voters."""

import pytest

from liftbridge_broker.controller.commands import ShutDownBroker
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.node.metadata.leader_wait import HOPELESS_NS, LEADERLESS_NS, leader_wait_ns
from liftbridge_testkit.controller_world import ControllerWorld


def voters(names: str) -> list[Peer]:
    return [Peer(BrokerId(name), f"dir-{name}") for name in names]


@pytest.mark.parametrize(
    ("stopping", "fenced", "wait"),
    [
        ("a", "", LEADERLESS_NS),
        ("ab", "", LEADERLESS_NS),
        ("abc", "", HOPELESS_NS),
        ("ab", "c", HOPELESS_NS),
        ("a", "bc", HOPELESS_NS),
    ],
)
def test_stop_waits_only_while_a_majority_may_stay(stopping: str, fenced: str, wait: int) -> None:
    world = ControllerWorld()
    world.start("abc")
    for name in stopping:
        world.ok(ShutDownBroker(broker=BrokerId(name), broker_epoch=world.epoch(name)))
    for name in fenced:
        world.fence(name)

    assert leader_wait_ns(world.state, voters("abc"), BrokerId("a")) == wait


def test_voters_that_are_no_brokers_yet_do_not_stay() -> None:
    world = ControllerWorld()
    world.start("a")

    assert leader_wait_ns(world.state, voters("abc"), BrokerId("a")) == HOPELESS_NS
    assert leader_wait_ns(world.state, voters("a"), BrokerId("a")) == LEADERLESS_NS
