"""Renewal of certificates and exchange of authorities, by a model that carries out each step."""

from dataclasses import dataclass, field, replace

import pytest

from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.cluster.certificates.rotation import (
    BACKDATED_S,
    IssueLeaf,
    MakeAuthority,
    Phase,
    PublishBundle,
    RemoveAuthority,
    State,
    Step,
    SwitchAuthority,
    Terms,
    next_step,
)

HOUR = 3_600
TERMS = Terms(2_160 * HOUR, 720 * HOUR, 24 * HOUR, 87_600 * HOUR)
NAMES = ("*.brokers", "localhost")

NOTHING = State(
    authority=None,
    coming=None,
    former=None,
    leaf=None,
    bundle=(),
    published_s=0,
    names=NAMES,
    has_bundle_everywhere=False,
    has_leaf_everywhere=False,
)


@dataclass
class World:
    """Secrets, and brokers that read them when they are told to.

    Attributes:
        trusted: Fingerprints that each broker trusts.
        shown: Leaf that each broker shows.
    """

    now_s: int = 1_000_000
    state: State = field(default_factory=lambda: NOTHING)
    trusted: list[tuple[str, ...]] = field(default_factory=lambda: [(), (), ()])
    shown: list[Known | None] = field(default_factory=lambda: [None, None, None])
    made: int = 0
    phases: list[Phase] = field(default_factory=list)

    def seen(self) -> State:
        leaf = self.state.leaf
        return replace(
            self.state,
            has_bundle_everywhere=all(one == self.state.bundle for one in self.trusted),
            has_leaf_everywhere=all(one == leaf for one in self.shown),
        )

    def turn(self) -> object:
        verdict = next_step(self.seen(), TERMS, self.now_s)
        if not self.phases or self.phases[-1] != verdict.phase:
            self.phases.append(verdict.phase)
        if verdict.step is not None:
            self.carry_out(verdict.step)
        self.check()
        return verdict.step

    def carry_out(self, step: Step) -> None:
        state = self.state
        match step:
            case MakeAuthority():
                made = self.known(step.not_before_s, step.not_after_s)
                own = replace(made, issuer_key_id=made.key_id)
                if step.is_next:
                    self.state = replace(state, coming=own, is_asked=False)
                else:
                    self.state = replace(state, authority=own, is_asked=False)
            case PublishBundle():
                self.state = replace(state, bundle=step.fingerprints, published_s=self.now_s)
            case SwitchAuthority():
                self.state = replace(
                    state, authority=state.coming, coming=None, former=state.authority
                )
            case IssueLeaf():
                made = self.known(step.not_before_s, step.not_after_s)
                assert state.authority is not None
                self.state = replace(
                    state,
                    leaf=replace(made, issuer_key_id=state.authority.key_id, names=step.names),
                )
            case RemoveAuthority():
                self.state = replace(state, former=None)

    def known(self, not_before_s: int, not_after_s: int) -> Known:
        self.made += 1
        return Known(f"f{self.made}", f"k{self.made}", "", not_before_s, not_after_s)

    def read(self, broker: int) -> None:
        """A broker reads the Secret again."""
        self.trusted[broker] = self.state.bundle
        self.shown[broker] = self.state.leaf

    def check(self) -> None:
        """Whatever any broker shows, every broker that reads Secrets at all trusts."""
        known = {one.key_id: one.fingerprint for one in self.authorities()}
        for leaf in self.shown:
            if leaf is None:
                continue
            signer = known.get(leaf.issuer_key_id)
            assert signer is not None, "the authority of a leaf that is shown was forgotten"
            assert all(signer in trusted for trusted in self.trusted if trusted)

    def authorities(self):
        return [one for one in (self.state.authority, self.state.coming, self.state.former) if one]

    def settle(self, turns: int = 60) -> None:
        for _ in range(turns):
            step = self.turn()
            for broker in range(3):
                self.read(broker)
            if step is None and self.phases[-1] is Phase.STEADY:
                return
        pytest.fail(f"not settled: {self.phases[-8:]}")


@pytest.fixture
def world() -> World:
    found = World()
    found.settle()
    found.phases.clear()
    return found


def test_beginning_makes_authority_bundle_and_leaf():
    found = World()
    found.settle()
    assert found.phases == [
        Phase.MAKING_AUTHORITY,
        Phase.PUBLISHING_BUNDLE,
        Phase.ISSUING,
        Phase.STEADY,
    ]
    leaf = found.state.leaf
    assert leaf is not None
    assert leaf.names == NAMES
    assert leaf.not_before_s == found.now_s - BACKDATED_S
    assert leaf.not_after_s == found.now_s + TERMS.duration_s


def test_nothing_is_done_until_the_time_it_says(world):
    verdict = next_step(world.seen(), TERMS, world.now_s)
    assert verdict.step is None
    assert next_step(world.seen(), TERMS, verdict.look_s - 1).step is None
    assert isinstance(next_step(world.seen(), TERMS, verdict.look_s).step, IssueLeaf)


def test_new_name_is_in_the_certificate_before_anything_else(world):
    world.state = replace(world.state, names=(*NAMES, "192.0.2.7"))
    step = world.turn()
    assert isinstance(step, IssueLeaf)
    assert "192.0.2.7" in step.names


def test_name_that_is_gone_issues_nothing(world):
    world.state = replace(world.state, names=NAMES[:1])
    assert world.turn() is None


def exchange(world, *, overlap_s=TERMS.overlap_s):
    """Begin an exchange and wait until the overlap has passed."""
    world.state = replace(world.state, is_asked=True)
    for _ in range(2):
        world.turn()
    world.now_s += overlap_s


def test_exchange_of_an_authority_goes_step_by_step(world):
    exchange(world)
    world.settle()
    assert world.phases == [
        Phase.INTRODUCING_AUTHORITY,
        Phase.PUBLISHING_BUNDLE,
        Phase.WAITING_FOR_BUNDLE,
        Phase.SWITCHING_AUTHORITY,
        Phase.ISSUING,
        Phase.REMOVING_AUTHORITY,
        Phase.PUBLISHING_BUNDLE,
        Phase.STEADY,
    ]
    assert world.state.bundle == (world.state.authority.fingerprint,)


def test_authority_does_not_sign_before_everybody_trusts_it(world):
    exchange(world)
    world.read(0)
    world.read(1)
    for _ in range(10):
        assert world.turn() is None
    assert world.phases[-1] is Phase.WAITING_FOR_BUNDLE
    world.read(2)
    assert isinstance(world.turn(), SwitchAuthority)


def test_authority_does_not_sign_before_the_overlap_has_passed(world):
    exchange(world, overlap_s=TERMS.overlap_s - 1)
    for broker in range(3):
        world.read(broker)
    assert world.turn() is None
    world.now_s += 1
    assert isinstance(world.turn(), SwitchAuthority)


def test_former_authority_stays_while_somebody_shows_its_leaf(world):
    exchange(world)
    for broker in range(3):
        world.read(broker)
    world.turn()
    world.turn()
    world.read(0)
    world.read(1)
    for _ in range(10):
        assert world.turn() is None
    assert world.phases[-1] is Phase.WAITING_FOR_CERTIFICATE
    world.read(2)
    assert isinstance(world.turn(), RemoveAuthority)


def test_authority_is_exchanged_while_it_outlives_every_leaf(world):
    first = world.state.authority
    for _ in range(200):
        world.now_s += 500 * HOUR
        advance(world)
        assert world.state.leaf.not_after_s > world.now_s
        assert world.state.leaf.not_after_s <= world.state.authority.not_after_s
    assert world.state.authority != first


def advance(world):
    """Turns with time passing, until nothing is left to do."""
    for _ in range(60):
        step = world.turn()
        for broker in range(3):
            world.read(broker)
        if step is None and world.phases[-1] is Phase.STEADY:
            return
        world.now_s += HOUR
    pytest.fail(f"not settled: {world.phases[-8:]}")


def test_authority_that_ended_while_nobody_looked_is_exchanged_without_waiting(world):
    world.now_s = world.state.authority.not_after_s + 1
    for _ in range(8):
        world.turn()
    assert Phase.WAITING_FOR_BUNDLE not in world.phases
    assert world.state.leaf.not_after_s > world.now_s
