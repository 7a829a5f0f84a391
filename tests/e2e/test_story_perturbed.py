"""Whatever a person does to an object of a cluster by kubectl is repaired or named in a minute."""

import json
import sys
from random import Random

import pytest

from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.operator_sim.perturbed import one_of_each_kind, perturbations

pytestmark = pytest.mark.e2e

KINDS = ("svc", "sa", "netpol", "pdb", "cm", "sts")
MADE_ANEW = ("ServiceAccount", "NetworkPolicy", "PodDisruptionBudget")
"""Kinds of which an object is deleted as a whole, which nobody outside reaches anything by."""

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


@pytest.mark.full
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


@pytest.mark.story("perturbed-briefly", minutes=2)
def test_what_is_done_to_each_kind_at_once_is_repaired_or_named_in_a_minute(play):
    """A field of each kind is changed, added to, taken away; then objects are deleted."""
    with play() as s:
        rng = Random(s.result.seed)
        sys.stdout.write(f"perturbed with seed {s.result.seed}\n")
        s.until(lambda: is_at_rest(s), "a cluster whose objects do not change by themselves")
        for what in ("change", "add", "remove"):
            done = one_of_each_kind(
                owned(s),
                what,
                rng,
                may_change=lambda _body, change: not is_given(change) and not is_of_owner(change),
                replace=lambda body: replaced(s, body),
            )
            assert len(done) == len(KINDS)
            with s.marked(what):
                await_settled(
                    s, {f"{place_of(one.before)}: {one.change}": one.before for one in done}
                )
        deleted = [one for one in owned(s) if one["kind"] in MADE_ANEW]
        assert {one["kind"] for one in deleted} == set(MADE_ANEW)
        with s.marked("delete"):
            s.kubectl("delete", "--wait=false", *map(place_of, deleted))
            await_settled(s, {f"{place_of(one)}: deleted": one for one in deleted}, is_anew=True)
        s.await_ready()
    assert s.result.restarts == []


def is_at_rest(s):
    """Whether the template has proved good and a pod may go: what comes after the first Ready."""
    (brokers,) = s.get("sts")
    (budget,) = s.get("pdb")
    noted = brokers["metadata"]["annotations"]
    is_proved = noted["liftbridge.io/good-revision"] == noted["liftbridge.io/revision"]
    return is_proved and budget["spec"]["maxUnavailable"] == 1


def is_of_owner(change):
    """Whether a change names another owner, for whose absence Kubernetes deletes the object."""
    return change.place[:2] == ("metadata", "ownerReferences") and len(change.place) > 3


def owned(s):
    return [one for one in s.get(",".join(KINDS)) if is_ours(one)]


def place_of(body):
    return f"{body['kind'].lower()}/{body['metadata']['name']}"


def replaced(s, body):
    """An object after it was written, whoever wrote it meanwhile; none when that is refused."""
    for name in ("managedFields", "resourceVersion"):
        body["metadata"].pop(name, None)
    try:
        return json.loads(s.kubectl("replace", "-f", "-", "--output=json", text=json.dumps(body)))
    except CommandError:
        return None


def await_settled(s, done, *, is_anew=False):
    """Wait until each object is as it was, or is named; all of them in one minute."""

    def settled():
        live = {place_of(one): one for one in s.get(",".join(KINDS))}
        left = {
            what
            for what, before in done.items()
            if not is_as_before(live.get(place_of(before)), before, is_anew=is_anew)
        }
        told = named(s) if left else ""
        open_now[:] = sorted(one for one in left if done[one]["metadata"]["name"] not in told)
        return not open_now

    open_now = []
    try:
        s.until(settled, "everything repaired or named", REPAIRED_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"neither repaired nor named: {open_now}; {error}") from error


def is_as_before(live, before, *, is_anew):
    if live is None or (is_anew and live["metadata"]["uid"] == before["metadata"]["uid"]):
        return False
    return content(live) == content(before)


def named(s):
    """What the conditions say that somebody else has, or changes again and again."""
    return " ".join(
        one["message"]
        for one in s.cluster["status"].get("conditions", ())
        if (one["type"], one["status"]) == ("Stalled", "True")
    )


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
