"""Whatever a person does to an object of a cluster by kubectl is repaired or named in a minute."""

import json
import sys
from random import Random

import pytest

from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.operator_sim.perturbed import perturbations

pytestmark = [pytest.mark.e2e, pytest.mark.full]

KINDS = ("svc", "sa", "netpol", "pdb", "cm", "sts")
SAMPLES = 16
REPAIRED_SECONDS = 60
CHANGING = ("status",)
NOTED = ("labels", "annotations", "ownerReferences")
ALLOCATED = ("clusterIP", "clusterIPs", "ipFamilies", "nodePort")
"""What Kubernetes gives, and may be another."""


def content(body):
    """An object without what changes by itself."""
    found = {name: value for name, value in body.items() if name not in CHANGING}
    return without_allocated(
        found | {"metadata": {name: body["metadata"].get(name) for name in NOTED}}
    )


def without_allocated(value):
    """A copy without what Kubernetes gives."""
    if isinstance(value, dict):
        return {
            name: without_allocated(part) for name, part in value.items() if name not in ALLOCATED
        }
    return [without_allocated(part) for part in value] if isinstance(value, list) else value


def is_ours(body):
    """Whether an object belongs to the cluster, and is no note of a restart."""
    owners = body["metadata"].get("ownerReferences") or ()
    is_note = body["metadata"]["name"].endswith("-restart")
    return any(one["kind"] == "LiftbridgeCluster" for one in owners) and not is_note


def is_given(change):
    """Whether a change is of something that Kubernetes gives, or of the number of pods."""
    names = [part for part in change.place if isinstance(part, str)]
    return names[-1] in ALLOCATED or change.place == ("spec", "replicas")


@pytest.mark.story("perturbed", minutes=5)
def test_whatever_is_done_to_an_object_is_repaired_or_named(play):
    with play() as s:
        rng = Random(s.result.seed)
        sys.stdout.write(f"perturbed with seed {s.result.seed}\n")
        live = [one for kind in KINDS for one in s.get(kind) if is_ours(one)]
        choices = [(one, change) for one in live for change in perturbations(one)]
        choices = [(one, change) for one, change in choices if not is_given(change)]
        rng.shuffle(choices)
        taken = 0
        for body, change in choices:
            if taken == SAMPLES:
                break
            taken += perturb(s, body, change)
        s.await_ready()
    assert taken == SAMPLES


def perturb(s, body, change):
    """Make one change; whether the API server took it."""
    kind, name = body["kind"].lower(), body["metadata"]["name"]
    made = json.loads(s.kubectl("get", kind, name, "--output=json"))
    before = content(made)
    try:
        change.apply(made)
        made["metadata"].pop("managedFields", None)
        s.kubectl("replace", "-f", "-", text=json.dumps(made))
    except (CommandError, LookupError):
        return False  # the API server refuses it, or it is gone by now
    what = f"{kind}/{name}: {change} is repaired or named"
    s.until(lambda: is_settled(s, kind, name, before), what, REPAIRED_SECONDS)
    return True


def is_settled(s, kind, name, before):
    live = json.loads(s.kubectl("get", kind, name, "--output=json"))
    if content(live) == before:
        return True
    return any(one["type"] == "Stalled" for one in s.cluster["status"].get("conditions", ()))
