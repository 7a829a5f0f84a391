"""The operator's clock is set back by days: everything goes on as if it had not been."""

import pytest

from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.kube.kinds import SERVICES
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, TICK_MS, ReconciledWorld

DAYS_MS = 3 * 86_400_000
PASSES_MAX = 120
MINUTE_PASSES = 60_000 // TICK_MS
FUTURE = ("notAfter", "nextWindow", "expires")
"""Moments of a status that are meant to be ahead."""


class World(ReconciledWorld):
    """Only the operator's clock is set back."""

    back_ms = 0

    @property
    def now_ms(self):
        return self.stage.now - self.back_ms


async def rolling_world():
    world = World()
    await world.until_ready()
    world.create_stream("s", *sorted(world.stage.api.pods)[:3], min_isr=1)
    await world.go_on(8)
    world.edit(lambda spec: spec.update(image="other:1"))
    return world


async def passes_of_a_roll():
    world = await rolling_world()
    before = world.passes
    await world.until_ready()
    return world.passes - before


@pytest.mark.parametrize("share", [0.0, 0.15, 0.3, 0.5, 0.8])
async def test_roll_takes_no_longer_than_what_is_counted_anew(share):
    usual = await passes_of_a_roll()
    world = await rolling_world()
    await world.go_on(int(usual * share))
    world.back_ms = DAYS_MS
    await world.until(lambda: world.is_ready, usual + MINUTE_PASSES)
    assert world.is_ready


def moments_of(value, path=()):
    """Every moment of a status, with where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from moments_of(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from moments_of(inner, path)
    elif isinstance(value, str) and moment_ms(value):
        yield path, moment_ms(value)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_status_says_nothing_of_times_to_come(is_restarted):
    world = World()
    await world.until_ready()
    world.stage.kube.lose_node(world.stage.api.pods["c-1"].node)
    await world.go_on(MINUTE_PASSES)
    world.back_ms = DAYS_MS
    assert world.status["waits"] != []
    if is_restarted:
        world.restart()
    await world.go_on(2)
    ahead = {
        path
        for path, at in moments_of(world.status)
        if at > world.now_ms and not {*FUTURE} & {*path}
    }
    assert ahead == set()


async def test_object_that_was_fought_for_once_is_kept_again():
    world = World()
    await world.until_ready()
    await world.go_on(8)

    async def change(number):
        world.kube.edit(
            SERVICES,
            NAMESPACE,
            "c-internal",
            lambda body: body["spec"]["selector"].update(x=str(number)),
        )
        await world.go_on()

    for number in range(12):
        await change(number)
    assert world.condition("Stalled") == ("True", "Contested")
    world.back_ms = DAYS_MS
    await world.go_on(3 * MINUTE_PASSES)
    assert world.is_ready
    await change("again")
    await world.go_on()
    assert world.is_ready
    assert "x" not in world.kube.look(SERVICES, NAMESPACE, "c-internal")["spec"]["selector"]
