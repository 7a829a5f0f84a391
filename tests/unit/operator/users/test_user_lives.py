"""Random lives of a user: whatever fails in between, what brokers keep is what it should be.

Moves are those of people, of time, and of everything that fails. The operator never ends the token
that the Secret has, never takes away what somebody else granted, and leaves nothing at its end.
"""

from random import Random

import pytest

from liftbridge_operator.kube.errors import ForbiddenError, UnavailableError
from liftbridge_operator.kube.kinds import SECRETS, USERS
from liftbridge_operator.model.user import Operation
from liftbridge_operator.users import rules as rules_
from liftbridge_operator.users.resources import resource_of
from liftbridge_operator.users.secrets import TOKEN_KEY, files_of, token_id_of
from liftbridge_testkit.users_memory import rule
from liftbridge_testkit.users_world import UserWorld

LIVES = 10
STEPS = 25
LIFETIME_S = 3_600
OVERLAP_S = LIFETIME_S // 3
OPERATIONS = (Operation.PUBLISH, Operation.READ, Operation.CREATE)


class Life:
    """A user in a world, with what other people granted."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = UserWorld()
        self.world.cluster()
        self.foreign = rules_.rules_of(())
        self.is_refusing = False
        self.world.kube.admit = self._admit
        self.world.brokers.watch_revocations(self._revoking)

    def _revoking(self, token_id: str) -> None:
        if self.exists and not self.is_ending:
            live = self.world.kube.look(SECRETS, "shop", "billing")
            held = token_id_of(files_of(live).get(TOKEN_KEY, b""))
            assert token_id != held, "the token in the Secret is ended"

    def _admit(self, _verb, body):
        if self.is_refusing and body["kind"] == "Secret":
            raise ForbiddenError("secrets is forbidden", status=403)

    @property
    def exists(self):
        return self.world.kube.look(USERS, "shop", "billing") is not None

    @property
    def is_ending(self):
        body = self.world.kube.look(USERS, "shop", "billing")
        return "deletionTimestamp" in body["metadata"]

    def _spec(self):
        named = self.rng.sample(("orders", "events*", "shop.>.x"), self.rng.randint(0, 3))
        access = [
            {
                "resource": "Stream",
                "name": name,
                "operations": self.rng.sample(("Publish", "Read", "Create"), 2),
                "effect": self.rng.choice(("Allow", "Deny")),
            }
            for name in named
        ]
        quotas = self.rng.choice((None, {"streams": 1}, {"readBytes": "1M", "streams": 2}))
        return {"access": access, "quotas": quotas}

    # -- moves --------------------------------------------------------------------------------

    async def create(self):
        if not self.exists:
            given = {key: value for key, value in self._spec().items() if value is not None}
            self.world.user(authentication={"token": {"lifetime": f"{LIFETIME_S}s"}}, **given)

    async def change(self):
        if self.exists:
            self.world.change(**self._spec())

    async def delete(self):
        if self.exists:
            await self.world.delete()

    async def grant_by_hand(self):
        made = rule(self.rng.choice(("orders", "events*")), self.rng.choice(OPERATIONS))
        body = self.world.kube.look(USERS, "shop", "billing")
        ledger = resource_of(body).granted if body else {}
        new = rules_.minus(rules_.minus(made, self.world.brokers.rules.get("billing", {})), ledger)
        self.foreign = rules_.plus(self.foreign, new)
        self.world.brokers.grant("billing", made)

    async def revoke_by_hand(self):
        made = rule(self.rng.choice(("orders", "events*")), self.rng.choice(OPERATIONS))
        self.foreign = rules_.minus(self.foreign, made)
        self.world.brokers.revoke("billing", made)

    async def revoke_a_token_by_hand(self):
        held = sorted(self.world.brokers.held)
        if held:
            del self.world.brokers.held[self.rng.choice(held)]

    async def lose_the_secret(self):
        if self.world.kube.look(SECRETS, "shop", "billing") is not None:
            self.world.kube.remove(SECRETS, "shop", "billing")

    async def restart(self):
        self.world.restart()

    async def fail(self):
        what = self.rng.randrange(4)
        brokers = self.world.brokers
        brokers.is_silent, brokers.loses_answers = what == 0, what == 1
        self.is_refusing = what == 2
        if what == 3:
            error = UnavailableError("no answer")
            self.world.kube.fail(error, self.rng.choice(("apply_status", "patch", "create")))

    async def heal(self):
        brokers = self.world.brokers
        brokers.is_silent = brokers.loses_answers = self.is_refusing = False

    async def wait(self):
        await self.settle(self.rng.choice((10, 60, 600, LIFETIME_S)))

    async def settle(self, seconds=0.0):
        try:
            await self.world.settle(seconds)
        except UnavailableError:  # the dispatcher tries again
            self.world.restart()
        if not self.exists:  # the garbage collector comes
            await self.lose_the_secret()

    # -- what holds ---------------------------------------------------------------------------

    def check(self):
        present = self.world.brokers.rules.get("billing", {})
        assert rules_.minus(self.foreign, present) == {}, "a rule of somebody else is gone"

    async def check_healthy(self):
        """Check what holds once nothing fails any more."""
        await self.heal()
        for _ in range(3):
            await self.settle(120)
        brokers, now = self.world.brokers, self.world.now_s()
        if not self.exists:
            assert brokers.rules.get("billing", {}) == self.foreign
            assert (brokers.quotas, brokers.valid("billing")) == ({}, set())
            return
        assert await self.world.reason() == "Reconciled"
        body = await self.world.body()
        wanted = rules_.rules_of(resource_of(body).spec.access)
        assert brokers.rules.get("billing", {}) == rules_.plus(wanted, self.foreign)
        held = await self.world.token()
        assert held in brokers.valid("billing")
        late = [one for one in brokers.held.values() if one.expires_s > now + OVERLAP_S]
        assert {one.token_id for one in late} <= {held}

    async def live(self):
        moves = (
            *(self.create, self.create, self.change, self.delete, self.grant_by_hand),
            *(self.revoke_by_hand, self.revoke_a_token_by_hand, self.lose_the_secret),
            *(self.restart, self.fail, self.fail, self.heal, self.wait, self.wait),
        )
        for _ in range(STEPS):
            await self.rng.choice(moves)()
            await self.settle()
            self.check()
            if self.rng.random() < 0.15:
                await self.check_healthy()
        await self.check_healthy()
        await self.delete()
        await self.check_healthy()


@pytest.mark.parametrize("seed", range(LIVES))
async def test_life_of_a_user_ends_clean(seed):
    life = Life(seed)
    await life.live()
    assert not life.exists
