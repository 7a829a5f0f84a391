"""The operator is exchanged for one of another release, and back, under load."""

from functools import partial

import pytest

from liftbridge_operator.cluster.rendering.revision import RENDERER
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.definitions import next_chart, restore

pytestmark = [pytest.mark.e2e, pytest.mark.full]

FORMER = "tests/e2e/manifests/Dockerfile.former-operator"


@pytest.fixture
def install(stage):
    """Installs an operator; at the end the one of the other stories is there again."""
    yield partial(stage.operator.install, broker_image=stage.image)
    restore(stage.kubernetes)
    stage.operator.install(stage.operator_image, stage.image)


def uids(s):
    return {one["metadata"]["uid"] for one in s.get("pods")}


@pytest.mark.story("operator-upgraded", minutes=6)
def test_operator_of_another_release_restarts_nobody(play, stage, install):
    former = stage.kubernetes.image("former-operator", FORMER)
    with play(prepare=partial(install, former)) as s:
        before = uids(s)
        with s.marked("upgraded"):
            install(stage.operator_image)
            s.until(lambda: s.cluster["status"]["held"], "told what is held", 120)
            s.await_acks(more=40)
            s.await_ready()
        assert s.cluster["status"]["held"]["causes"] == [f"renderer 0 becomes {RENDERER}"]
        with s.marked("changed what pods do not show"):
            s.change(scaling={"rebalance": "Never"})
            s.await_ready()
        assert uids(s) == before
        with s.marked("roll"):
            s.change(image=s.stage.next_image)
            s.await_ready()
        s.check_roll("roll", brokers=3)
        assert "held" not in s.cluster["status"]
    assert {one.mark for one in s.result.restarts} == {"roll"}


@pytest.mark.story("operator-rolled-back", minutes=5)
def test_rollback_of_the_operator_loses_no_field_and_restarts_nobody(
    play, stage, install, tmp_path
):
    with play(kills_operator=False) as s:
        before = uids(s)
        install(stage.operator_image, chart=next_chart(tmp_path))
        s.until(lambda: is_given_later(s), "a field of the next release taken", 60)
        with s.marked("rolled back"):
            with pytest.raises(CommandError, match=r"does not have: later, later\.a"):
                stage.operator.roll_back()
            told = s.await_condition("Stalled", "InvalidSpec")
            s.await_acks(more=40)
        assert "spec.later: only a newer operator knows this field" in told["message"]
        assert s.cluster["spec"]["later"] == {"a": "b"}
        with s.marked("taken away"):
            s.change(later=None)
            s.await_ready()
        assert uids(s) == before
    assert s.result.restarts == []


def is_given_later(s):
    """Write the field; the API server drops it until it serves the definition that has it."""
    s.change(later={"a": "b"})
    return s.cluster["spec"].get("later")
