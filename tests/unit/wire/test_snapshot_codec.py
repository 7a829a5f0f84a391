"""Bytes of snapshots: fixed, readable, and refused when anything is wrong with them."""

from collections.abc import Callable
from typing import Any

import pytest

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto.internal.v1 import metadata_pb2 as pb
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.metadata_samples import (
    FOO,
    mutated,
    sample_state,
)

FUZZ_COUNT = 100_000
GOLDEN_STATE = (
    "082012400a016110161a05616761696e2201642a016830cc483a017a42013148048201060a01692201318201"
    "0a0a05616761696e2201318a010a0a036f7574120168180912220a016210031a01692201642a016830cc483a"
    "017a42013148048201060a0169220131122a0a016310041a01692201642a016830cc483a017a420131480458"
    "016018680170018201060a01692201311ab70108091203666f6f1a03732e2a220167280732320800100118ff"
    "ffffffffffffff7f2003280430053806400048075001580260016800700478088001018a0100900109980101"
    "380142120a0200012015281638015a0200017a02161542210a03010200120100180020092818380140015201"
    "01620201026a01027a0309091642160a02020012010018002009281648015a01017a0209164a050a0170100f"
    "4a070a0171100e180150025802680470018201066e732f666f6f1a2b080a12036261721a0174320042130a01"
    "00120100180020192819301970017a0116500158016001680270022207636c75737465722804320408111012"
    "39086edce805d666bd40808040627f0a0c3030303030303030303030301201701a01671a0168226124617267"
    "6f6e32696424763d3139246d3d31393435362c743d322c703d31247373737373737373737373737373737373"
    "7373737373246868686868686868686868686868686868686868686868686868686868686868686868686868"
    "686868686828013a016f627b0a0c3131313131313131313131311201702261246172676f6e32696424763d31"
    "39246d3d31393435362c743d322c703d31247373737373737373737373737373737373737373737324686868"
    "6868686868686868686868686868686868686868686868686868686868686868686868686868686828013002"
    "3a016f6a320a016d121a080912160a016d1207777261707065641a08636865636b76616c1a110801120d0a01"
    "6d1208636865636b76616c72120a097072696e636970616c12012a1801380272110a0673747265616d120366"
    "6f6f30034804"
)


def test_a_snapshot_gives_the_state_back() -> None:
    state = sample_state()
    data = encode_state(state)
    restored = decode_state(data)

    assert restored == state
    assert encode_state(restored) == data
    assert list(restored.streams[state.stream_ids[FOO]].publishers) == ["p", "q"]
    assert restored.partition_count == 4
    assert restored.publisher_epochs == {14: 1, 15: 0}


def test_a_snapshot_of_nothing_is_empty() -> None:
    assert encode_state(ClusterState()) == b""
    assert decode_state(b"") == ClusterState()


def test_bytes_of_a_snapshot_are_fixed() -> None:
    assert encode_state(sample_state()).hex() == GOLDEN_STATE


def test_a_snapshot_cut_anywhere_never_raises_anything_else() -> None:
    data = encode_state(sample_state())
    whole = 0
    for length in range(len(data)):
        try:
            decode_state(data[:length])
        except CorruptionError:
            continue
        whole += 1
    # Only what ends between two entries of the outermost level can be read at all.
    assert whole <= 16


Damage = Callable[[pb.Snapshot], object]


def set_in(path: str, value: object) -> Damage:
    """Put a value into the field that a path such as `streams.0.name` leads to."""
    *way, name = path.split(".")

    def damage(snapshot: pb.Snapshot) -> None:
        target: Any = snapshot
        for step in way:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        if isinstance(value, list):
            target.ClearField(name)
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)

    return damage


def of_partition(number: int, name: str, value: object) -> Damage:
    return set_in(f"streams.0.partitions.{number}.{name}", value)


DAMAGES: list[tuple[str, Damage]] = [
    ("broker a twice", lambda s: s.brokers.add(broker="a")),
    ("a broker epoch ahead", set_in("brokers.0.broker_epoch", 99)),
    ("id of the master key", set_in("encryption.master_key", "\n")),
    ("a data key of no stream", set_in("encryption.streams.0.stream_id", 8)),
    ("a data key of no stream", lambda s: s.encryption.streams.add(stream_id=9)),
    ("data key of stream 9: check value", set_in("encryption.streams.0.key.check", b"c")),
    ("master keys of no broker", set_in("encryption.brokers.0.broker", 3)),
    ("master keys of broker b: none", set_in("encryption.brokers.0.keys", [])),
    ("master keys of broker b: check", set_in("encryption.brokers.0.keys.0.check", b"c")),
    ("a broker epoch ahead", set_in("brokers.2.controlled_shutdown_index", 99)),
    ("broker a removed but not fenced", set_in("brokers.0.removed", 1)),
    ("broker c draining but not cordoned", set_in("brokers.2.cordoned", 0)),
    ("broker a with 9 starts", lambda s: [s.brokers[0].restarts.add() for _ in range(7)]),
    ("listeners of broker a: a name", lambda s: s.brokers[0].listeners.add(name="out")),
    ("listeners of broker b: '' must be 1 to 40", lambda s: s.brokers[1].listeners.add()),
    ("stream id 9 out of order", set_in("streams.1.stream_id", 9)),
    ("stream id 99 out of order", set_in("streams.1.stream_id", 99)),
    ("stream id 0 out of order", set_in("streams.0.stream_id", 0)),
    ("stream foo twice", set_in("streams.1.name", "foo")),
    ("with 0 partitions", lambda s: s.streams[0].ClearField("partitions")),
    ("partition epoch ahead", of_partition(0, "partition_epoch", 99)),
    ("unknown broker", of_partition(0, "replicas", [0, 9])),
    ("distinct replicas", of_partition(0, "replicas", [0, 0])),
    ("distinct replicas", of_partition(0, "replicas", [])),
    ("disordered isr", of_partition(1, "isr", [1, 0])),
    ("isr elsewhere", of_partition(1, "isr", [9])),
    ("disordered elr", of_partition(1, "elr", [1, 1])),
    ("elr elsewhere", of_partition(1, "elr", [9])),
    ("disordered last_known_elr", of_partition(0, "last_known_elr", [1, 0])),
    ("adding elsewhere", of_partition(1, "adding", [9])),
    ("moving to an unknown replica", of_partition(1, "target", [1, 9])),
    ("moving to an unknown replica", of_partition(1, "target", [1, 2, 1])),
    ("adding a replica outside its target", of_partition(1, "target", [1])),
    ("adding replicas before the last ones", of_partition(1, "adding", [1])),
    ("adding all of its replicas", lambda s: (of_partition(1, "adding", [0, 1, 2])(s),
                                     of_partition(1, "target", [0, 1, 2])(s))),
    ("led by a replica out of sync", of_partition(1, "leader", 5)),
    ("led by a replica out of sync", of_partition(1, "isr", [])),
    ("with a replica both in sync and eligible", of_partition(1, "elr", [0])),
    ("recovering without an unclean election", of_partition(1, "is_recovering", 1)),
    ("recovering without an unclean election", of_partition(2, "is_recovering", 1)),
    ("disordered epochs", of_partition(1, "leader_epoch", 25)),
    ("disordered epochs", of_partition(1, "leader_epoch", 1)),
    ("disordered epochs", of_partition(1, "unclean_epoch", 10)),
    ("disordered epochs", of_partition(1, "replica_epochs", [9, 9, 25])),
    ("an epoch of each replica", of_partition(1, "replica_epochs", [9])),
    ("disordered pause", of_partition(2, "auto_paused", 1)),
    ("a publisher twice", lambda s: s.streams[0].publishers.add(publisher="p", publisher_id=1)),
    ("a publisher id twice", lambda s: s.streams[1].publishers.add(publisher="x", publisher_id=14)),
    ("a publisher id twice", lambda s: s.streams[0].publishers.add(publisher="x", publisher_id=14)),
    ("a publisher id ahead", lambda s: s.streams[0].publishers.add(publisher="x")),
    ("a publisher id ahead", lambda s: s.streams[1].publishers.add(publisher="x", publisher_id=99)),
    ("is not known", set_in("streams.0.overrides.fsync_policy", 9)),
    ("fsync policy 9 is not known", set_in("streams.0.fsync_policy", 9)),
    ("unclean mode 9 is not known", set_in("streams.0.unclean_mode", 9)),
    ("stream 9 exists, or deleted twice", lambda s: s.deleted.add(stream_id=9, deleted_index=20)),
    ("stream 17 exists, or deleted twice", lambda s: s.deleted.add(stream_id=17, deleted_index=20)),
    ("stream 5 deleted out of order", lambda s: s.deleted.add(stream_id=5, deleted_index=6)),
    ("stream 19 deleted out of order", lambda s: s.deleted.add(stream_id=19, deleted_index=99)),
    ("stream 0 deleted out of order", lambda s: s.deleted.add(stream_id=0, deleted_index=20)),
    ("10001 deleted streams", lambda s: [s.deleted.add() for _ in range(10_000)]),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "damage"), DAMAGES, ids=[fault for fault, _ in DAMAGES])
def test_a_snapshot_that_contradicts_itself_is_refused(fault: str, damage: Damage) -> None:
    message = pb.Snapshot.FromString(encode_state(sample_state()))
    damage(message)

    with pytest.raises(CorruptionError, match=fault):
        decode_state(message.SerializeToString(deterministic=True))


def test_no_bytes_make_the_decoder_of_snapshots_fail_otherwise(fuzz: Fuzz) -> None:
    sample = encode_state(sample_state())
    taken = 0
    for random in fuzz.rounds(21, FUZZ_COUNT):
        data = mutated(random, sample)
        try:
            state = decode_state(data)
        except CorruptionError:
            continue
        taken += 1
        # Not always `data`: what a version without clusters left out is written from now on.
        assert decode_state(encode_state(state)) == state
    assert 0 < taken < fuzz.count
