"""The operator stays allowed to call the brokers that it gives access control."""

from typing import Any

from liftbridge_operator.cluster.rendering.settings import config_text
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

BASE = load_spec(next(path for path in PATHS if path.stem == "embedded"))


def config_of(extra: dict[str, str]) -> str:
    given: dict[str, Any] = BASE.model_dump(mode="json")
    given["config"]["extra"] = extra
    spec = ClusterSpec.model_validate(given)
    return config_text(cluster_of(spec), inputs_for(spec))


def test_the_operator_is_a_super_user_of_brokers_with_access_control() -> None:
    enabled = {"access.enabled": "true"}
    assert "access." not in config_of({})
    alone = next(line for line in config_of(enabled).splitlines() if "super" in line)
    name = alone.removeprefix('access.super.users: "').removesuffix('"')
    assert name.endswith("-operator-tls") or "operator" in name
    more = config_of(enabled | {"access.super.users": "root"})
    assert f'access.super.users: "{name},root"' in more
