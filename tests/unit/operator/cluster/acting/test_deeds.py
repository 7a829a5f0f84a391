"""Every action has its deed, and none is done too late or by who does not lead."""

import typing
from types import SimpleNamespace

import pytest

from liftbridge_operator.cluster.acting.context import RefusedError
from liftbridge_operator.cluster.acting.perform import DEEDS, perform
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.brokers.port import Refusal
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.kube.errors import (
    ConflictError,
    FencedError,
    ForbiddenError,
    InvalidError,
    UnavailableError,
)
from liftbridge_testkit.operator_sim.reconciled import OpenFence


class Asked:
    """Brokers that answer everything alike."""

    def __init__(self, answer):
        self.answer = answer
        self.count = 0

    async def uncordon(self, leader, broker):
        self.count += (leader, broker) == ("c-0", "c-1")
        return self.answer


class Held:
    """What is needed to ask brokers."""

    leader = "c-0"
    cluster = SimpleNamespace(namespace="n")

    def __init__(self, admin):
        self.admin = admin


async def uncordon(answer=None, *, now=0, error=None):
    admin, fence = Asked(answer), OpenFence()
    fence.error = error
    done = await perform(
        Held(admin), act.Uncordon("c-1"), deadline_ms=5, clock_ms=lambda: now, fence=fence
    )
    return admin, done


def test_every_action_but_the_record_has_a_deed():
    assert set(DEEDS) == set(typing.get_args(act.Action)) - {act.Record}


async def test_action_is_done_in_time():
    admin, done = await uncordon()
    assert (admin.count, done.text) == (1, "")


async def test_action_that_comes_too_late_is_dropped():
    admin, done = await uncordon(now=6)
    assert admin.count == 0
    assert done.text


async def test_who_does_not_lead_asks_no_broker():
    with pytest.raises(FencedError):
        await uncordon(error=FencedError("too old"))


async def test_silence_of_a_broker_is_no_refusal():
    admin, done = await uncordon(Refusal("UNAVAILABLE", "no leader"))
    assert admin.count == 1
    assert (done.text, done.refusal) == ("UNAVAILABLE: no leader", None)


async def test_refusal_of_a_broker_needs_no_person():
    _, done = await uncordon(Refusal("FAILED_PRECONDITION", "not now"))
    assert (done.refusal.reason, done.refusal.needs_person) == ("ActionRefused", False)


def test_refusal_knows_whether_anybody_answered():
    assert Refusal("DEADLINE_EXCEEDED", "").is_silence
    assert not Refusal("FAILED_PRECONDITION", "").is_silence
    assert RefusedError(Refusal("NOT_FOUND", "x")).refusal.code == "NOT_FOUND"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ForbiddenError("exceeded quota: pods"), "QuotaExceeded"),
        (ForbiddenError('cannot delete resource "pods"'), "MissingRights"),
        (ForbiddenError("the storageclass must support resize"), "VolumeCannotGrow"),
        (ForbiddenError("violates PodSecurity"), "AdmissionDenied"),
        (InvalidError("spec.ports: duplicate"), "UnsupportedChange"),
        (InvalidError("provided port is already allocated"), "PortTaken"),
        (InvalidError("provided port is not in the valid range"), "PortTaken"),
        (InvalidError('admission webhook "x" denied the request'), "AdmissionDenied"),
        (ConflictError('admission webhook "x" denied the request'), "AdmissionDenied"),
    ],
)
def test_refusals_of_the_api_server_have_reasons_of_the_catalogue(error, reason):
    assert refusal_of(error).reason == reason


def test_change_and_silence_are_no_refusals():
    assert refusal_of(ConflictError("the object has been modified")) is None
    assert refusal_of(UnavailableError("no answer")) is None
