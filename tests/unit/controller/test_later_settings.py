"""A setting that an older broker cannot read is refused before it is in the metadata."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.checks import check_readable
from liftbridge_broker.controller.commands import FEATURE_LEVEL
from liftbridge_broker.errors import FailedPreconditionError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.streams import StreamOverrides, levels_needed
from liftbridge_testkit.controller_world import ControllerWorld

LATER = StreamOverrides(ack_reply=False)


@pytest.fixture
def world() -> ControllerWorld:
    return ControllerWorld()


def brokers_of(world: ControllerWorld, *levels: int) -> None:
    for number, level in enumerate(levels):
        world.register(f"b{number}", feature_level=level)


def test_setting_waits_until_every_broker_can_read_it(world: ControllerWorld) -> None:
    brokers_of(world, FEATURE_LEVEL, 2)
    text = "Invalid ack_reply: broker b1 is too old to know it, upgrade all brokers first"
    with pytest.raises(FailedPreconditionError, match=text):
        check_readable(LATER, world.state.brokers.values())
    check_readable(StreamOverrides(min_isr=1), world.state.brokers.values())
    brokers_of(world, FEATURE_LEVEL, FEATURE_LEVEL)
    check_readable(LATER, world.state.brokers.values())


def test_broker_that_was_removed_need_not_read_it(world: ControllerWorld) -> None:
    brokers_of(world, FEATURE_LEVEL, 2)
    old = BrokerId("b1")
    world.state.brokers[old] = replace(world.state.brokers[old], removed=True)
    check_readable(LATER, world.state.brokers.values())


def test_no_setting_needs_a_level_that_this_version_does_not_know() -> None:
    assert levels_needed(LATER) == {"ack_reply": 3}
    assert max(levels_needed(LATER).values()) <= FEATURE_LEVEL
