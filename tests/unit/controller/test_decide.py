"""Every row of the status table that depends on metadata, with the exact text."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from liftbridge_broker.controller.commands import (
    AdvertiseListeners,
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    InitPublisher,
    MarkStream,
    PauseStream,
    RegisterBroker,
    ResumeStream,
    SetCatchUpRate,
    SetReadonly,
)
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import (
    BrokerEpochAnswer,
    Done,
    PartitionChanged,
    PublisherForgotten,
    StreamIdAnswer,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState, PublisherState
from liftbridge_broker.controller.streams import PUBLISHERS_MAX
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    LimitError,
    NotFoundError,
    StaleBrokerEpochError,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionNumber,
    PublisherId,
    StreamId,
    StreamName,
    partition_id,
)
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides

INT64_MAX = 2**63 - 1
ENCRYPTION_TEXT = (
    "Failed on preconditions for stream's encryption handler: the stream has no data key"
)


def registration(name: str = "a", incarnation: str = "one", **given: object) -> RegisterBroker:
    """A registration of a version without clusters, which is not fenced first."""
    command = RegisterBroker(
        broker=BrokerId(name), incarnation_id=incarnation, data_dir_id=f"disk-{name}"
    )
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


def creation(name: str = "new", **given: object) -> CreateStream:
    return replace(CreateStream(name=StreamName(name), subject="s"), **given)  # type: ignore[arg-type]  # names of fields


def state_after(*commands: Command) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate(commands, start=1):
        decision = apply(state, MetadataIndex(index), command)
        assert not isinstance(decision.answer, LiftbridgeError), decision.answer
    return state


def run(state: ClusterState, command: Command) -> object:
    return apply(state, MetadataIndex(state.applied_index + 1), command).answer


@pytest.fixture
def state() -> ClusterState:
    """One broker, streams `foo` of three partitions and `__cursors`."""
    return state_after(
        registration(),
        creation("foo", partitions=3),
        creation("__cursors", is_internal=True, replication_factor=-1),
    )


A = BrokerId("a")
OUTSIDE = ListenerAddress("outside", "node.example.com", 30_392)
FOO = StreamName("foo")
NONE = StreamName("none")
CURSORS = StreamName("__cursors")


def advertised(*listeners: ListenerAddress, epoch: int = 1) -> AdvertiseListeners:
    return AdvertiseListeners(broker=A, broker_epoch=epoch, listeners=listeners)


class Row(NamedTuple):
    command: Command
    error: type[LiftbridgeError]
    text: str


def bad_subject(subject: str) -> Row:
    return Row(creation(subject=subject), InvalidRequestError, "Subject is invalid")


def bad_value(text: str, **overrides: object) -> Row:
    given = StreamOverrides(**overrides)  # type: ignore[arg-type]  # names of fields
    return Row(creation(overrides=given), InvalidRequestError, text)


ROWS = [
    Row(creation(""), InvalidRequestError, "Name cannot be empty"),
    bad_subject(""),
    bad_subject("a b"),
    bad_subject("a\tb"),
    bad_subject("a\rb"),
    bad_subject("a\nb"),
    bad_subject("a..b"),
    bad_subject(".a"),
    bad_subject("a."),
    Row(creation("__activity"), InvalidRequestError, "Stream is reserved"),
    Row(creation("__cursors"), InvalidRequestError, "Stream is reserved"),
    Row(
        creation(overrides=StreamOverrides(encryption=True)),
        FailedPreconditionError,
        ENCRYPTION_TEXT,
    ),
    Row(creation(partitions=-1), InvalidRequestError, "Invalid partitions -1"),
    Row(
        creation(partitions=10_001),
        InvalidRequestError,
        "Invalid partitions 10001, limit 10000 (streams.max.partitions)",
    ),
    Row(
        creation(partitions=2_000_000, partitions_max=2**32 - 1),
        InvalidRequestError,
        "Invalid partitions 2000000, limit 1000000 (streams.max.partitions)",
    ),
    Row(creation(replication_factor=-2), InvalidRequestError, "Invalid replicationFactor -2"),
    Row(
        creation(replication_factor=2),
        InvalidRequestError,
        "Invalid replicationFactor 2, cluster size 1",
    ),
    bad_value("Invalid retentionMaxBytes -1, must not be negative", retention_bytes_max=-1),
    bad_value("Invalid retentionMaxMessages -1, must not be negative", retention_messages_max=-1),
    bad_value("Invalid retentionMaxAge -1, must not be negative", retention_age_ms_max=-1),
    bad_value("Invalid cleanerInterval -1, must not be negative", cleaner_interval_ms=-1),
    bad_value("Invalid segmentMaxBytes -1, must not be negative", segment_bytes_max=-1),
    bad_value("Invalid segmentMaxAge -1, must not be negative", segment_age_ms_max=-1),
    bad_value("Invalid compactMaxGoroutines -1, must not be negative", compact_goroutines_max=-1),
    bad_value("Invalid autoPauseTime -1, must not be negative", auto_pause_ms=-1),
    bad_value("Invalid minIsr -1, must not be negative", min_isr=-1),
    bad_value("Invalid tombstone_retention_ms -1, must not be negative", tombstone_retention_ms=-1),
    bad_value("Invalid minIsr 2, must not exceed replicationFactor 1", min_isr=2),
    Row(creation("foo"), AlreadyExistsError, "stream already exists"),
    Row(creation(streams_max=2), LimitError, "2 streams exist, limit 2 (streams.max.count)"),
    Row(
        creation(subject="a.>", partitions=2),
        InvalidRequestError,
        "Subject is invalid: '>' leaves no room for the numbers of several partitions",
    ),
    Row(
        creation(group="a b"),
        InvalidRequestError,
        "Group is invalid: it contains a blank or a character that cannot be printed",
    ),
    Row(DeleteStream(name=CURSORS), InvalidRequestError, "Stream is reserved"),
    Row(DeleteStream(name=NONE), NotFoundError, "stream does not exist"),
    Row(PauseStream(name=NONE), NotFoundError, "stream not found"),
    Row(PauseStream(name=NONE, partitions=(0,)), NotFoundError, "stream does not exist"),
    Row(PauseStream(name=FOO, partitions=(0, 3)), NotFoundError, "partition does not exist"),
    Row(PauseStream(name=FOO, partitions=(-1,)), NotFoundError, "partition does not exist"),
    Row(PauseStream(name=CURSORS), InvalidRequestError, "Stream is reserved"),
    Row(SetReadonly(name=NONE), NotFoundError, "stream not found"),
    Row(SetReadonly(name=NONE, partitions=(0,)), NotFoundError, "stream does not exist"),
    Row(SetReadonly(name=FOO, partitions=(3,)), NotFoundError, "partition does not exist"),
    Row(SetReadonly(name=CURSORS), InvalidRequestError, "Stream is reserved"),
    Row(ResumeStream(name=NONE), NotFoundError, "stream not found"),
    Row(ResumeStream(name=NONE, partitions=(0,)), NotFoundError, "stream does not exist"),
    Row(ResumeStream(name=FOO, partitions=(3,)), NotFoundError, "partition does not exist"),
    Row(AlterStream(name=NONE, overrides=StreamOverrides()), NotFoundError,
        "stream does not exist"),
    Row(AlterStream(name=CURSORS, overrides=StreamOverrides()), InvalidRequestError,
        "Stream is reserved"),
    Row(AlterStream(name=FOO, overrides=StreamOverrides(retention_bytes_max=-1)),
        InvalidRequestError, "Invalid retentionMaxBytes -1, must not be negative"),
    Row(AlterStream(name=FOO, overrides=StreamOverrides(min_isr=2)),
        InvalidRequestError, "Invalid minIsr 2, must not exceed replicationFactor 1"),
    Row(AlterStream(name=FOO, overrides=StreamOverrides(encryption=True)),
        FailedPreconditionError, ENCRYPTION_TEXT),
    Row(InitPublisher(stream=NONE, publisher="p"), NotFoundError, "stream does not exist"),
    Row(InitPublisher(stream=FOO, publisher=""), InvalidRequestError,
        "Invalid publisher, must be 1 to 255 bytes of printable text"),
    Row(InitPublisher(stream=FOO, publisher="é" * 128), InvalidRequestError,
        "Invalid publisher, must be 1 to 255 bytes of printable text"),
    Row(MarkStream(name=NONE, stream_id=3), NotFoundError, "stream does not exist"),
    Row(MarkStream(name=FOO, stream_id=3, owner="x"), FailedPreconditionError,
        "stream foo is 2, not 3: it was recreated"),
    Row(MarkStream(name=FOO, stream_id=2, expected="y", owner="x"), FailedPreconditionError,
        "stream foo has owner '', not 'y'"),
    Row(MarkStream(name=FOO, stream_id=2, owner="é" * 513), InvalidRequestError,
        "Invalid owner of 1026 bytes, limit 1024"),
    Row(SetCatchUpRate(bytes_per_second=1_023), InvalidRequestError,
        "Invalid catch-up rate of 1023 bytes a second, must be 0 for no limit or at least 1024"),
    Row(advertised(OUTSIDE, OUTSIDE), InvalidRequestError,
        "Invalid listeners, a name is listed twice"),
    Row(advertised(*(OUTSIDE._replace(name=f"l{number}") for number in range(9))),
        InvalidRequestError, "Invalid listeners, 9 listed, at most 8"),
    Row(advertised(OUTSIDE._replace(name="Out")), InvalidRequestError,
        "Invalid listeners, 'Out' must be 1 to 40 letters a-z, digits and dashes"),
    Row(advertised(OUTSIDE._replace(host="")), InvalidRequestError,
        "Invalid listeners, outside needs a host of 1 to 255 printable characters"),
    Row(advertised(OUTSIDE._replace(host="h" * 256)), InvalidRequestError,
        "Invalid listeners, outside needs a host of 1 to 255 printable characters"),
    Row(advertised(OUTSIDE._replace(port=65_536)), InvalidRequestError,
        "Invalid listeners, outside needs a port from 1 to 65535"),
    Row(advertised(OUTSIDE, epoch=2), StaleBrokerEpochError,
        "broker a has broker epoch 1, not 2"),
    Row(registration(""), InvalidRequestError,
        "Invalid registration, broker and identities cannot be empty"),
    Row(registration("a", "two", data_dir_id="other"), FailedPreconditionError,
        "broker a is registered with data directory disk-a, not other"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{type(row.command).__name__}-{row.text}")
def test_refusals_have_the_class_and_text_of_their_row(state: ClusterState, row: Row) -> None:
    decision = decide(state, MetadataIndex(4), row.command)

    assert decision.records == ()
    assert type(decision.answer) is row.error
    assert decision.answer.text == row.text


ORDER = [
    creation("", subject=""),
    creation("__cursors", subject=""),
    creation("__cursors", overrides=StreamOverrides(encryption=True)),
    creation("foo", overrides=StreamOverrides(encryption=True), partitions=-1),
    creation("foo", partitions=-1, replication_factor=-2),
    creation("foo", replication_factor=-2),
    creation("foo", replication_factor=2),
    creation("foo"),
]
ORDER_TEXTS = [
    "Name cannot be empty",
    "Subject is invalid",
    "Stream is reserved",
    ENCRYPTION_TEXT,
    "Invalid partitions -1",
    "Invalid replicationFactor -2",
    "Invalid replicationFactor 2, cluster size 1",
    "stream already exists",
]


def test_creation_is_checked_in_the_order_of_the_original(state: ClusterState) -> None:
    answers = [decide(state, MetadataIndex(4), command).answer for command in ORDER]

    assert [answer.text for answer in answers if isinstance(answer, LiftbridgeError)] == ORDER_TEXTS


def test_without_a_broker_nothing_can_be_replicated() -> None:
    empty = ClusterState()

    one = decide(empty, MetadataIndex(1), creation()).answer
    every = decide(empty, MetadataIndex(1), creation(replication_factor=-1)).answer

    assert isinstance(one, InvalidRequestError)
    assert one.text == "Invalid replicationFactor 1, cluster size 0"
    assert isinstance(every, InvalidRequestError)
    assert every.text == "Invalid replicationFactor -1"


def test_zero_partitions_and_zero_replicas_mean_one(state: ClusterState) -> None:
    answer = run(state, creation(partitions=0, replication_factor=0))

    assert answer == StreamIdAnswer(StreamId(4))
    stream = state.stream("new")
    assert stream is not None
    (partition,) = stream.partitions
    assert partition.replicas == partition.isr == ("a",)
    assert partition.leader == "a"
    assert (partition.leader_epoch, partition.partition_epoch) == (4, 4)
    assert partition.partition_id == partition_id(StreamId(4), PartitionNumber(0))


def test_factor_minus_one_takes_every_broker_and_leaders_take_turns() -> None:
    state = state_after(
        registration("a"),
        registration("b"),
        registration("c"),
        creation(partitions=4, replication_factor=-1),
    )

    stream = state.stream("new")
    assert stream is not None
    assert [partition.replicas for partition in stream.partitions] == [
        ("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")
    ]  # fmt: skip
    assert [partition.leader for partition in stream.partitions] == ["a", "b", "c", "a"]


def test_zero_in_sync_replicas_mean_one(state: ClusterState) -> None:
    run(state, creation(overrides=StreamOverrides(min_isr=0)))

    stream = state.stream("new")
    assert stream is not None
    assert stream.overrides.min_isr == 1


def test_overrides_are_kept_as_given(state: ClusterState) -> None:
    overrides = StreamOverrides(
        retention_bytes_max=0, retention_age_ms_max=INT64_MAX, compact_enabled=False,
        encryption=False, fsync_policy=FsyncPolicy.COMMIT, min_isr=1,
    )  # fmt: skip

    run(state, creation(overrides=overrides))

    stream = state.stream("new")
    assert stream is not None
    assert stream.overrides == overrides


def test_streams_may_share_a_subject(state: ClusterState) -> None:
    assert run(state, creation("one", subject="same")) == StreamIdAnswer(StreamId(4))
    assert run(state, creation("two", subject="same")) == StreamIdAnswer(StreamId(5))


def test_a_name_is_free_after_deletion_and_the_stream_is_another_one(state: ClusterState) -> None:
    assert run(state, DeleteStream(name=FOO)) == Done()
    assert state.stream("foo") is None

    assert run(state, creation("foo")) == StreamIdAnswer(StreamId(5))


def test_the_broker_itself_may_do_everything_with_reserved_streams(state: ClusterState) -> None:
    answers = [
        run(state, PauseStream(name=CURSORS, is_internal=True)),
        run(state, ResumeStream(name=CURSORS)),
        run(state, SetReadonly(name=CURSORS, is_internal=True)),
        run(state, AlterStream(name=CURSORS, overrides=StreamOverrides(), is_internal=True)),
        run(state, DeleteStream(name=CURSORS, is_internal=True)),
    ]

    assert answers == [Done()] * 5


def paused(state: ClusterState) -> list[bool]:
    stream = state.stream("foo")
    assert stream is not None
    return [partition.paused for partition in stream.partitions]


def test_pause_without_numbers_takes_all_and_resume_clears_the_flag(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO))
    assert paused(state) == [True, True, True]

    run(state, ResumeStream(name=FOO, partitions=(1,)))
    assert paused(state) == [True, False, True]


def test_resume_all_resumes_every_partition_and_is_used_up(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO, partitions=(0, 2), resume_all=True))
    run(state, ResumeStream(name=FOO, partitions=(2,)))
    assert paused(state) == [False, False, False]

    run(state, PauseStream(name=FOO, partitions=(0, 1)))
    run(state, ResumeStream(name=FOO, partitions=(1,)))
    assert paused(state) == [True, False, False]


def test_a_used_up_resume_all_does_not_come_back_by_idleness(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO, resume_all=True))
    run(state, ResumeStream(name=FOO))
    run(state, PauseStream(name=FOO, is_automatic=True, is_internal=True))
    run(state, ResumeStream(name=FOO, partitions=(0,)))

    assert paused(state) == [False, True, True]


def test_a_later_pause_decides_what_resume_does(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO, resume_all=True))
    run(state, PauseStream(name=FOO, partitions=(0,)))
    run(state, ResumeStream(name=FOO, partitions=(0,)))

    assert paused(state) == [False, True, True]


def test_pause_for_idleness_yields_to_a_pause_by_hand(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO, partitions=(0,), resume_all=True))
    run(state, PauseStream(name=FOO, partitions=(0, 1), is_automatic=True, is_internal=True))

    stream = state.stream("foo")
    assert stream is not None
    assert [partition.auto_paused for partition in stream.partitions] == [False, True, False]
    assert stream.resume_all

    run(state, PauseStream(name=FOO, partitions=(1,)))
    assert [partition.auto_paused for partition in stream.partitions] == [False, False, False]
    assert paused(state) == [True, True, False]


def test_asking_for_the_present_state_is_told_again(state: ClusterState) -> None:
    run(state, PauseStream(name=FOO, partitions=(1, 1)))
    again = decide(state, MetadataIndex(5), PauseStream(name=FOO, partitions=(1,)))
    readonly = decide(state, MetadataIndex(5), SetReadonly(name=FOO, readonly=False))

    assert again.answer == readonly.answer == Done()
    assert len(again.records) == len(readonly.records) == 1


def test_resuming_what_is_not_paused_changes_nothing(state: ClusterState) -> None:
    decision = decide(state, MetadataIndex(4), ResumeStream(name=FOO))

    assert decision == ((), Done())


def test_readonly_is_set_and_taken_back(state: ClusterState) -> None:
    stream = state.stream("foo")
    assert stream is not None
    run(state, SetReadonly(name=FOO))
    run(state, SetReadonly(name=FOO, partitions=(2, 0), readonly=False))

    assert [partition.readonly for partition in stream.partitions] == [False, True, False]


def test_alter_changes_what_is_given_and_nothing_else(state: ClusterState) -> None:
    run(state, creation(overrides=StreamOverrides(retention_bytes_max=5, auto_pause_ms=6)))
    run(state, AlterStream(
        name=StreamName("new"), overrides=StreamOverrides(retention_bytes_max=7, min_isr=0)
    ))  # fmt: skip

    stream = state.stream("new")
    assert stream is not None
    assert stream.overrides == StreamOverrides(retention_bytes_max=7, auto_pause_ms=6, min_isr=1)


def elections(state: ClusterState, command: RegisterBroker) -> list[PartitionChanged]:
    decision = decide(state, MetadataIndex(state.applied_index + 1), command)
    assert decision.answer == BrokerEpochAnswer(MetadataIndex(state.applied_index + 1))
    return [record for record in decision.records if isinstance(record, PartitionChanged)]


def test_a_restart_is_a_new_session_with_new_leader_epochs(state: ClusterState) -> None:
    assert run(state, registration("a", "two")) == BrokerEpochAnswer(MetadataIndex(4))

    stream = state.stream("foo")
    assert stream is not None
    for partition in stream.partitions:
        assert partition.leader == "a"
        assert (partition.leader_epoch, partition.partition_epoch) == (4, 4)
        assert partition.unclean_epoch == 4


def test_a_clean_restart_loses_nothing(state: ClusterState) -> None:
    found = elections(state, registration("a", "two", previous_broker_epoch=1))

    assert len(found) == 4
    assert not any(election.is_unclean for election in found)


def test_a_marker_of_an_older_session_is_not_clean(state: ClusterState) -> None:
    run(state, registration("a", "two", previous_broker_epoch=1))
    found = elections(state, registration("a", "three", previous_broker_epoch=1))

    assert all(election.is_unclean for election in found)


def test_partitions_found_whole_are_clean_after_a_crash() -> None:
    overrides = StreamOverrides(fsync_policy=FsyncPolicy.COMMIT)
    state = state_after(registration(), creation("foo", partitions=3, overrides=overrides))
    whole = partition_id(StreamId(2), PartitionNumber(1))
    found = elections(state, registration("a", "two", clean_partitions=(whole,)))
    assert [one.state.partition_id for one in found if not one.is_unclean] == [whole]


def test_registering_again_by_the_same_process_is_a_retry(state: ClusterState) -> None:
    decision = decide(state, MetadataIndex(4), registration())

    assert decision == ((), BrokerEpochAnswer(MetadataIndex(1)))


def test_a_broker_without_replicas_elects_nothing(state: ClusterState) -> None:
    assert not any(one.is_election for one in elections(state, registration("b")))


def test_another_broker_keeps_what_it_leads_and_takes_over() -> None:
    state = state_after(
        registration("a"), registration("b"), creation(partitions=2, replication_factor=2)
    )
    run(state, registration("b", "two"))

    stream = state.stream("new")
    assert stream is not None
    assert [(one.leader, one.leader_epoch) for one in stream.partitions] == [("a", 3), ("a", 4)]
    assert [one.isr for one in stream.partitions] == [("a",), ("a",)]


def test_each_initialisation_of_a_publisher_raises_its_epoch(state: ClusterState) -> None:
    command = InitPublisher(stream=FOO, publisher="p")

    assert run(state, command) == PublisherState(PublisherId(4), 0)
    assert run(state, command) == PublisherState(PublisherId(4), 1)
    assert run(state, replace(command, publisher="q")) == PublisherState(PublisherId(6), 0)
    assert state.publisher_epochs == {4: 1, 6: 0}


def test_stream_is_marked_by_whoever_knows_its_mark(state: ClusterState) -> None:
    def mark(expected: str, owner: str) -> object:
        command = MarkStream(name=FOO, stream_id=2, expected=expected, owner=owner)
        answer = run(state, command)
        return answer if isinstance(answer, Done) else type(answer)

    def owner() -> str:
        stream = state.stream(FOO)
        assert stream is not None
        return stream.owner

    assert (mark("", "one"), owner()) == (Done(), "one")
    assert (mark("", "one"), owner()) == (Done(), "one")  # said again
    assert (mark("", "two"), owner()) == (FailedPreconditionError, "one")
    assert (mark("one", "two"), owner()) == (Done(), "two")
    assert (mark("two", ""), owner()) == (Done(), "")


def test_catch_up_rate_is_set_and_taken_back(state: ClusterState) -> None:
    assert run(state, SetCatchUpRate(bytes_per_second=4_096)) == Done()
    assert state.catch_up_rate == 4_096
    assert run(state, SetCatchUpRate(bytes_per_second=0)) == Done()
    assert state.catch_up_rate == 0


def test_listeners_of_a_broker_are_replaced_and_survive_its_restart(state: ClusterState) -> None:
    def known() -> tuple[ListenerAddress, ...]:
        return state.brokers[A].listeners

    inside = OUTSIDE._replace(name="inside")
    assert (run(state, advertised(OUTSIDE)), known()) == (Done(), (OUTSIDE,))
    assert decide(state, MetadataIndex(9), advertised(OUTSIDE)).records == ()
    assert (run(state, advertised(inside)), known()) == (Done(), (inside,))
    run(state, registration("a", "two"))
    assert known() == (inside,)
    run(state, advertised(epoch=state.brokers[A].broker_epoch))
    assert known() == ()


def test_publishers_are_known_per_stream_and_go_with_it(state: ClusterState) -> None:
    run(state, creation())
    run(state, InitPublisher(stream=FOO, publisher="p"))
    answer = run(state, InitPublisher(stream=StreamName("new"), publisher="p"))
    assert answer == PublisherState(PublisherId(6), 0)

    run(state, DeleteStream(name=FOO))
    assert state.publisher_epochs == {6: 0}


def test_the_longest_unused_publisher_makes_place(state: ClusterState) -> None:
    stream = state.stream("foo")
    assert stream is not None
    for number in range(PUBLISHERS_MAX):
        known = PublisherState(PublisherId(10**6 + number), 0)
        stream.publishers[f"p{number}"] = known
        state.publisher_epochs[known.publisher_id] = 0
    run(state, InitPublisher(stream=FOO, publisher="p0"))

    decision = decide(state, MetadataIndex(5), InitPublisher(stream=FOO, publisher="more"))

    assert decision.records[0] == PublisherForgotten(StreamId(2), "p1", PublisherId(10**6 + 1))
    run(state, InitPublisher(stream=FOO, publisher="more"))
    assert len(stream.publishers) == len(state.publisher_epochs) == PUBLISHERS_MAX


def test_an_exhausted_epoch_gives_the_publisher_a_new_id(state: ClusterState) -> None:
    stream = state.stream("foo")
    assert stream is not None
    stream.publishers["p"] = PublisherState(PublisherId(3), 2**32 - 1)
    state.publisher_epochs[PublisherId(3)] = 2**32 - 1

    assert run(state, InitPublisher(stream=FOO, publisher="p")) == PublisherState(PublisherId(4), 0)
    assert state.publisher_epochs == {4: 0}


def test_a_refused_command_only_moves_the_applied_index(state: ClusterState) -> None:
    answer = run(state, creation("foo"))

    assert isinstance(answer, AlreadyExistsError)
    assert state.applied_index == 4
    assert list(state.stream_ids) == ["foo", "__cursors"]
