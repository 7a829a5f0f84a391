"""Whatever is refused is asked for ever less often, and holds up nothing beside it.

Each kind of object that the operator writes, and each Secret with a certificate that is due.
"""

import base64
import itertools

import pytest

from liftbridge_operator.kube.errors import ForbiddenError
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PROMETHEUS_RULES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
)
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, ReconciledWorld
from liftbridge_testkit.operator_sim.secured import ISSUER, RENEWAL_MS, SPEC, secret_store

PASSES = 48
TRIES_MAX = 6
"""In two minutes with pauses that double: at once, after 5, 15, 35 and 75 seconds, and slack."""
WORDS = 'admission webhook "rule.example" denied the request: no'
KINDS = (
    SERVICES,
    SERVICE_ACCOUNTS,
    NETWORK_POLICIES,
    BUDGETS,
    SERVICE_MONITORS,
    PROMETHEUS_RULES,
)


class World(ReconciledWorld):
    """With real Secrets."""

    def restart(self, kube=None):
        self.issue = secret_store(self)
        return super().restart(kube)

    def refuse(self, is_refused):
        """Writes are refused from now on; when they are asked for, by name."""
        asked = {}

        def admit(_verb, body):
            if is_refused(body):
                asked.setdefault(body["metadata"]["name"], []).append(self.now_ms)
                raise ForbiddenError(WORDS, status=403)

        self.kube.admit = admit
        return asked

    def began_ms(self, name):
        """From when the certificate of a Secret is valid."""
        data = self.kube.look(SECRETS, NAMESPACE, name)["data"]
        return ISSUER.describe(base64.b64decode(data["tls.crt"]))[0].not_before_s * 1_000


async def ready_world():
    world = World(SPEC)
    await world.until_ready()
    await world.go_on(8)
    assert world.is_ready
    return world


def are_ever_rarer(asked):
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    return len(asked) > 2 and gaps == sorted(gaps) and len(asked) <= TRIES_MAX


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
async def test_refused_object_is_asked_for_ever_less_often(kind):
    world = await ready_world()
    asked = world.refuse(lambda body: body["kind"] == kind.kind)
    for name in world.kube.names_of(kind):
        world.kube.remove(kind, NAMESPACE, name)
    await world.go_on(PASSES)
    assert asked != {}
    assert [name for name, moments in asked.items() if not are_ever_rarer(moments)] == []


async def test_refused_token_of_a_restart_is_asked_for_ever_less_often():
    world = await ready_world()
    world.annotate(**{"restart-pods": world.status["brokers"][1]["podUID"]})
    asked = world.refuse(lambda body: body["kind"] == CONFIG_MAPS.kind)
    await world.go_on(PASSES)
    assert [name for name, moments in asked.items() if not are_ever_rarer(moments)] == []
    assert world.condition("Stalled") == ("True", "AdmissionDenied")
    world.kube.admit = None
    await world.until_ready()


LEAVES = ("c-internal", "c-operator", "c-tls")


@pytest.mark.parametrize("refused", LEAVES)
async def test_refused_secret_is_asked_for_ever_less_often_and_holds_up_no_other(refused):
    world = await ready_world()
    before = {name: world.began_ms(name) for name in LEAVES}
    asked = world.refuse(lambda body: body["metadata"]["name"] == refused)
    world.stage.now += RENEWAL_MS
    await world.go_on(2)
    renewed = {name for name in LEAVES if world.began_ms(name) != before[name]}
    assert renewed == {*LEAVES} - {refused}
    assert world.condition("Stalled") == ("True", "AdmissionDenied")
    await world.go_on(PASSES)
    assert are_ever_rarer(asked[refused])
    assert world.condition("Stalled") == ("True", "AdmissionDenied")
    world.kube.admit = None
    await world.until_ready()
    assert world.began_ms(refused) > before[refused]
