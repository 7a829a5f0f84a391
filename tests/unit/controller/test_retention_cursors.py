"""Settings of retention cursors: what is refused, and what stays of them."""

import pytest

from liftbridge_broker.controller.commands import AlterStream, CreateStream, RegisterBroker
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_broker.model.streams import StreamOptions, StreamOverrides

FOO, CURSORS = StreamName("foo"), StreamName("__cursors")
BROKER = RegisterBroker(broker=BrokerId("a"), incarnation_id="one", data_dir_id="disk")
BOUND = StreamOverrides(retention_cursor_bytes_max=7)


def run(state: ClusterState, command: CreateStream | AlterStream | RegisterBroker) -> object:
    return apply(state, MetadataIndex(state.applied_index + 1), command).answer


def begun(*, keeps_cursors: bool) -> ClusterState:
    """One broker with a stream, and perhaps the stream of cursors."""
    state = ClusterState()
    commands: list[RegisterBroker | CreateStream] = [BROKER, CreateStream(name=FOO, subject="foo")]
    if keeps_cursors:
        commands.append(CreateStream(name=CURSORS, subject="cursors", is_internal=True))
    for command in commands:
        assert not isinstance(run(state, command), LiftbridgeError)
    return state


def answers(state: ClusterState, given: StreamOverrides) -> list[object]:
    """Answers to a new stream with these settings, and to a present one."""
    new = CreateStream(name=StreamName("new"), subject="new", overrides=given)
    return [run(state, command) for command in (new, AlterStream(name=FOO, overrides=given))]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            StreamOverrides(retention_cursor_bytes_max=-1),
            "Invalid retention_cursor_max_bytes -1, must not be negative",
        ),
        (
            StreamOverrides(retention_cursor="c" * 1_025),
            "Invalid retention_cursor of 1025 bytes, limit 1024",
        ),
        (
            StreamOverrides(retention_cursor="ü" * 513),
            "Invalid retention_cursor of 1026 bytes, limit 1024",
        ),
    ],
)
def test_cursor_that_cannot_be_is_refused(given: StreamOverrides, text: str) -> None:
    for answer in answers(begun(keeps_cursors=True), given):
        assert isinstance(answer, InvalidRequestError)
        assert answer.text == text


def test_cursor_that_nobody_keeps_is_refused() -> None:
    state = begun(keeps_cursors=False)
    for answer in answers(state, StreamOverrides(retention_cursor="archive")):
        assert isinstance(answer, FailedPreconditionError)
        assert answer.text == (
            "Invalid retention_cursor archive: this cluster keeps no cursors, "
            "set cursors.stream.partitions"
        )
    for answer in answers(state, StreamOverrides(retention_cursor="")):
        assert not isinstance(answer, LiftbridgeError)


def test_cursor_is_kept_changed_and_taken_back() -> None:
    state = begun(keeps_cursors=True)
    told = []
    for given in (StreamOverrides(retention_cursor="ü" * 512), BOUND, StreamOverrides(min_isr=1),
                  StreamOverrides(retention_cursor="")):  # fmt: skip
        assert not isinstance(run(state, AlterStream(name=FOO, overrides=given)), LiftbridgeError)
        stream = state.stream(FOO)
        assert stream is not None
        options = StreamOptions().overridden(stream.overrides)
        told.append((options.retention_cursor, options.retention_cursor_bytes_max))
    assert told == [("ü" * 512, 0), ("ü" * 512, 7), ("ü" * 512, 7), ("", 7)]
