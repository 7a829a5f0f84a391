"""Encrypted streams on one broker: from the request to the disk and back, with and without key."""

from random import Random

import pytest

from liftbridge_broker.api.publish_async import async_code
from liftbridge_broker.controller.commands import Bootstrap, CreateStream, SetMasterKey
from liftbridge_broker.errors import (
    CorruptionError,
    FailedPreconditionError,
    InvalidRequestError,
    KeyUnavailableError,
    LiftbridgeError,
    PartitionOfflineError,
)
from liftbridge_broker.logformat.batch import ATTRIBUTE_ENCRYPTED, HEADER_SIZE, read_header
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import Offset, StreamId, StreamName
from liftbridge_broker.model.streams import StreamOptions, StreamOverrides
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.data_keys import RETRY_NS
from liftbridge_broker.node.encryption.rewrapping import Rewrapped
from liftbridge_broker.node.partition.intake import ack_error_of
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.wire.acks import AckError
from liftbridge_proto import api_pb2
from liftbridge_testkit.batches import frames_of
from liftbridge_testkit.held_keys import HeldKeys, master
from liftbridge_testkit.memory_files import MemoryFiles
from liftbridge_testkit.node_world import NodeWorld

SECRETS = (b"secret-value", b"secret-key", b"secret-header")
K1 = {"k1": master(1)}


def world_of(masters: HeldKeys, defaults: StreamOptions | None = None) -> NodeWorld:
    world = NodeWorld(masters=masters, defaults=defaults or StreamOptions())
    world.propose(Bootstrap(cluster_id="c"))
    world.settle()
    return world


def publish(world: NodeWorld, partition: Partition, *values: bytes) -> None:
    """Publish values with keys and headers that hold plain text."""
    answers = world.publish(
        partition,
        *values,
        keys=[SECRETS[1] + b"%d" % (n % 3) for n in range(len(values))],
        headers=[{"h": SECRETS[2]}] * len(values),
    )
    world.settle()
    assert answers.stored


def plain_text_in(files: MemoryFiles) -> list[str]:
    """Return the files that hold plain text, in any folder."""
    return [
        path for path in files.paths("") if any(secret in files.content(path) for secret in SECRETS)
    ]


def values_of(world: NodeWorld, name: str = "s") -> list[bytes]:
    return list(world.values(world.partition(name)).values())


def test_records_are_read_back_and_no_file_holds_plain_text() -> None:
    world = world_of(HeldKeys(**K1))
    partition = world.create(encryption=True)
    plain = world.create("t")
    publish(world, partition, *[SECRETS[0] + b"%d" % n for n in range(5)])
    assert values_of(world) == [SECRETS[0] + b"%d" % n for n in range(5)]
    assert plain_text_in(world.files) == []
    publish(world, plain, SECRETS[0])
    assert plain_text_in(world.files) != []
    assert world.node.context.options_of(world.node.state.streams[_id(world)]).encryption


def _id(world: NodeWorld, name: str = "s") -> StreamId:
    return world.node.state.stream_ids[StreamName(name)]


def test_no_file_holds_plain_text_after_any_kind_of_work() -> None:
    random = Random(7)
    masters = HeldKeys(**K1)
    world = world_of(
        masters,
        StreamOptions(segment_bytes_max=2_000, compact_enabled=True, cleaner_interval_ms=1_000),
    )
    world.create(encryption=True)
    newest: dict[bytes, bytes] = {}
    for number in range(40):
        values = [SECRETS[0] + b"%d-%d" % (number, n) for n in range(random.randrange(1, 5))]
        publish(world, world.partition(), *values)
        for n, value in enumerate(values):
            newest[SECRETS[1] + b"%d" % (n % 3)] = value
        world.advance(3 * SECOND_NS)
        if number % 10 == 3:
            world.kill()
        elif number % 10 == 6:
            world.crash(random)
        elif number % 10 == 9:
            world.stop()
            world.start()
        assert plain_text_in(world.files) == []
    world.advance(5 * SECOND_NS)
    assert world.told("log_compacted")
    assert sum(told["removed_messages"] for told in world.told("log_compacted")) > 10  # type: ignore[misc]  # numbers
    found = world.values(world.partition())
    log = world.partition().log
    assert len(found) < log.log_end_offset
    assert set(newest.values()) <= set(found.values())
    log.truncate(Offset(log.log_end_offset - 1))
    assert plain_text_in(world.files) == []


def test_creation_needs_a_master_key_and_the_feature_level() -> None:
    world = NodeWorld(masters=HeldKeys(**K1))
    creation = CreateStream(
        name=StreamName("s"), subject="s", overrides=StreamOverrides(encryption=True)
    )
    outcome = world.propose(creation)
    assert isinstance(outcome, FailedPreconditionError)
    assert "feature level 0 is in force" in outcome.text
    world = NodeWorld()
    outcome = world.propose(creation)
    assert isinstance(outcome, FailedPreconditionError)
    assert "broker broker-1 has no master key" in outcome.text
    assert world.node.state.streams == {}


def test_default_encrypts_what_does_not_say_otherwise() -> None:
    world = world_of(HeldKeys(**K1), StreamOptions(encryption=True))
    defaults = world.node.context.options.defaults
    for name, given in (("a", None), ("b", False), ("c", True)):
        creation = CreateStream(
            name=StreamName(name), subject=name, overrides=StreamOverrides(encryption=given)
        )
        assert not isinstance(world.propose(creation.with_defaults(defaults)), LiftbridgeError)
    internal = CreateStream(name=StreamName("d"), subject="d", is_internal=True)
    world.propose(internal.with_defaults(defaults))
    keys = [stream.data_key is not None for stream in world.node.state.streams.values()]
    assert keys == [True, False, True, False]


def test_lost_key_locks_and_the_key_unlocks_without_a_restart() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    reading = world.subscribe(world.partition())
    masters.set({"k2": master(2)})
    world.node.renew_master_keys(world.now)
    world.settle()
    assert isinstance(reading.end, KeyUnavailableError)
    assert "'k1'" in reading.end.text
    (told,) = world.told("stream_locked")
    assert told["master_key"] == "k1"
    before = {path: world.files.content(path) for path in world.files.paths("streams")}
    answers = world.publish(world.partition(), b"x")
    assert isinstance(answers.error, KeyUnavailableError)
    assert world.node.context.data_keys.locked_count == 1
    for open_ in (
        lambda: world.subscribe(world.partition()),
        lambda: world.subscribe(world.partition(), is_reverse=True),
        lambda: BulkRead(
            world.partition(),
            world.node.client_reads,
            lambda: None,
            BulkRange(Offset(0), Offset(0), 0, follows=False),
        ),
    ):
        with pytest.raises(KeyUnavailableError, match="'k1'"):
            open_()
    world.kill()
    assert isinstance(world.publish(world.partition(), b"x").error, KeyUnavailableError)
    assert {path: world.files.content(path) for path in before} == before
    masters.set(K1)
    world.node.renew_master_keys(world.now)
    assert len(world.told("stream_unlocked")) == 1
    publish(world, world.partition(), b"more")
    assert values_of(world) == [SECRETS[0], b"more"]


def test_wrong_key_of_the_right_id_locks() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    masters.set({"k1": master(9)})
    world.kill()
    error = world.publish(world.partition(), b"x").error
    assert isinstance(error, KeyUnavailableError)
    assert "is not the one that wrapped the data key" in error.text
    assert master(9).hex() not in error.text


def test_key_service_that_was_away_is_asked_again() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    masters.set({})
    world.kill()
    asked = masters.count
    masters.set(K1)
    world.advance(RETRY_NS - 1)
    assert masters.count == asked
    world.advance(SECOND_NS)
    assert values_of(world) == [SECRETS[0]]
    world.advance(3 * RETRY_NS)
    assert masters.count == asked + 1


def test_slow_key_service_delays_only_its_streams() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    world.create("t")
    masters.is_slow = True
    world.kill()
    publish(world, world.partition("t"), b"plain")
    error = world.publish(world.partition(), b"x").error
    assert isinstance(error, KeyUnavailableError)
    assert not world.told("stream_locked")
    masters.answer()
    assert values_of(world) == [SECRETS[0]]
    answers: list[object] = []
    creation = CreateStream(
        name=StreamName("u"), subject="u", overrides=StreamOverrides(encryption=True)
    )
    world.node.propose(creation, world.now, answers.append)
    world.settle()
    assert answers == []
    masters.answer()
    world.settle()
    masters.answer()
    assert not isinstance(answers[0], LiftbridgeError)
    publish(world, world.partition("u"), b"y")


def test_compaction_waits_for_the_key_and_reports_once() -> None:
    masters = HeldKeys(**K1)
    options = StreamOptions(segment_bytes_max=500, compact_enabled=True, cleaner_interval_ms=1_000)
    world = world_of(masters, options)
    partition = world.create(encryption=True)
    masters.set({})
    for number in range(6):
        publish(world, partition, b"%d" % number * 100)
    world.node.renew_master_keys(world.now)
    world.advance(20 * SECOND_NS)
    assert not world.told("log_compacted")
    assert len(world.told("compaction_waits")) == 1
    masters.set(K1)
    world.advance(20 * SECOND_NS)
    assert world.told("log_compacted")
    assert values_of(world)[-1] == b"5" * 100
    assert len(values_of(world)) < 6


def test_rotation_rewraps_and_the_former_key_is_needed_no_more() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    for name in ("s", "t"):
        publish(world, world.create(name, encryption=True), SECRETS[0])
    before = {path: world.files.content(path) for path in world.files.paths("streams")}
    masters.set({**K1, "k2": master(2)})
    world.node.renew_master_keys(world.now)
    world.settle()
    assert not isinstance(world.propose(SetMasterKey(master_key="k2")), LiftbridgeError)
    outcomes: list[object] = []
    world.node.rewrapping.begin(outcomes.append)
    world.settle()
    assert outcomes == [Rewrapped(2, 0)]
    world.node.rewrapping.begin(outcomes.append)
    assert outcomes[1:] == [Rewrapped(0, 0)]
    assert {path: world.files.content(path) for path in before} == before
    masters.set({"k2": master(2)})
    world.node.renew_master_keys(world.now)
    assert not world.told("stream_locked")
    world.kill()
    assert values_of(world) == values_of(world, "t") == [SECRETS[0]]


def test_rewrapping_without_the_former_key_names_it_and_changes_nothing() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    world.create(encryption=True)
    key = world.node.state.streams[_id(world)].data_key
    masters.set({**K1, "k2": master(2)})
    world.node.renew_master_keys(world.now)
    world.settle()
    world.propose(SetMasterKey(master_key="k2"))
    masters.set({"k2": master(2)})
    outcomes: list[object] = []
    world.node.rewrapping.begin(outcomes.append)
    world.settle()
    assert isinstance(outcomes[0], KeyUnavailableError)
    assert "'k1'" in outcomes[0].text
    assert world.node.state.streams[_id(world)].data_key == key


def _segment(world: NodeWorld, partition: Partition) -> str:
    """Return the only segment of a partition."""
    folder = f"-{partition.stream}/{partition.number}/"
    (found,) = (
        path for path in world.files.paths("streams") if folder in path and path.endswith(".log")
    )
    return found


@pytest.mark.parametrize("place", ["offset", "partition", "stream"])
def test_record_swapped_with_one_of_another_place_takes_the_partition_offline(place: str) -> None:
    world = world_of(HeldKeys(**K1))
    world.create(encryption=True, partitions=2)
    world.create("t", encryption=True)
    places = {
        "offset": [world.partition(), world.partition()],
        "partition": [world.partition(), world.partition("s", 1)],
        "stream": [world.partition(), world.partition("t")],
    }[place]
    for partition in places:
        publish(world, partition, SECRETS[0])
    ids = [partition.partition_id for partition in places]
    files = {partition.partition_id: _segment(world, partition) for partition in places}
    world.stop()
    # All batches are of the same size: exchange what is encrypted, and correct the checksums.
    data = {one: bytearray(world.files.content(path)) for one, path in files.items()}
    size = read_header(bytes(data[ids[0]]), 0).size
    assert read_header(bytes(data[ids[0]]), 0).attributes & ATTRIBUTE_ENCRYPTED
    starts = (0, size if place == "offset" else 0)
    bodies = [
        bytes(data[one][start + HEADER_SIZE : start + size])
        for one, start in zip(ids, starts, strict=True)
    ]
    for one, start, body in zip(ids, starts, reversed(bodies), strict=True):
        data[one][start + HEADER_SIZE : start + size] = body
        checksum = crc32c(bytes(data[one][start + 12 : start + size]))
        data[one][start + 8 : start + 12] = checksum.to_bytes(4)
    for one, path in files.items():
        world.files.put(path, bytes(data[one]))
    world.start()
    for partition in places:
        reading = world.subscribe(world.partition(partition.stream, partition.number))
        world.settle()
        assert isinstance(reading.end, (CorruptionError, PartitionOfflineError))
        assert world.partition(partition.stream, partition.number).offline_reason
    assert {told["path"] for told in world.told("corruption_found")} == {*files.values()}
    assert {path: world.files.content(path) for path in files.values()} == {
        path: bytes(data[one]) for one, path in files.items()
    }


def test_duplicates_of_an_idempotent_publisher_are_found_after_a_restart() -> None:
    world = world_of(HeldKeys(**K1))
    world.create(encryption=True)
    state = world.init_publisher()

    def send() -> int:
        stamp = PublisherStamp(state.publisher_id, state.publisher_epoch, 0)
        answers = world.publish(world.partition(), b"a", publisher=stamp)
        world.settle()
        return answers.offset

    assert send() == send() == 0
    world.crash()
    assert send() == 0
    assert values_of(world) == [b"a"]


def test_bulk_reads_give_plain_batches() -> None:
    world = world_of(HeldKeys(**K1))
    publish(world, world.create(encryption=True), b"a", b"b", b"c")
    read = BulkRead(
        world.partition(),
        world.node.client_reads,
        lambda: None,
        BulkRange(Offset(1), Offset(0), 0, follows=False),
    )
    chunk = read.pull(1 << 20)
    assert chunk is not None
    header = read_header(chunk.data, 0)
    assert (header.attributes, header.base_offset, chunk.count) == (0, 1, 2)
    assert [frame.value for frame in frames_of([chunk.data[HEADER_SIZE:]])] == [b"b", b"c"]


def test_refusals_have_the_codes_of_the_original() -> None:
    error = KeyUnavailableError("stream s is locked")
    assert async_code(error) == api_pb2.PublishAsyncError.ENCRYPTION_FAILED
    assert ack_error_of(error) is AckError.ENCRYPTION
    offline = PartitionOfflineError("damaged")
    assert async_code(offline) == api_pb2.PublishAsyncError.INTERNAL
    assert ack_error_of(offline) is AckError.UNKNOWN


def test_names_are_checked_before_keys() -> None:
    world = NodeWorld()
    creation = CreateStream(
        name=StreamName(""), subject="s", overrides=StreamOverrides(encryption=True)
    )
    outcome = world.propose(creation)
    assert isinstance(outcome, InvalidRequestError)
    assert outcome.text == "Name cannot be empty"


def test_service_that_returns_another_data_key_locks() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    masters.is_wrong = True
    world.kill()
    error = world.publish(world.partition(), b"x").error
    assert isinstance(error, KeyUnavailableError)
    assert "master key 'k1' unwraps another data key" in error.text


def test_late_answer_of_the_service_does_not_count() -> None:
    masters = HeldKeys(**K1)
    world = world_of(masters)
    publish(world, world.create(encryption=True), SECRETS[0])
    masters.is_slow = True
    world.kill()
    masters.set({})
    world.node.renew_master_keys(world.now)
    masters.answer(newest_first=True)
    assert isinstance(world.publish(world.partition(), b"x").error, KeyUnavailableError)
    assert world.node.context.data_keys.locked_count == 1


def test_later_default_does_not_describe_streams_of_before() -> None:
    world = world_of(HeldKeys(**K1))
    world.create()
    world.node.set_defaults(StreamOptions(encryption=True), world.now)
    stream = world.node.state.streams[_id(world)]
    assert not world.node.context.options_of(stream).encryption
