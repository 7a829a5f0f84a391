"""Cursor calls that wait: for the disk, for other replicas, and not for ever."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from liftbridge_broker.api.context import Context
from liftbridge_broker.api.cursors import CursorService
from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.controller.commands import DeleteStream
from liftbridge_broker.errors import FailedPreconditionError, GrpcStatus
from liftbridge_broker.groups.cursors import CursorPosition, cursor_key
from liftbridge_broker.model.ids import Instant, LeaderEpoch, StreamName
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import NodeWorld


class Clock:
    """The clock of a world."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world

    def now(self) -> Instant:
        return self._world.now

    def wall_ns(self) -> int:
        return self._world.wall_ns


class Port:
    """The connection of a call: keeps how it ended."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends: list[tuple[int, str]] = []
        self.error_code = ""
        self.ended = asyncio.Event()

    def room(self, _stream_id: int) -> int:
        return 1 << 20

    def begin(self, _stream_id: int, _fields: object) -> None: ...

    def queue(self, _stream_id: int, frames: object) -> bool:
        assert isinstance(frames, list)
        self.messages.append(bytes(frames[1]))
        return True

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        do_steps(call, steps)

    def finish(self, _call: Call, code: int, text: str, error_code: str) -> None:
        self.ends.append((code, text))
        self.error_code = error_code
        self.ended.set()

    def expect_request(self, _stream_id: int) -> None: ...

    def keep(self, _stream_id: int, _size: int) -> None: ...

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None: ...

    def peer_certificate(self) -> None: ...


@pytest.fixture
def world() -> NodeWorld:
    """A broker with `__cursors`, whose records count when they are on disk."""
    world = NodeWorld()
    world.create("__cursors", "cursors", is_internal=True, fsync_policy=FsyncPolicy.COMMIT)
    return world


def service(world: NodeWorld, seconds: float) -> CursorService:
    context = Context(world.node, Clock(world), 1 << 20, 100, 100)
    return CursorService(context, seconds)


def call(deadline: float | None = None) -> tuple[Port, Call]:
    port = Port()
    return port, Call(port, 1, method="/", peer="", deadline=deadline)


SET = api_pb2.SetCursorRequest(stream="s", cursorId="c", offset=3).SerializeToString()
FETCH = api_pb2.FetchCursorRequest(stream="s", cursorId="c").SerializeToString()


async def test_call_without_deadline_is_ended_when_the_disk_does_not_answer(
    world: NodeWorld,
) -> None:
    port, one = call()
    service(world, 0.01).set(one, SET)
    await port.ended.wait()
    assert port.ends == [(GrpcStatus.INTERNAL, "no answer within 0.01 s")]
    world.settle()
    assert (port.messages, len(port.ends)) == ([], 1)


async def test_call_with_a_deadline_is_left_to_it(world: NodeWorld) -> None:
    port, one = call(deadline=1e9)
    service(world, 0.0).set(one, SET)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert port.ends == []
    world.settle()
    assert port.ends == [(GrpcStatus.OK, "")]


async def test_answered_and_cancelled_calls_are_not_told_again(world: NodeWorld) -> None:
    cursors = service(world, 0.01)
    port, one = call()
    cursors.set(one, SET)
    world.settle()
    gone, other = call()
    cursors.set(other, SET)
    other.cancel()
    # Whoever waited as long as they did is told, and they are not told again.
    last, late = call()
    cursors.set(late, SET)
    await last.ended.wait()
    assert port.ends == [(GrpcStatus.OK, "")]
    assert gone.ends == []


async def test_look_up_without_deadline_is_ended_when_the_log_is_not_read(
    world: NodeWorld,
) -> None:
    port, one = call()
    service(world, 1.0).set(one, SET)
    world.settle()
    world.stop()
    world.start()
    world.files.is_cold = True
    slow, two = call()
    service(world, 0.01).fetch(two, FETCH)
    await slow.ended.wait()
    assert slow.ends == [(GrpcStatus.INTERNAL, "no answer within 0.01 s")]
    world.settle()
    quick, three = call()
    service(world, 1.0).fetch(three, FETCH)
    assert api_pb2.FetchCursorResponse.FromString(quick.messages[0]).offset == 3
    assert port.ends == [(GrpcStatus.OK, "")]


def test_cursor_that_was_not_stored_is_told_from_one_that_may_be(world: NodeWorld) -> None:
    cursors, (waiting, first), (refused, second) = service(world, 1.0), call(1e9), call(1e9)
    cursors.set(first, SET)
    world.files.fail(Fault("append", "*/*.log"))
    cursors.set(second, SET)
    (((status, text),), code) = waiting.ends, waiting.error_code
    assert (status, text[:16], code) == (GrpcStatus.INTERNAL, "outcome unknown:", "INTERNAL")
    (((status, text),), code) = refused.ends, refused.error_code
    assert (status, text[:13], code) == (GrpcStatus.INTERNAL, "not appended:", "CHANGE_REFUSED")


def test_cursor_that_a_full_disk_refuses_may_be_set_again(world: NodeWorld) -> None:
    world.files.fail(Fault("append", "*/*.log", is_full=True))
    port, one = call(1e9)
    service(world, 1.0).set(one, SET)
    assert port.ends == [(GrpcStatus.INTERNAL, "not appended: storage full")]
    assert port.error_code == "CHANGE_NOT_MADE"


@pytest.mark.parametrize("read_in", [1, None])
def test_cursor_of_the_present_history_is_set(world: NodeWorld, read_in: int | None) -> None:
    port, set_call = call(1e9)
    service(world, 1).set_of_stream(set_call, cursor_of_history(world, read_in))
    world.settle()
    assert port.ends == [(GrpcStatus.OK, "")]


def test_cursor_of_what_was_read_before_an_unclean_election_is_refused(world: NodeWorld) -> None:
    """Others may have the offsets below it by now."""
    port, set_call = call(1e9)
    with pytest.raises(FailedPreconditionError, match="read in history 0, and 1 is current"):
        service(world, 1).set_of_stream(set_call, cursor_of_history(world, 0))
    assert port.ends == []


def cursor_of_history(world: NodeWorld, read_in: int | None) -> bytes:
    """A request for a partition whose last unclean election was in leader epoch 1."""
    world.create("s")
    stream = world.node.state.stream("s")
    assert stream is not None
    stream.partitions[0] = replace(stream.partitions[0], unclean_epoch=LeaderEpoch(1))
    cursor = api_pb2.SetCursorRequest.FromString(SET)
    return data_pb2.SetCursorRequest(
        cursor=cursor, stream_id=stream.stream_id, unclean_epoch=read_in
    ).SerializeToString()


async def test_cursor_is_stored_with_the_history_of_its_partition(world: NodeWorld) -> None:
    """Another unclean election makes other records of the offsets below it."""
    found: list[object] = []
    world.create("s")
    stream = world.node.state.stream("s")
    assert stream is not None
    stream.partitions[0] = replace(stream.partitions[0], unclean_epoch=LeaderEpoch(1))
    port, set_call = call()
    service(world, 1).set(set_call, SET)
    world.settle()
    assert port.ends == [(GrpcStatus.OK, "")]
    cursors = world.node.find_partition("__cursors", 0)
    world.node.cursors.look_up(cursors, cursor_key("s", 0, "c"), found.append)
    world.settle()
    assert found == [CursorPosition(3, stream.stream_id, 1)]


async def test_a_cursor_of_a_deleted_stream_means_nothing_in_another_one_of_its_name(
    world: NodeWorld,
) -> None:
    cursors = service(world, 1)

    async def answer(serve: Callable[[Call, bytes], None], request: bytes) -> bytes:
        port, one = call()
        serve(one, request)
        world.settle()
        await port.ended.wait()
        return b"".join(port.messages)

    async def offset() -> int:
        return api_pb2.FetchCursorResponse.FromString(await answer(cursors.fetch, FETCH)).offset

    await answer(cursors.set, SET)
    assert await offset() == 3  # of a stream that does not exist yet, as in the original
    world.create("s")
    assert await offset() == 3
    await answer(cursors.set, SET)
    world.propose(DeleteStream(name=StreamName("s")))
    world.settle()
    assert await offset() == 3
    world.create("s")
    assert await offset() == -1
    await answer(cursors.set, SET)
    assert await offset() == 3
