"""The driver answers after the sync, with what decide says then; a restart restores all."""

from dataclasses import dataclass, field

import pytest

from liftbridge_broker.controller import replay
from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    FenceBroker,
    InitPublisher,
    PauseStream,
    RegisterBroker,
    ResumeStream,
    SetReadonly,
    UnfenceBroker,
)
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import (
    BrokerEpochAnswer,
    Done,
    Record,
    StreamCreated,
    StreamIdAnswer,
)
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import (
    AlreadyExistsError,
    CorruptionError,
    InternalError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    StorageFullError,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    MetadataIndex,
    PublisherId,
    StreamId,
    StreamName,
)
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.node.metadata import driver
from liftbridge_broker.node.metadata.driver import COMMANDS_PER_TURN, MetadataDriver
from liftbridge_broker.ports.files import Token
from liftbridge_broker.wire.snapshots import encode_state
from liftbridge_testkit.lone_metadata import open_lone
from liftbridge_testkit.memory_files import Fault, MemoryFiles

SYNC = Token(3)
SECOND = 1_000_000_000
FOO = StreamName("foo")


@dataclass
class World:
    """A driver on files in memory, and everything it told."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    snapshot_entries: int = 1000
    answers: list[object] = field(default_factory=list)
    changes: list[tuple[int, tuple[Record, ...]]] = field(default_factory=list)
    failures: list[LiftbridgeError] = field(default_factory=list)
    driver: MetadataDriver = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        log, recovered = open_lone(self.files, sync_token=SYNC)
        self.driver = MetadataDriver(
            log,
            recovered,
            on_change=lambda index, records: self.changes.append((index, records)),
            on_failed=self.failures.append,
            snapshot_entries=self.snapshot_entries,
        )

    def propose(self, *commands: Command, now: int = 0) -> None:
        for command in commands:
            self.driver.propose(command, Instant(now), self.answers.append)

    def pump(self) -> None:
        self.sync()
        while self.driver.is_behind:
            self.driver.on_timer(Instant(0))

    def sync(self) -> None:
        while self.files.calls.waiting:
            for event in self.files.calls.pump():
                self.driver.on_file_event(event)

    def do(self, *commands: Command) -> None:
        self.propose(*commands)
        self.pump()


REGISTER = RegisterBroker(broker=BrokerId("a"), incarnation_id="i", data_dir_id="d")


def create(name: str) -> CreateStream:
    return CreateStream(name=StreamName(name), subject="s", partitions=2)


@pytest.fixture
def world() -> World:
    world = World()
    world.do(REGISTER)
    world.answers.clear()
    world.changes.clear()
    return world


def test_nothing_is_answered_or_changed_before_the_sync(world: World) -> None:
    world.propose(create("foo"))
    assert world.answers == []
    assert world.changes == []
    assert world.driver.state.stream("foo") is None

    world.pump()

    assert world.answers == [StreamIdAnswer(StreamId(3))]


def test_changes_are_told_with_their_index_before_the_answer(world: World) -> None:
    told_before: list[int] = []
    world.driver.propose(
        create("foo"), Instant(0), lambda _: told_before.append(len(world.changes))
    )
    world.pump()

    assert told_before == [1]
    ((index, (record,)),) = world.changes
    assert index == 3
    assert isinstance(record, StreamCreated)
    assert record.name == "foo"


def test_every_command_is_answered(world: World) -> None:
    world.do(
        create("foo"),
    )
    world.do(
        PauseStream(name=FOO),
        ResumeStream(name=FOO),
        SetReadonly(name=FOO),
        AlterStream(name=FOO, overrides=StreamOverrides(min_isr=1)),
        InitPublisher(stream=FOO, publisher="p"),
        DeleteStream(name=FOO),
        REGISTER,
    )

    assert world.answers == [
        StreamIdAnswer(StreamId(3)),
        Done(),
        Done(),
        Done(),
        Done(),
        PublisherState(PublisherId(8), 0),
        Done(),
        BrokerEpochAnswer(MetadataIndex(2)),
    ]
    assert world.driver.pending_count == 0


def test_a_hopeless_command_is_refused_at_once_and_not_logged(world: World) -> None:
    before = world.files.power.points
    world.propose(DeleteStream(name=FOO))

    (answer,) = world.answers
    assert isinstance(answer, NotFoundError)
    assert world.files.power.points == before


def test_of_two_equal_creations_in_flight_the_second_is_refused_when_applied(world: World) -> None:
    world.propose(create("foo"), create("foo"))
    assert world.answers == []

    world.pump()

    first, second = world.answers
    assert first == StreamIdAnswer(StreamId(3))
    assert isinstance(second, AlreadyExistsError)
    assert [index for index, _ in world.changes] == [3]
    assert world.driver.state.applied_index == 4


def test_a_thousand_creations_share_two_syncs(world: World) -> None:
    before = world.files.power.points
    world.propose(*(create(f"s{number}") for number in range(1000)))
    world.pump()

    assert world.answers == [StreamIdAnswer(StreamId(3 + number)) for number in range(1000)]
    # Two groups, each an append and a sync; then the mark, and the snapshot that was due:
    # a small file and a new log file, each made, written, synced and renamed.
    assert world.files.power.points - before <= 2 * 2 + 1 + 20


def test_a_callback_may_propose_and_order_is_kept(world: World) -> None:
    def deleted(answer: object) -> None:
        world.driver.propose(DeleteStream(name=FOO), Instant(0), world.answers.append)
        world.answers.append(answer)

    # The first one is on its way alone; the next two share a sync and come in one go.
    world.propose(create("first"))
    world.driver.propose(create("foo"), Instant(0), deleted)
    world.propose(create("bar"))
    world.pump()

    ids = [StreamIdAnswer(StreamId(number)) for number in (3, 4, 5)]
    assert world.answers == [*ids, Done()]
    assert [index for index, _ in world.changes] == [3, 4, 5, 6]


@pytest.mark.parametrize("snapshot_entries", [1, 2, 3, 1000])
def test_a_restart_restores_everything(snapshot_entries: int) -> None:
    world = World(snapshot_entries=snapshot_entries)
    world.do(REGISTER)
    world.do(create("foo"), create("bar"))
    world.do(InitPublisher(stream=FOO, publisher="p"))
    world.do(PauseStream(name=FOO, partitions=(1,), resume_all=True), SetReadonly(name=FOO))
    world.do(DeleteStream(name=StreamName("bar")))
    before = encode_state(world.driver.state)
    changes = list(world.changes)

    world.files.crash(None)
    world.start()

    assert encode_state(world.driver.state) == before
    assert world.changes == changes
    stream = world.driver.state.stream("foo")
    assert stream is not None
    assert [partition.readonly for partition in stream.partitions] == [True, True]
    assert [partition.paused for partition in stream.partitions] == [False, True]
    assert stream.resume_all
    world.answers.clear()
    world.do(InitPublisher(stream=FOO, publisher="p"))
    assert world.answers == [PublisherState(PublisherId(5), 1)]


def test_snapshots_are_made_at_the_threshold() -> None:
    world = World(snapshot_entries=5)
    world.do(REGISTER)
    world.do(create("a"), create("b"))
    assert not [path for path in world.files.paths() if path.endswith(".snapshot")]

    world.do(create("c"))

    assert "metadata/00000000000000000005.snapshot" in world.files.paths()
    world.do(create("d"), create("e"), create("f"), create("g"))
    assert "metadata/00000000000000000010.snapshot" not in world.files.paths()


FAILURES = [
    (create("new"), "Failed to replicate partition: "),
    (PauseStream(name=FOO), "Failed to pause stream: "),
    (SetReadonly(name=FOO), "Failed to set stream readonly flag: "),
    (ResumeStream(name=FOO), "Failed to resume stream: "),
    (AlterStream(name=FOO, overrides=StreamOverrides()), "Failed to alter stream: "),
    (InitPublisher(stream=FOO, publisher="p"), "Failed to initialise publisher: "),
]


@pytest.mark.parametrize(("command", "prefix"), FAILURES)
def test_a_full_disk_is_told_in_the_words_of_the_original(
    world: World, command: Command, prefix: str
) -> None:
    world.do(create("foo"))
    world.answers.clear()
    world.files.capacity_bytes -= world.files.free_bytes()

    world.do(command)

    (answer,) = world.answers
    assert isinstance(answer, InternalError)
    assert answer.text == prefix + "not written: the disk is full"
    assert isinstance(answer.__cause__, StorageFullError)
    assert world.failures == []


def test_a_stream_can_be_deleted_on_a_full_disk(world: World) -> None:
    world.do(create("foo"))
    world.answers.clear()
    world.files.capacity_bytes -= world.files.free_bytes()

    world.do(DeleteStream(name=FOO))

    assert world.answers == [Done()]


@pytest.mark.parametrize(
    ("command", "prefix"), [*FAILURES, (DeleteStream(name=FOO), "Failed to delete stream: ")]
)
def test_a_failed_sync_answers_everyone_and_ends_the_process(
    world: World, command: Command, prefix: str
) -> None:
    world.do(create("foo"))
    world.answers.clear()
    world.files.fail(Fault("sync"))

    world.propose(command, create("waiting"))
    world.pump()

    first, second = world.answers
    assert isinstance(first, InternalError)
    assert first.text.startswith(prefix + "outcome unknown: ")
    assert isinstance(first.__cause__, OutcomeUnknownError)
    assert isinstance(second, InternalError)
    assert second.text.startswith("Failed to replicate partition: not written: ")
    assert len(world.failures) == 1


def test_a_slow_log_is_answered_after_the_timeout_and_applied_later(world: World) -> None:
    world.propose(create("foo"), now=SECOND)
    world.propose(create("bar"), now=2 * SECOND)
    assert world.driver.next_deadline() == 6 * SECOND

    world.driver.on_timer(Instant(6 * SECOND - 1))
    assert world.answers == []
    world.driver.on_timer(Instant(6 * SECOND))

    (answer,) = world.answers
    assert isinstance(answer, InternalError)
    assert answer.text == "Failed to replicate partition: raft operation timed out"
    assert world.driver.next_deadline() == 7 * SECOND
    world.pump()
    assert world.answers[1:] == [StreamIdAnswer(StreamId(4))]
    assert world.driver.state.stream("foo") is not None
    assert world.driver.next_deadline() is None


def test_a_proposal_that_timed_out_and_then_failed_is_answered_once(world: World) -> None:
    world.propose(create("foo"))
    world.driver.on_timer(Instant(5 * SECOND))
    world.files.fail(Fault("sync"))

    world.pump()

    assert len(world.answers) == 1
    assert len(world.failures) == 1


def test_a_log_of_a_newer_version_does_not_start(world: World) -> None:
    log, _ = open_lone(MemoryFiles(), sync_token=SYNC)
    recovered = open_lone(world.files, sync_token=SYNC)[1]
    newer = recovered._replace(entries=[recovered.entries[0]._replace(command=b"\xfa\x0f\x00")])

    with pytest.raises(CorruptionError, match="does not know"):
        MetadataDriver(log, newer, on_change=lambda *_: None, on_failed=world.failures.append)


def test_a_snapshot_of_another_index_does_not_start(world: World) -> None:
    log, recovered = open_lone(MemoryFiles(), sync_token=SYNC)
    wrong = recovered._replace(
        snapshot_index=MetadataIndex(9), snapshot=encode_state(world.driver.state)
    )

    with pytest.raises(CorruptionError, match="index 2 in the file of index 9"):
        MetadataDriver(log, wrong, on_change=lambda *_: None, on_failed=world.failures.append)


def test_a_turn_applies_so_many_commands_and_the_others_follow_in_order(world: World) -> None:
    world.propose(create("foo"))
    names = ["foo", *(f"s{number}" for number in range(2 * COMMANDS_PER_TURN + 1))]
    world.propose(*map(create, names[1:]))
    world.sync()
    applied = [len(world.driver.state.streams)]
    while world.driver.is_behind:
        world.driver.on_timer(Instant(0))
        applied.append(len(world.driver.state.streams))
    # The first has a sync of its own, the others share one.
    assert applied == [1 + COMMANDS_PER_TURN, 1 + 2 * COMMANDS_PER_TURN, len(names)]
    assert len(world.answers) == len(names)
    assert list(world.driver.state.stream_ids) == names


def test_the_loss_of_a_broker_is_decided_once(world: World, monkeypatch) -> None:
    decided = []

    def noted(state, index, command):
        decided.append(command)
        return decide(state, index, command)

    monkeypatch.setattr(driver, "decide", noted)
    monkeypatch.setattr(replay, "decide", noted)
    epoch = world.driver.state.brokers[REGISTER.broker].broker_epoch
    applied = world.driver.state.applied_index
    world.do(UnfenceBroker(broker=REGISTER.broker, broker_epoch=epoch, applied_index=applied))
    decided.clear()
    fence = FenceBroker(broker=REGISTER.broker, broker_epoch=epoch)
    world.do(fence)
    assert world.answers == [Done(), Done()]
    assert decided == [fence]


def test_who_is_behind_refuses_nothing_early(world: World) -> None:
    world.do(create("foo"))
    world.propose(*(create(f"s{number}") for number in range(1 + COMMANDS_PER_TURN)))
    world.propose(DeleteStream(name=FOO))
    world.sync()
    assert world.driver.is_behind
    told = len(world.answers)
    world.propose(create("foo"))
    assert len(world.answers) == told
    world.driver.on_timer(Instant(0))
    world.pump()
    assert world.answers[told] == Done()
    assert isinstance(world.answers[told + 1], StreamIdAnswer)
