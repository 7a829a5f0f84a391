"""Consumer groups, for people who look after them."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeVar
from zlib import crc32

from liftbridge_client import methods
from liftbridge_client.admin_model import PartitionName
from liftbridge_client.aio.bounds import fetch_bounds, of_partitions
from liftbridge_client.aio.cursors import CURSORS_STREAM
from liftbridge_client.aio.session import Session
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.deadlines import one_deadline
from liftbridge_client.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    UsageError,
)
from liftbridge_client.group_model import (
    ConsumerGroup,
    GroupDescription,
    PartitionLag,
    PositionChange,
    ResetTo,
    group_of,
    groups_of,
    lag_of,
)
from liftbridge_proto.ext.v1 import groups_pb2 as pb

_A_CALL_MAX: Final = 1_000
"""Partitions that a broker accepts in one call."""

_NO_POSITION: Final = -1

_Item = TypeVar("_Item")

_deadline = one_deadline(attrgetter("_session.call_seconds"))


@checked_calls
class Groups:
    """Consumer groups of a cluster; from `Client.groups`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @_deadline
    async def list(self) -> Sequence[ConsumerGroup]:
        """List the groups of either kind that have members, in the order of their creation."""
        response = await self._session.call(methods.LIST_GROUPS, pb.ListGroupsRequest())
        return tuple(groups_of(response.groups))

    @_deadline
    async def describe(self, group: str) -> GroupDescription:
        """Describe a group with its members.

        Raises:
            NotFoundError: It has no members; positions of such a group may be stored.
        """
        request = pb.DescribeGroupRequest(group_id=group)
        return group_of(await self._session.call(methods.DESCRIBE_GROUP, request))

    @_deadline
    async def lag(self, group: str, *streams: str) -> Sequence[PartitionLag]:
        """Measure how far a group is behind, by stream and partition.

        Each broker answers for the partitions that it leads.

        Args:
            group: Name of the group.
            streams: Names of streams, of which all partitions are listed; by default the partitions
                that members are to read.

        Raises:
            NotFoundError: A stream does not exist, or the group has no members and no streams are
                given.
            PermissionDeniedError: The caller may not describe the group or a stream.
        """
        readers = await self._readers(group, needs_members=not streams)
        wanted = readers if not streams else await self._places(streams)
        by_stream: dict[str, list[int]] = {}
        for stream, number in sorted(wanted):
            by_stream.setdefault(stream, []).append(number)
        return [
            lag_of(stream, readers.get(PartitionName(stream, one.partition), ""), one)
            for stream, numbers in by_stream.items()
            for one in await self._lags(group, stream, numbers)
        ]

    async def _readers(self, group: str, *, needs_members: bool) -> Mapping[PartitionName, str]:
        """Return who is to read each partition for a group."""
        try:
            return (await self.describe(group)).readers
        except NotFoundError as error:
            if not needs_members:
                return {}
            raise NotFoundError(
                f"consumer group {group} has no members: name the streams whose positions count",
                server_text=error.server_text,
            ) from error

    async def _places(self, streams: Sequence[str]) -> Sequence[PartitionName]:
        await self._session.refresh()
        return [
            PartitionName(stream, number)
            for stream in dict.fromkeys(streams)
            for number in (await self._session.stream_info(stream)).partitions
        ]

    async def _lags(
        self, group: str, stream: str, numbers: Sequence[int]
    ) -> Sequence[pb.PartitionLag]:
        async def ask(address: str, asked: Sequence[int]) -> Mapping[int, pb.PartitionLag]:
            found: dict[int, pb.PartitionLag] = {}
            for some in _slices(asked):
                request = pb.GroupLagRequest(group_id=group, stream=stream, partitions=some)
                response = await self._session.ask(address, methods.GROUP_LAG, request)
                found.update((one.partition, one) for one in response.partitions)
            return found

        path, find = methods.GROUP_LAG.path, Session.leader_address
        return await of_partitions(self._session, path, stream, numbers, find=find, ask=ask)

    @_deadline
    async def plan_reset(
        self, group: str, stream: str, to: ResetTo, *, partitions: Sequence[int] = ()
    ) -> Sequence[PositionChange]:
        """Return what `reset` is to change in a stream, without changing anything.

        Args:
            group: Name of the group.
            stream: Name of the stream.
            to: Where the group is to continue.
            partitions: Numbers of partitions; all of the stream by default.

        Raises:
            UsageError: The log of a partition does not hold the offset.
            NotFoundError: The stream or a partition does not exist.
        """
        places = [PartitionName(stream, number) for number in partitions]
        numbers = sorted({one.partition for one in places or await self._places([stream])})
        readers = await self._readers(group, needs_members=False)
        found = await self._lags(group, stream, numbers)
        times: dict[int, int] = {}
        if to.kind == "time":
            bounds = await fetch_bounds(self._session, stream, numbers, timestamp=to.number)
            times = {one.partition: one.timestamp_offset for one in bounds}
        changes = []
        for one in found:
            lag = lag_of(stream, readers.get(PartitionName(stream, one.partition), ""), one)
            changes.append(
                PositionChange(lag=lag, next_offset=_target(lag, to, times.get(lag.partition, 0)))
            )
        return changes

    @_deadline
    async def reset(self, group: str, changes: Sequence[PositionChange]) -> None:
        """Reset positions as planned by `plan_reset`.

        Repeating the call with the same changes is safe.

        Args:
            group: Name of the group.
            changes: The changes.

        Raises:
            FailedPreconditionError: A member is to read a partition, a stream was recreated, or the
                cluster stores no positions. If that became known on the way, the text says how
                many positions were reset before.
        """
        for change in changes:
            if change.lag.member:
                raise FailedPreconditionError(
                    f"member {change.lag.member} of consumer group {group} reads "
                    f"{change.lag.stream}/{change.lag.partition}: stop it, then reset the position"
                )
        done_count = 0
        for number, some in (await self._by_keeper(group, changes)).items():
            for part in _slices(some):
                request = _request(group, part)
                try:
                    await self._session.call(
                        methods.RESET_POSITIONS, request, leader_of=(CURSORS_STREAM, number)
                    )
                except LiftbridgeError as error:
                    if done_count:
                        error.args = (f"{error}; {done_count} of {len(changes)} were reset before",)
                    raise
                done_count += len(part)

    async def _by_keeper(
        self, group: str, changes: Sequence[PositionChange]
    ) -> Mapping[int, Sequence[PositionChange]]:
        """Group changes by the partition of `__cursors` that stores the position."""
        try:
            count = len((await self._session.stream_info(CURSORS_STREAM)).partitions)
        except NotFoundError as error:
            raise FailedPreconditionError(
                "the cluster stores no positions: set cursors.stream.partitions",
                server_text=error.server_text,
            ) from error
        keepers: dict[int, list[PositionChange]] = {}
        for change in changes:
            key = f"__group:{group},{change.lag.stream},{change.lag.partition}"
            keepers.setdefault(crc32(key.encode()) % count, []).append(change)
        return keepers

    @_deadline
    async def delete(self, group: str) -> None:
        """End a group with all its members; its positions stay.

        Raises:
            NotFoundError: It has no members.
        """
        request = pb.DeleteGroupRequest(group_id=group)
        try:
            await self._session.call(methods.DELETE_GROUP, request)
        except NotFoundError as error:
            if not error.may_be_done:  # otherwise an attempt of this call ended it
                raise

    @_deadline
    async def evict(self, group: str, member: str, *, member_epoch: int = 0) -> None:
        """Remove a member from a group; its partitions go to others at once.

        A member that lives joins again.

        Args:
            group: Name of the group.
            member: Name of the member.
            member_epoch: Its membership, as `describe` returns it; 0 for any.

        Raises:
            NotFoundError: The group has no members.
            FailedPreconditionError: It is no member, or its membership is another one.
        """
        request = pb.EvictMemberRequest(group_id=group, member_id=member, member_epoch=member_epoch)
        try:
            await self._session.call(methods.EVICT_MEMBER, request)
        except (NotFoundError, FailedPreconditionError) as error:
            if not error.may_be_done:  # otherwise an attempt of this call removed it
                raise


def _target(lag: PartitionLag, to: ResetTo, at_time: int) -> int:
    """Return the offset at which a group is to continue in a partition.

    Raises:
        UsageError: The log does not hold the offset.
    """
    first, end = lag.log_start, lag.high_watermark
    match to.kind:
        case "earliest":
            return first
        case "latest":
            return end
        case "time":
            return at_time
        case "shift":
            return min(max(lag.next_offset + to.number, first), end)
        case "offset":
            if not first <= to.number <= end:
                raise UsageError(
                    f"offset {to.number}: {lag.stream}/{lag.partition} holds {first} to {end}; "
                    "choose an offset in it, or name another partition"
                )
            return to.number


def _request(group: str, changes: Sequence[PositionChange]) -> pb.ResetPositionsRequest:
    request = pb.ResetPositionsRequest(group_id=group)
    for change in changes:
        position = change.position
        request.positions.add(
            stream=change.lag.stream,
            partition=change.lag.partition,
            offset=_NO_POSITION if position is None else position,
            stream_id=change.lag.stream_id,
            unclean_epoch=change.lag.unclean_epoch,
        )
    return request


def _slices(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield slices that fit into one call."""
    for start in range(0, len(items), _A_CALL_MAX):
        yield items[start : start + _A_CALL_MAX]
