"""What access control and encryption need is asked for before a broker starts with them."""

import base64
import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftbridge_broker.adapters.identity.jwt_keys import read_keys
from liftbridge_broker.adapters.keys.local import local_keys
from liftbridge_broker.errors import ConfigError
from liftbridge_operator.cluster.observing.prerequisites import (
    FILE_BYTES_MAX,
    fault_of_master_keys,
    fault_of_public_keys,
    unmet,
)
from liftbridge_operator.cluster.planning.observation import Metadata
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.operator_sim.reconciled import NAMESPACE, ReconciledWorld

KEY: Final = "ab" * 32
LINE: Final = f"main {KEY}\n"
PUBLIC: Final = (
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
    "-----END PUBLIC KEY-----\n"
)
SET: Final = json.dumps(
    {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}
)
ENCRYPTED: Final[dict[str, Any]] = {
    "encryption": {"masterKeys": {"name": "keys", "key": "master.keys"}, "newStreams": True}
}
GUARDED: Final[dict[str, Any]] = {
    "tls": {"mode": "Generated"},
    "listeners": [{"name": "internal", "tls": True}],
    "access": {
        "enabled": True,
        "superUsers": ["ops"],
        "jwt": {
            "issuer": "https://a.example",
            "audience": "liftbridge",
            "keys": {"configMapKeyRef": {"name": "public", "key": "jwks.json"}},
        },
    },
}
BASE: Final = {
    "version": "0.1.0",
    "nats": {"embedded": {}},
    "storage": {"data": {"size": "1Gi"}},
}


def secret(text: str | bytes, name: str = "keys", key: str = "master.keys") -> dict[str, Any]:
    raw = text if isinstance(text, bytes) else text.encode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {key: base64.b64encode(raw).decode()},
    }


def config_map(text: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "public", "namespace": NAMESPACE},
        "data": {"jwks.json": text},
    }


async def lacking(
    changes: dict[str, Any], *objects: dict[str, Any], level: int | None = 4
) -> tuple[str, ...]:
    kube = MemoryKube()
    for body in objects:
        kube.put(body)
    spec = ClusterSpec.model_validate(BASE | changes)
    known = Metadata("id", "c-0", 1, (), (), ())
    known = replace(known, feature_level=level or 0)
    return await unmet(kube, NAMESPACE, spec, known if level is not None else None)


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ([], "Secret keys does not exist"),
        ([secret(LINE, key="other")], "Secret keys has no key master.keys"),
        ([secret("")], "Secret keys has no key master.keys"),
        ([secret(b"\xff")], "Secret keys has a key master.keys that is not text"),
        (
            [secret("#" * (FILE_BYTES_MAX + 1))],
            f"Secret keys has a key master.keys of more than {FILE_BYTES_MAX} bytes",
        ),
        (
            [secret(f"{LINE}secret-part\n")],
            "Secret keys, key master.keys, line 2 must be an id and a key, separated by a blank",
        ),
    ],
)
async def test_a_secret_that_brokers_could_not_use_is_named(
    objects: list[dict[str, Any]], told: str
) -> None:
    assert await lacking(ENCRYPTED, *objects) == (f"spec.encryption.masterKeys: {told}",)


async def test_nothing_lacks_when_everything_is_there() -> None:
    assert await lacking({}) == ()
    assert await lacking(ENCRYPTED, secret(LINE)) == ()
    for text in (SET, PUBLIC):
        assert await lacking(GUARDED, config_map(text)) == ()


async def test_authorities_of_clients_must_exist() -> None:
    tls = {"mode": "Generated", "clientAuth": "Optional", "clientCA": {"name": "ca", "key": "ca"}}
    assert await lacking({"tls": tls}) == ("spec.tls.clientCA: Secret ca does not exist",)
    told = await lacking({"tls": tls}, secret("none", name="ca", key="ca"))
    assert told == ("spec.tls.clientCA: Secret ca, key ca, holds no certificate in PEM form",)


@pytest.mark.parametrize(
    ("changes", "field"),
    [(GUARDED, "access"), (ENCRYPTED, "encryption")],
)
async def test_a_level_that_is_too_low_is_told_and_how_to_raise_it(
    changes: dict[str, Any], field: str
) -> None:
    objects = secret(LINE), config_map(SET)
    assert await lacking(changes, *objects, level=3) == (
        f"spec.{field}: needs feature level 4, and 3 is in force: set spec.featureLevel to 4",
    )
    # Without a leader no broker is restarted anyway.
    assert await lacking(changes, *objects, level=None) == ()


def _brokers_take(read: Any, *given: str) -> bool:
    try:
        read(*given)
    except ConfigError:
        return False
    return True


LINES = st.lists(
    st.one_of(
        st.sampled_from(["", "# note", LINE.strip(), f"env-1 {'ab' * 16}", f"env-1 {'ab' * 8}"]),
        st.builds(
            "{}{}{}".format,
            st.text("ab\t -", max_size=6),
            st.sampled_from([" ", "  ", ""]),
            st.sampled_from([KEY, KEY[:-2], f"{KEY}0", "xy" * 32, f"{KEY} more", ""]),
        ),
    ),
    min_size=1,
    max_size=18,
).map("\n".join)


@given(LINES)
@example("\n".join(f"id-{number} {KEY}" for number in range(17)))
@example(f"{'i' * 256} {KEY}")
@example(f"\x01 {KEY}")
def test_master_keys_are_refused_as_brokers_refuse_them(text: str) -> None:
    fault = fault_of_master_keys(text)
    has_any = any(line.split() and line.split()[0][0] != "#" for line in text.splitlines())
    assert (fault == "") == (has_any and _brokers_take(local_keys, text, "file", ""))
    assert KEY not in fault


@pytest.mark.parametrize(
    "text",
    [
        SET,
        PUBLIC,
        "",
        "{}",
        "[]",
        '{"keys": []}',
        '{"keys": [1]}',
        PUBLIC.replace("PUBLIC", "PRIVATE"),
    ],
)
def test_public_keys_are_refused_as_brokers_refuse_them(text: str, tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    assert (fault_of_public_keys(text) == "") == _brokers_take(read_keys, str(file), "setting")


# -- what the operator does about it -----------------------------------------------------------


def why(world: ReconciledWorld) -> str:
    """Return the message of the condition `Stalled`."""
    told = (one for one in world.status["conditions"] if one["type"] == "Stalled")
    return str(next(told)["message"])


async def test_no_broker_restarts_before_its_keys_exist() -> None:
    world = ReconciledWorld()
    await world.until_ready()
    world.edit(lambda spec: spec.update(ENCRYPTED))
    await world.go_on(20)
    assert world.kube.deletions == []
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert "spec.encryption.masterKeys: Secret keys does not exist" in why(world)
    world.kube.put(secret(LINE))
    await world.until_ready()
    assert {"c-0", "c-1", "c-2"} <= {one.name for one in world.kube.deletions}


async def test_no_broker_restarts_into_a_level_without_access_rules() -> None:
    world = ReconciledWorld()
    world.kube.put(config_map(SET))
    world.stage.brokers.feature_level = 3
    await world.until_ready()
    world.edit(lambda spec: spec.update(GUARDED))
    await world.go_on(20)
    assert world.kube.deletions == []
    assert "set spec.featureLevel to 4" in why(world)
    world.stage.brokers.feature_level = 4
    await world.until_ready()
    assert world.kube.deletions != []
