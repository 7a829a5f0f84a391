"""Commands about keys of encrypted streams (C22 to C25): what each refuses, and what it stores."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.commands import (
    AlterStream,
    Bootstrap,
    Command,
    CreateEncryptedStream,
    CreateStream,
    DeleteStream,
    RegisterBroker,
    ReportMasterKeys,
    RewrapDataKeys,
    RewrappedKey,
    SetMasterKey,
    UnfenceBroker,
)
from liftbridge_broker.controller.keys import REWRAPPED_MAX
from liftbridge_broker.controller.records import Done
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    StaleBrokerEpochError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamId, StreamName
from liftbridge_broker.model.keys import MASTER_KEYS_MAX, WRAPPED_BYTES_MAX, DataKey, MasterKey
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.wire.snapshots import decode_state, encode_state

A, B = BrokerId("a"), BrokerId("b")
FOO = StreamName("foo")
K1, K2 = MasterKey("k1", b"1" * 8), MasterKey("k2", b"2" * 8)
KEY = DataKey("k1", b"wrapped", b"c" * 8)


class World:
    """A cluster of two brokers; only `a` has reported its master keys."""

    def __init__(self, level: int = 4) -> None:
        self.state = ClusterState()
        for broker in (A, B):
            self.do(
                RegisterBroker(
                    broker=broker, incarnation_id=broker, data_dir_id=broker, feature_level=4
                )
            )
        self.do(Bootstrap(cluster_id="c", feature_level=level))
        for broker in (A, B):
            epoch = self.state.brokers[broker].broker_epoch
            self.do(UnfenceBroker(broker=broker, broker_epoch=epoch, applied_index=epoch))
        if level == 4:
            self.report(A, K1)

    def do(self, command: Command) -> object:
        return apply(self.state, MetadataIndex(self.state.applied_index + 1), command).answer

    def report(self, broker: BrokerId, *keys: MasterKey, epoch: int | None = None) -> object:
        known = self.state.brokers[broker].broker_epoch if epoch is None else epoch
        return self.do(ReportMasterKeys(broker=broker, broker_epoch=known, keys=keys))

    def create(self, *, key: DataKey = KEY, name: str = FOO, replicas: int = 1) -> object:
        stream = CreateStream(
            name=StreamName(name),
            subject="foo",
            replication_factor=replicas,
            overrides=StreamOverrides(encryption=True),
        )
        return self.do(CreateEncryptedStream(stream=stream, key=key))

    def rewrap(self, **changes: object) -> object:
        stream = self.state.stream(FOO)
        assert stream is not None
        key = RewrappedKey(stream.stream_id, b"wrapped", "k2", b"again", b"c" * 8)
        return self.do(RewrapDataKeys(keys=(key._replace(**changes),)))  # type: ignore[arg-type]  # by name

    @property
    def key(self) -> DataKey | None:
        stream = self.state.stream(FOO)
        return None if stream is None else stream.data_key


def refused(answer: object, kind: type[LiftbridgeError], text: str) -> bool:
    assert type(answer) is kind
    assert text in str(answer)
    return True


def test_stream_is_created_with_its_key_and_the_first_master_key_is_chosen() -> None:
    world = World()
    world.report(B, K1)
    assert not isinstance(world.create(replicas=2), LiftbridgeError)
    assert (world.key, world.state.master_key) == (KEY, "k1")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (KEY._replace(master_key=""), "printable"),
        (KEY._replace(wrapped=b""), "limit"),
        (KEY._replace(wrapped=bytes(WRAPPED_BYTES_MAX + 1)), "limit"),
        (KEY._replace(check=b"short"), "check value"),
    ],
)
def test_invalid_data_key_is_refused(key: DataKey, text: str) -> None:
    world = World()
    assert refused(world.create(key=key), InvalidRequestError, text)
    world.create()
    changes = {"master_key": key.master_key, "wrapped": key.wrapped, "check": key.check}
    if key.check == KEY.check:
        assert refused(world.rewrap(**changes), InvalidRequestError, text)


def test_every_replica_needs_the_same_master_key() -> None:
    world = World()
    assert refused(world.create(replicas=2), FailedPreconditionError, "broker b has not reported")
    world.report(B, K1._replace(check=b"x" * 8))
    assert refused(world.create(replicas=2), FailedPreconditionError, "different master keys")
    world.report(B, K1._replace(check=b""))
    assert not isinstance(world.create(replicas=2), LiftbridgeError)


def test_key_of_a_former_master_is_refused_for_a_new_stream() -> None:
    world = World()
    world.report(A, K1, K2)
    world.report(B, K1, K2)
    world.create()
    world.do(SetMasterKey(master_key="k2"))
    assert refused(world.create(name="bar"), FailedPreconditionError, "'k2' is in use, not 'k1'")
    assert not isinstance(
        world.create(name="bar", key=KEY._replace(master_key="k2")), LiftbridgeError
    )


@pytest.mark.parametrize("level", [0, 3])
def test_older_levels_refuse_every_command(level: int) -> None:
    world = World(level)
    for answer in (
        world.create(),
        world.report(A, K1),
        world.do(SetMasterKey(master_key="k1")),
        world.do(RewrapDataKeys(keys=())),
    ):
        assert refused(answer, FailedPreconditionError, f"feature level {level} is in force")


def test_master_key_is_chosen_once_all_holders_have_it() -> None:
    world = World()
    world.report(B, K1)
    world.create(replicas=2)
    world.report(A, K1, K2)
    choice = SetMasterKey(master_key="k2")
    assert refused(world.do(choice), FailedPreconditionError, "broker b has not reported")
    world.report(B, K2)
    assert world.do(choice) == Done()
    assert world.state.master_key == "k2"
    assert world.do(choice) == Done()


def test_master_key_that_no_broker_has_is_refused() -> None:
    world = World()
    assert refused(
        world.do(SetMasterKey(master_key="k9")), FailedPreconditionError, "no broker has"
    )
    assert refused(world.do(SetMasterKey(master_key="")), InvalidRequestError, "printable")


def test_rewrapping_replaces_only_what_it_was_made_from_and_the_same_data_key() -> None:
    world = World()
    world.create()
    assert world.rewrap(expected=b"other") == Done()
    assert world.key == KEY
    assert refused(world.rewrap(check=b"d" * 8), InvalidRequestError, "not the one of stream foo")
    assert world.rewrap(stream_id=StreamId(9_999)) == Done()
    assert world.rewrap() == Done()
    assert world.key == DataKey("k2", b"again", b"c" * 8)
    many = (RewrappedKey(StreamId(1), b"w", "k2", b"a", b"c" * 8),) * (REWRAPPED_MAX + 1)
    assert refused(world.do(RewrapDataKeys(keys=many)), InvalidRequestError, "at most")


def test_only_the_present_process_of_a_broker_reports_for_it() -> None:
    world = World()
    epoch = world.state.brokers[A].broker_epoch
    assert isinstance(world.report(A, K2, epoch=epoch - 1), StaleBrokerEpochError)
    assert world.state.brokers[A].master_keys == (K1,)
    assert refused(world.report(A, K1, K1), InvalidRequestError, "twice")
    many = tuple(MasterKey(f"k{n}", b"") for n in range(MASTER_KEYS_MAX + 1))
    assert refused(world.report(A, *many), InvalidRequestError, "at most")
    world.do(RegisterBroker(broker=A, incarnation_id="new", data_dir_id=A, feature_level=4))
    assert world.state.brokers[A].master_keys == ()


def test_encryption_of_a_stream_stays() -> None:
    world = World()
    world.create()
    plain = StreamOverrides(encryption=False)
    altered = world.do(AlterStream(name=FOO, overrides=plain))
    assert refused(altered, FailedPreconditionError, "encrypted and stays so")
    kept = replace(plain, encryption=True)
    assert world.do(AlterStream(name=FOO, overrides=kept)) == Done()


def test_deletion_removes_the_key_and_snapshots_hold_all_of_them() -> None:
    world = World()
    world.report(B, K1)
    world.create()
    world.create(name="bar", key=KEY._replace(wrapped=b"of bar"))
    assert decode_state(encode_state(world.state)) == world.state
    assert b"of bar" in encode_state(world.state)
    world.do(DeleteStream(name=StreamName("bar")))
    assert b"of bar" not in encode_state(world.state)
    assert decode_state(encode_state(world.state)) == world.state
