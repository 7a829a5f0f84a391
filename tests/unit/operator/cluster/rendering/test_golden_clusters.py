"""Clusters of every kind, and all objects that are made of them, line by line.

A change of a golden file is a change of what users get: read it before you keep it.
"""

import pytest
import yaml

from liftbridge_operator.cluster.rendering.subject import owner
from liftbridge_operator.kube.kinds import kind_of
from liftbridge_testkit.resources.clusters import (
    FOLDER,
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

KEPT = {"identity", "internal-ca", "ca", "nats"}


def rendered(path):
    spec = load_spec(path)
    return everything(cluster_of(spec), inputs_for(spec))


class _Plain(yaml.SafeDumper):
    """Texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, _data):
        return True


_Plain.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def dumped(objects) -> str:
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=200)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_objects_of_a_cluster_are_the_golden_ones(path, rewrite):
    golden = FOLDER / "golden" / path.name
    text = dumped(rendered(path))
    if rewrite:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_everything_has_an_owner_but_what_is_kept(path):
    objects = rendered(path)
    spec = load_spec(path)
    reference = owner(cluster_of(spec))
    kept = {
        one["metadata"]["name"].removeprefix("orders-")
        for one in objects
        if "ownerReferences" not in one["metadata"]
    }
    assert kept <= KEPT
    assert {"identity", "internal-ca"} <= kept
    assert all(
        one["metadata"]["ownerReferences"] == [reference]
        for one in objects
        if "ownerReferences" in one["metadata"]
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_everything_says_whose_it_is(path):
    for one in rendered(path):
        labels = one["metadata"]["labels"]
        assert labels["liftbridge.io/cluster"] == "orders"
        assert labels["liftbridge.io/cluster-id"] == "4f2c7a9e"
        assert labels["app.kubernetes.io/managed-by"] == "liftbridge-operator"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_names_are_unique_in_their_kind(path):
    found = [(one["kind"], one["metadata"]["name"]) for one in rendered(path)]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_everything_is_of_a_kind_that_the_operator_can_write(path):
    for one in rendered(path):
        assert kind_of(one).kind == one["kind"]
        assert kind_of(one).is_namespaced
