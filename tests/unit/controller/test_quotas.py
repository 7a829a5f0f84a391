"""Quotas in the metadata: which can be set, and how many streams a principal may create."""

from typing import Any

import pytest

from liftbridge_broker.access.quotas import Quota, QuotaKey, QuotaKind
from liftbridge_broker.controller.callers.commands import SetQuota
from liftbridge_broker.controller.callers.quotas import LIMIT_MAX, QUOTAS_MAX
from liftbridge_broker.controller.commands import Bootstrap, Command, CreateStream, DeleteStream
from liftbridge_broker.controller.records import Done
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    LimitError,
)
from liftbridge_broker.model.ids import StreamName
from liftbridge_testkit.controller_world import ControllerWorld

BILLING = QuotaKey(QuotaKind.PRINCIPAL, "billing")


@pytest.fixture
def world() -> ControllerWorld:
    world = ControllerWorld()
    world.ok(Bootstrap(cluster_id="c"))
    world.start("a")
    return world


def refusal_of(world: ControllerWorld, command: Command) -> LiftbridgeError:
    answer = world.decide(command).answer
    assert isinstance(answer, LiftbridgeError)
    assert world.refused(command) == answer.code
    return answer


def test_a_quota_is_set_changed_and_removed(world: ControllerWorld) -> None:
    first = SetQuota(kind="principal", name="billing", publish_bytes=5, subscriptions=2)
    assert world.ok(first) == Done()
    assert world.state.quotas == {BILLING: Quota(publish_bytes=5, subscriptions=2)}
    assert world.ok(SetQuota(kind="principal", name="billing", streams=1)) == Done()
    assert world.state.quotas == {BILLING: Quota(streams=1)}
    assert world.ok(SetQuota(kind="stream", name="billing", stored_bytes=9)) == Done()
    assert world.ok(SetQuota(kind="principal", name="billing")) == Done()
    assert world.ok(SetQuota(kind="principal", name="unknown")) == Done()
    assert list(world.state.quotas) == [QuotaKey(QuotaKind.STREAM, "billing")]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "user"}, "kind 'user' of a quota: principal or stream"),
        ({"kind": ""}, "kind '' of a quota"),
        ({"name": ""}, "its principal has a name that is not 1 to 256 bytes"),
        ({"name": "x" * 257}, "its principal has a name that is not 1 to 256 bytes"),
        ({"name": "a\nb"}, "its principal has a name"),
        ({"kind": "stream", "name": ""}, "its stream is not 1 to 256 bytes"),
        ({"kind": "stream", "name": "__cursors"}, "stream __cursors is reserved"),
        ({"publish_bytes": LIMIT_MAX + 1}, f"publish_bytes {LIMIT_MAX + 1} of a quota: must be 0"),
        ({"read_messages": -1}, "read_messages -1 of a quota: must be 0"),
        ({"stored_bytes": 1}, "stored_bytes 1: a principal has no such limit"),
        ({"kind": "stream", "streams": 1}, "streams 1: a stream has no such limit"),
        ({"kind": "stream", "subscriptions": 1}, "subscriptions 1: a stream has no such limit"),
    ],
)
def test_what_is_no_quota_is_refused(
    world: ControllerWorld, wrong: dict[str, Any], text: str
) -> None:
    command = SetQuota(**{"kind": "principal", "name": "p", "publish_messages": 1, **wrong})
    refusal = refusal_of(world, command)
    assert isinstance(refusal, InvalidRequestError)
    assert text in refusal.text
    assert not world.state.quotas


def test_quotas_are_bounded(world: ControllerWorld) -> None:
    full = {QuotaKey(QuotaKind.STREAM, f"s{one}"): Quota(1) for one in range(QUOTAS_MAX)}
    world.state.quotas.update(full)
    assert isinstance(
        refusal_of(world, SetQuota(kind="stream", name="x", read_bytes=1)), LimitError
    )
    assert world.ok(SetQuota(kind="stream", name="s7", read_bytes=1)) == Done()
    assert world.ok(SetQuota(kind="stream", name="s8")) == Done()
    assert world.ok(SetQuota(kind="stream", name="x", read_bytes=1)) == Done()


def test_quotas_wait_for_the_feature_level() -> None:
    world = ControllerWorld()
    world.ok(Bootstrap(cluster_id="c", feature_level=3))
    refusal = refusal_of(world, SetQuota(kind="stream", name="s", read_bytes=1))
    assert isinstance(refusal, FailedPreconditionError)
    assert "quotas need feature level 4, and 3 is in force" in refusal.text


def test_a_principal_creates_as_many_streams_as_its_quota_allows(world: ControllerWorld) -> None:
    def create(name: str, created_by: str) -> CreateStream:
        return CreateStream(name=StreamName(name), subject=name, created_by=created_by)

    world.ok(SetQuota(kind="principal", name="*", streams=2))
    world.ok(SetQuota(kind="principal", name="ops", streams=3))
    for name in ("one", "two"):
        world.ok(create(name, "billing"))
    first = world.state.stream("one")
    assert first is not None
    assert first.created_by == "billing"
    refusal = refusal_of(world, create("three", "billing"))
    assert isinstance(refusal, LimitError)
    assert "quota of principal billing exceeded: 2 streams" in refusal.text
    for name in ("three", "four", "five"):
        world.ok(create(name, "ops"))
    world.ok(create("anonymous", ""))
    world.ok(DeleteStream(name=StreamName("one")))
    world.ok(create("six", "billing"))
