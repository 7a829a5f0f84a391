"""Bounds of partitions, fetched from several brokers and combined."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from liftbridge_client import methods
from liftbridge_client.errors import (
    LiftbridgeError,
    RetriableError,
    UnimplementedError,
    UsageError,
)
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

_Answer = TypeVar("_Answer")

WAIT_SECONDS_MAX: Final = 30.0
"""Longest time, in seconds, that a broker waits for news."""

STREAMS_A_CALL_MAX: Final = 10_000
"""Streams that a broker accepts in one call."""

_PARTITIONS_A_CALL_MAX: Final = 100_000
"""Maximum number of known high watermarks in a call for several streams: 2 MiB."""

_ANEW_SECONDS: Final = 0.5
"""Pause between calls to a broker that answers immediately because it does not support waiting."""


def check_wait(seconds: float) -> None:
    """Refuse a wait that is negative or longer than brokers wait.

    Raises:
        UsageError: The wait is out of bounds.
    """
    if not 0 <= seconds <= WAIT_SECONDS_MAX:
        raise UsageError(f"wait {seconds:g} s: must be 0 to {WAIT_SECONDS_MAX:g} s")


async def await_news(
    client: "Session",
    stream: str,
    known: Mapping[int, int],
    seconds: float,
    *,
    read_replica: bool = False,
) -> bool:
    """Wait until a high watermark exceeds the value that the caller knows.

    Each broker that serves these partitions has one open call. A broker that cannot answer ends the
    wait; fetching bounds then shows why.

    Args:
        client: Session for the calls.
        stream: Name of the stream.
        known: High watermarks by partition.
        seconds: Longest wait.
        read_replica: Whether to call in-sync replicas instead of leaders.

    Returns:
        `True` if there may be news, `False` after a timeout.

    Raises:
        UsageError: The wait is negative or longer than brokers wait.
        RetriableError: No broker could answer for a partition within the retry time.
    """
    check_wait(seconds)
    deadline = monotonic() + seconds
    groups = await _by_address(client, stream, known, read_replica=read_replica)
    is_over = asyncio.Event()
    ended_early = False

    async def ask(address: str, numbers: Sequence[int]) -> None:
        request = data_pb2.PartitionBoundsRequest(
            stream=stream,
            partitions=numbers,
            read_replica=read_replica,
            known_high_watermarks={number: known[number] for number in numbers},
        )
        nonlocal ended_early
        try:
            while not is_over.is_set() and (left := deadline - monotonic()) > 0:
                request.wait_ms = int(left * 1_000)
                answer = await client.ask(
                    address, methods.PARTITION_BOUNDS, request, wait_seconds=left
                )
                if any(
                    partition.high_watermark > known[partition.partition]
                    for partition in answer.partitions
                ):
                    ended_early = True
                    break
                await asyncio.sleep(min(_ANEW_SECONDS, max(deadline - monotonic(), 0.0)))
        except LiftbridgeError:
            ended_early = True
        is_over.set()

    async with asyncio.TaskGroup() as calls:
        tasks = [calls.create_task(ask(*group)) for group in groups.items()]
        if tasks:
            await is_over.wait()
        for task in tasks:
            task.cancel()
    return ended_early


async def await_streams(
    client: "Session",
    known: Mapping[str, Mapping[int, int]],
    seconds: float,
    *,
    read_replica: bool = False,
) -> frozenset[str]:
    """Wait until there may be news in one of several streams, with one open call for each broker.

    A stream without a reachable broker counts as having news. A broker that leads very many
    partitions gets several calls.

    Args:
        client: Session for the calls.
        known: High watermarks by stream and partition.
        seconds: Longest wait.
        read_replica: Whether to call in-sync replicas instead of leaders.

    Returns:
        Streams that may have news; none after a timeout.

    Raises:
        UsageError: The wait is negative or longer than brokers wait.
        UnimplementedError: A broker does not support several streams in a call.
    """
    check_wait(seconds)
    requests, lost = await _requests(client, known, read_replica=read_replica)
    if lost:
        return lost

    async def ask(address: str, request: data_pb2.AwaitNewsRequest) -> frozenset[str]:
        request.wait_ms, request.read_replica = int(seconds * 1_000), read_replica
        try:
            answer = await client.ask(address, methods.AWAIT_NEWS, request, wait_seconds=seconds)
        except LiftbridgeError as error:
            if isinstance(error, UnimplementedError):
                raise
            return frozenset(stream.name for stream in request.streams)
        return frozenset(answer.streams)

    names: frozenset[str] = frozenset()
    calls: list[asyncio.Task[frozenset[str]]] = []
    refusals: list[Exception] = []
    try:
        async with asyncio.TaskGroup() as group:
            calls += [
                group.create_task(ask(address, request))
                for address, some in requests.items()
                for request in some
            ]
            for answer in asyncio.as_completed(calls):
                if names := await answer:
                    break
            for call in calls:
                call.cancel()
    except* UnimplementedError as group:
        refusals += group.exceptions
    if refusals:
        raise UnimplementedError(str(refusals[0])) from refusals[0]
    return names


async def _requests(
    client: "Session", known: Mapping[str, Mapping[int, int]], *, read_replica: bool
) -> tuple[dict[str, list[data_pb2.AwaitNewsRequest]], frozenset[str]]:
    """Build the requests by broker address, and list the streams without a reachable broker."""
    find = client.replica_address if read_replica else client.leader_address
    requests: dict[str, list[data_pb2.AwaitNewsRequest]] = {}
    room: Counter[str] = Counter()
    lost: set[str] = set()
    for name, marks in known.items():
        groups: dict[str, dict[int, int]] = {}
        try:
            for number, mark in marks.items():
                groups.setdefault(await find(name, number), {})[number] = mark
        except LiftbridgeError:
            lost.add(name)
            continue
        for address, some in groups.items():
            asked = requests.setdefault(address, [])
            if room[address] < len(some) or len(asked[-1].streams) == STREAMS_A_CALL_MAX:
                asked.append(data_pb2.AwaitNewsRequest())
                room[address] = _PARTITIONS_A_CALL_MAX
            asked[-1].streams.add(name=name, high_watermarks=some)
            room[address] -= len(some)
    return requests, frozenset(lost)


async def _by_address(
    client: "Session", stream: str, numbers: Iterable[int], *, read_replica: bool
) -> dict[str, list[int]]:
    """Group partitions by the address of the broker that knows their bounds.

    Raises:
        RetriableError: No broker could answer for a partition within the retry time.
    """
    find = client.replica_address if read_replica else client.leader_address
    groups: dict[str, list[int]] = {}
    async for attempt in client.attempts(methods.PARTITION_BOUNDS.path):
        with attempt:
            groups.clear()
            for number in numbers:
                groups.setdefault(await find(stream, number), []).append(number)
    return groups


async def fetch_bounds(
    client: "Session",
    stream: str,
    partitions: Sequence[int],
    *,
    timestamp: int | None = None,
    read_replica: bool = False,
    broker: str = "",
) -> Sequence[data_pb2.PartitionBounds]:
    """Fetch the bounds of partitions in the given order; of all partitions if none are given.

    With `broker`, call only that broker, which must be in sync.

    Raises:
        RetriableError: No broker could answer for a partition within the retry time.
        LiftbridgeError: A broker refused.
    """
    numbers = partitions or sorted((await client.stream_info(stream)).partitions)
    avoided: set[str] = set()
    find = _finder(avoided, read_replica=read_replica, broker=broker)

    async def ask(address: str, asked: Sequence[int]) -> Mapping[int, data_pb2.PartitionBounds]:
        request = data_pb2.PartitionBoundsRequest(
            stream=stream,
            partitions=asked,
            timestamp=timestamp,
            read_replica=read_replica or bool(broker),
        )
        try:
            response = await client.ask(address, methods.PARTITION_BOUNDS, request)
        except LiftbridgeError:
            avoided.add(address)
            raise
        return {one.partition: one for one in response.partitions}

    path = methods.PARTITION_BOUNDS.path
    return await of_partitions(client, path, stream, numbers, find=find, ask=ask)


async def of_partitions(
    client: "Session",
    path: str,
    stream: str,
    numbers: Sequence[int],
    *,
    find: Callable[["Session", str, int], Awaitable[str]],
    ask: Callable[[str, Sequence[int]], Awaitable[Mapping[int, _Answer]]],
) -> list[_Answer]:
    """Ask the brokers of partitions, all at once, and again for those that failed.

    Args:
        client: Session for the calls.
        path: Path of the call, for events.
        stream: Name of the stream.
        numbers: Partitions, in the order of the answers.
        find: Finds the address to ask about a partition.
        ask: Asks a broker about some partitions, and returns the answers by partition.

    Raises:
        RetriableError: No broker could answer for a partition within the retry time.
        LiftbridgeError: A broker refused.
    """
    by_partition: dict[int, _Answer] = {}

    async def try_one(address: str, asked: Sequence[int]) -> LiftbridgeError | None:
        try:
            by_partition.update(await ask(address, asked))
        except LiftbridgeError as error:
            for number in asked:
                client.doubt_leader(stream, number)
            return error
        return None

    async for attempt in client.attempts(path):
        with attempt:
            groups: dict[str, list[int]] = {}
            for number in dict.fromkeys(numbers):
                if number not in by_partition:
                    groups.setdefault(await find(client, stream, number), []).append(number)
            refusals = await asyncio.gather(*(try_one(*group) for group in groups.items()))
            errors = [error for error in refusals if error is not None]
            # Raise an error that is not retriable, if any, rather than a retriable one.
            errors.sort(key=lambda error: isinstance(error, RetriableError))
            if errors:
                raise errors[0]
    return [by_partition[number] for number in numbers]


def _finder(
    avoided: Collection[str], *, read_replica: bool, broker: str
) -> Callable[["Session", str, int], Awaitable[str]]:
    """Return a function that finds the address of the broker to call for a partition."""

    async def find(client: "Session", stream: str, number: int) -> str:
        if broker:
            return await client.broker_address(broker, stream, number)
        if read_replica:
            return await client.replica_address(stream, number, avoided)
        return await client.leader_address(stream, number)

    return find
