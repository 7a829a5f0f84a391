"""What becomes of a change that the metadata log fails: what is known of it reaches who asked."""

from collections.abc import Callable, Sequence
from random import Random
from typing import get_args

import pytest

from liftbridge_broker.controller.commands import FEATURE_LEVEL, Command, CreateStream
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    ChangeNotMadeError,
    GrpcStatus,
    InternalError,
    LiftbridgeError,
    NoMetadataLeaderError,
    NotAppendedError,
    OutcomeUnknownError,
    StorageFullError,
    TooLargeError,
    UnavailableError,
    error_classes,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, StreamName
from liftbridge_broker.node.metadata.driver import (
    FAILURES,
    PROPOSAL_TIMEOUT_NS_DEFAULT,
    MetadataDriver,
)
from liftbridge_broker.node.refusals import failed_change
from liftbridge_broker.ports.metadata import (
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Refused,
    Urgency,
)
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.wire.peer.bodies import ProposeRefused
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.controller_commands import KINDS, CommandMaker
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.metadata_group import Group, Member

DENIALS = (ChangeNotMadeError, NotAppendedError, TooLargeError, UnavailableError)
"""Kinds of errors that say that a change was not made and will not be."""


OF_GROUPS = (
    JoinGroup(group_id="g", member_id="m", streams=("s",)),
    LeaveGroup(group_id="g", member_id="m"),
    ChangeCoordinator(group_id="g", coordinator=BrokerId("b"), coordinator_epoch=1),
    ReleasePartitions(group_id="g", member_id="m", member_epoch=1, group_epoch=1, partition_ids=()),
    DeleteGroup(group_id="g"),
)


def one_of_each() -> dict[type[Command], Command]:
    """A command of every kind that there is."""
    maker = CommandMaker(Random(1), ClusterState())
    made = (maker.make(kind) for kind in KINDS for _ in range(20))
    found: dict[type[Command], Command] = {type(one): one for one in (*made, *OF_GROUPS)}
    assert set(found) == set(get_args(Command))
    return found


class FailingLog:
    """A log that fails what it is given."""

    is_leader = False

    def __init__(self, error: LiftbridgeError | None) -> None:
        self._error = error
        self._events: list[MetadataEvent] = []

    def propose(self, token: ProposalToken, _command: bytes, _urgency: Urgency) -> None:
        if self._error is not None:
            self._events.append(Refused(token, self._error))

    def on_timer(self, _now: Instant) -> None: ...

    def take_events(self) -> Sequence[MetadataEvent]:
        events, self._events = self._events, []
        return events


def told(command: Command, error: LiftbridgeError | None) -> LiftbridgeError:
    """What the proposer of a command is told when the log fails it, or says nothing in time."""
    answers: list[object] = []
    driver = MetadataDriver(
        FailingLog(error),  # type: ignore[arg-type]  # as much as is asked for
        RecoveredMetadata(MetadataIndex(0), b"", (), ()),
        on_change=lambda *_: None,
        on_failed=lambda _: None,
    )
    driver.state.feature_level = FEATURE_LEVEL
    driver.propose(command, Instant(0), answers.append)
    driver.on_timer(Instant(PROPOSAL_TIMEOUT_NS_DEFAULT))
    (answer,) = answers
    assert isinstance(answer, LiftbridgeError)
    return answer


def code_of(kind: type[LiftbridgeError]) -> str:
    """Code of what a client is told when an error of a kind failed its change."""
    if not issubclass(kind, DENIALS):
        return "INTERNAL"
    return "CHANGE_NOT_MADE" if kind.retriable else "CHANGE_REFUSED"


def test_every_command_has_its_words() -> None:
    assert set(FAILURES) == set(get_args(Command))


@pytest.mark.parametrize(
    "kind", [one for one in error_classes() if one is not NoMetadataLeaderError]
)
def test_refusal_keeps_what_its_cause_says_of_the_outcome(kind: type[LiftbridgeError]) -> None:
    for type_, command in one_of_each().items():
        cause = kind("why")
        error = told(command, cause)
        assert isinstance(error, InternalError)
        assert (error.status, error.text) == (GrpcStatus.INTERNAL, f"{FAILURES[type_]}: why")
        assert error.code == code_of(kind)
        assert error.__cause__ is cause
        assert isinstance(error, ChangeNotMadeError) == issubclass(kind, DENIALS)
        assert error.retriable == (issubclass(kind, DENIALS) and kind.retriable)


def test_words_of_the_original_are_told_alone_where_nobody_leads() -> None:
    for command in one_of_each().values():
        error = told(command, NoMetadataLeaderError())
        assert isinstance(error, ChangeNotMadeError)
        assert (error.code, error.text) == ("NO_METADATA_LEADER", "no known metadata leader")


def test_change_without_an_answer_in_time_has_an_open_outcome() -> None:
    for type_, command in one_of_each().items():
        error = told(command, None)
        assert (error.code, error.status) == ("INTERNAL", GrpcStatus.INTERNAL)
        assert error.text == f"{FAILURES[type_]}: raft operation timed out"
        assert isinstance(error.__cause__, OutcomeUnknownError)


# From one broker to the other.


@pytest.mark.parametrize("is_definite", [True, False])
@pytest.mark.parametrize("kind", error_classes())
def test_refusal_of_another_broker_is_as_definite_as_that_one_says(
    kind: type[LiftbridgeError], is_definite: bool
) -> None:
    group = Group(3)
    leader = group.elect()
    one = group.followers[0]
    token = one.propose(b"x")
    group.network.sent.clear()
    origin = f"{one.peer.broker}-{one.life}".encode().ljust(16, b".")
    refusal = ProposeRefused(origin, token, is_definite, kind.code, "why", leader.peer.broker)

    leader.link.send(one.peer.broker, Channel.METADATA, refusal)
    group.settle()

    (outcome,) = one.outcomes
    assert isinstance(outcome, Refused)
    assert outcome.error.text == "why"
    if not is_definite:
        assert isinstance(outcome.error, OutcomeUnknownError)
    elif kind in (StorageFullError, TooLargeError):
        assert type(outcome.error) is kind
    else:
        assert type(outcome.error) is UnavailableError


def fill(leader: Member) -> bytes:
    leader.files.capacity_bytes -= leader.files.free_bytes()
    return b"x"


def break_down(leader: Member) -> bytes:
    """A full disk has room again, and refuses the file that keeps some of it back."""
    free = leader.files.free_bytes()
    fill(leader)
    leader.propose(b"full")
    leader.files.capacity_bytes += free
    leader.files.fail(Fault("open", "metadata/reserve"))
    return b"x"


def write_long(leader: Member) -> bytes:
    del leader
    return bytes(RaftOptions().entry_bytes_max + 1)


CAUSES: list[tuple[Callable[[Member], bytes], str]] = [
    (fill, "CHANGE_NOT_MADE"),
    (break_down, "CHANGE_NOT_MADE"),
    (write_long, "CHANGE_REFUSED"),
]


@pytest.mark.parametrize(("spoil", "code"), CAUSES)
def test_change_is_refused_alike_at_the_leader_and_by_way_of_another_broker(
    spoil: Callable[[Member], bytes], code: str
) -> None:
    causes = []
    for by_way in (False, True):
        group = Group(3)
        leader = group.elect()
        asked = group.followers[0] if by_way else leader
        asked.propose(spoil(leader))
        group.settle()
        outcome = asked.outcomes[-1]
        assert isinstance(outcome, Refused)
        assert failed_change(outcome.error, "failed").code == code
        causes.append((type(outcome.error), outcome.error.text))
    assert causes[0] == causes[1]


def test_change_that_meets_a_new_metadata_leader_is_refused_and_made_when_asked_again() -> None:
    world = ClusterWorld()
    world.create()
    old = next(one for one in world.alive if one.consensus.is_leader)
    new, asked = (one for one in world.alive if one is not old)
    command = CreateStream(name=StreamName("new"), subject="new")

    old.consensus.transfer(new.broker)
    refused = world.propose(command, at=asked)
    world.until(lambda: new.consensus.is_leader and asked.consensus.leader == new.consensus.leader)
    again = world.propose(command, at=asked)

    assert isinstance(refused, ChangeNotMadeError)
    assert (refused.code, refused.status) == ("CHANGE_NOT_MADE", GrpcStatus.INTERNAL)
    assert refused.text.startswith("Failed to replicate partition: ")
    assert not isinstance(again, LiftbridgeError)
