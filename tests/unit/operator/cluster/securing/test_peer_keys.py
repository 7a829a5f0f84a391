"""Keys by which brokers recognise one another, kept against an API server in memory.

The model is what brokers do with their file: the first line signs, every line verifies, a file that
cannot be read changes nothing. What must never be is that a broker does not verify what another
one may sign.
"""

import base64
import itertools
from dataclasses import replace
from random import Random

import pytest

from liftbridge_broker.errors import ConfigError
from liftbridge_broker.wire.peer.keys import Keyring, parse_keys
from liftbridge_operator.cluster.reconciling.ports import Served
from liftbridge_operator.cluster.securing.peer_keys import OPEN, PeerKeys, key_id, mounted_keys
from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.errors import UnavailableError
from liftbridge_operator.kube.kinds import SECRETS
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.resources.clusters import (
    NAMESPACE,
    PATHS,
    cluster_of,
    inputs_for,
    load_spec,
)

(PATH,) = [path for path in PATHS if path.stem == "least"]
START = 1_800_000_000
YEAR = 365 * 86_400
ISSUER = CryptographyIssuer()
KEPT, MOUNTED = "orders-internal-ca", "orders-peer-keys"
BROKERS = ("orders-0", "orders-1", "orders-2")
SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "orders", "namespace": NAMESPACE},
}


class World:
    """A keeper, and brokers that read their file when they like."""

    def __init__(self, *, is_running: bool = False) -> None:
        spec = load_spec(PATH)
        self.kube = MemoryKube()
        self.now_s = START
        self.cluster, self.inputs = cluster_of(spec), inputs_for(spec)
        self.keys: dict[str, Keyring] = {}
        self.told: list[str] = []
        self.phase = ""
        numbers = itertools.count()
        self.keeper = SecretStore(
            self.kube,
            ISSUER,
            lambda: self.now_s,
            lambda: "password",
            lambda: f"key-{next(numbers):060}",
        )
        if is_running:
            self.kube.put(SET)
            self.keys = dict.fromkeys(BROKERS, parse_keys(OPEN, "nowhere"))

    async def look(self, *, may_write: bool = True, are_all: bool = True) -> str:
        loaded = {name: keys.key_ids for name, keys in self.keys.items()}
        served = Served(tuple(loaded), {}, loaded, are_all=are_all and len(loaded) == len(BROKERS))
        issued = await self.keeper(
            self.cluster, self.inputs, may_write=may_write, served=served, held={}
        )
        assert not issued.is_waiting
        assert issued.trouble is None
        self.told += [one.reason for one in issued.happened]
        self.phase = issued.certificates.peer_keys
        return self.phase

    def file(self) -> str:
        found = [o for o in self.kube.all_of(SECRETS) if o["metadata"]["name"] == MOUNTED]
        return base64.b64decode(found[0]["data"]["cluster.keys"]).decode() if found else ""

    def read(self, *brokers: str) -> None:
        """Brokers read the file; with a bad one they go on as before, or do not start."""
        for name in brokers or BROKERS:
            try:
                self.keys[name] = parse_keys(self.file(), "nowhere")
            except ConfigError:
                continue

    def check(self) -> None:
        for one, other in itertools.permutations(self.keys.values(), 2):
            assert one.signer in other.entries

    def edit(self, name: str, change: dict[str, str]) -> None:
        (found,) = [o for o in self.kube.all_of(SECRETS) if o["metadata"]["name"] == name]
        data = {key: base64.b64encode(text.encode()).decode() for key, text in change.items()}
        self.kube.put({**found, "data": {**found["data"], **data}})


async def steady() -> World:
    world = World()
    await world.look()
    world.kube.put(SET)
    world.read()
    return world


async def test_new_cluster_signs_from_its_first_message_on() -> None:
    world = await steady()
    assert await world.look() == "Steady"
    keys = world.keys["orders-0"]
    assert keys.signer is not None
    assert not keys.accepts_unsigned


async def test_cluster_that_runs_without_a_key_gets_one_step_by_step() -> None:
    world = World(is_running=True)
    phases = []
    for _ in range(4):
        phases.append(await world.look())
        phases.append(await world.look())
        for broker in BROKERS:
            world.read(broker)
            world.check()
    introducing, removing = "IntroducingKey", "RemovingKey"
    assert phases == [introducing] * 2 + [removing] * 2 + ["Steady"] * 4
    assert not any(keys.accepts_unsigned for keys in world.keys.values())
    assert world.told.count("PeerKeyRotated") == 1


@pytest.mark.parametrize("cause", ["age", "request"])
async def test_key_is_exchanged_when_it_is_old_and_when_somebody_asks(cause: str) -> None:
    world = await steady()
    before = world.file()
    assert await world.look() == "Steady"
    if cause == "age":
        world.now_s += YEAR
    else:
        world.cluster = replace(world.cluster, key_request="after the leak")
    for _ in range(3):
        await world.look()
        world.read()
        world.check()
    assert await world.look() == "Steady"
    assert before.strip() not in world.file()
    after = world.file()
    assert await world.look() == "Steady"
    assert world.file() == after


@pytest.mark.parametrize("lagging", BROKERS)
async def test_step_waits_for_every_broker(lagging: str) -> None:
    world = World(is_running=True)
    await world.look()
    for _ in range(3):
        before = world.file()
        world.read(*(one for one in BROKERS if one != lagging))
        await world.look()
        assert world.file() == before
        world.read(lagging)
        await world.look(are_all=False)
        assert world.file() == before
        await world.look()


async def test_nothing_is_made_for_a_paused_cluster_and_nothing_waits_for_it() -> None:
    world = World(is_running=True)
    await world.look()
    world.kube.remove(SECRETS, NAMESPACE, MOUNTED)
    await world.look(may_write=False)
    assert world.file() == ""


class Life(World):
    """A world in which a person, the API server and the time do what they like."""

    def __init__(self, chance: Random) -> None:
        super().__init__(is_running=chance.random() < 0.5)
        self.chance = chance

    async def attempt(self) -> bool:
        """One pass, which the API server may interrupt; whether it came to its end."""
        if self.chance.random() < 0.2:
            verb = self.chance.choice(["create", "patch"])
            self.kube.fail(UnavailableError("gone"), verb=verb, kind=SECRETS)
        try:
            await self.look(are_all=self.chance.random() < 0.9)
        except UnavailableError:
            return False
        if not self.keys:
            self.kube.put(SET)
            self.read()
        return True

    def read_one(self) -> None:
        if self.keys:
            self.read(self.chance.choice(BROKERS))

    def ask(self) -> None:
        self.cluster = replace(self.cluster, key_request=str(self.chance.random()))

    def grow_old(self) -> None:
        self.now_s += self.chance.choice([60, 30 * 86_400])

    def delete(self) -> None:
        self.kube.remove(SECRETS, NAMESPACE, MOUNTED)

    def damage(self) -> None:
        name, key = self.chance.choice([(KEPT, "peers.key"), (MOUNTED, "cluster.keys")])
        bad = self.chance.choice(["", "short", "two words " * 10, "x\n" * 40])
        self.edit(name, {key: bad})


@pytest.mark.parametrize("seed", range(150))
async def test_every_broker_always_verifies_what_any_other_may_sign(seed: int) -> None:
    """Whatever is deleted, edited, asked for or interrupted meanwhile, and in which order."""
    life = Life(Random(seed))
    while not await life.attempt():
        pass
    for _ in range(80):
        match life.chance.randrange(8):
            case 0 | 1 | 2:
                await life.attempt()
            case 3 | 4 | 5:
                life.read_one()
            case 6:
                life.chance.choice([life.ask, life.grow_old])()
            case _:
                # A person breaks one thing, and the operator mends it before the next.
                life.chance.choice([life.delete, life.damage])()
                while not await life.attempt():
                    life.read_one()
        life.check()
    for _ in range(30):
        await life.attempt()
        life.read()
        life.check()
    assert life.phase == "Steady"
    assert not any(keys.accepts_unsigned for keys in life.keys.values())


def test_operator_and_brokers_name_keys_alike() -> None:
    keys = PeerKeys("a" * 32, coming="b" * 1_024, former=OPEN)
    assert parse_keys(keys.text, "nowhere").key_ids == keys.ids == tuple(map(key_id, keys.lines))


def test_keys_are_in_no_text_about_them() -> None:
    assert "a" * 32 not in repr(PeerKeys("a" * 32, coming="b" * 32))


@pytest.mark.parametrize("text", ["", "open", "short", "a" * 2_000, "a b " * 20, "# nothing\n"])
def test_file_without_a_good_key_tells_nothing(text: str) -> None:
    assert mounted_keys(text) is None
