"""Calls of a member to the coordinator of its group, wherever that is now."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from liftbridge_client import methods
from liftbridge_client.aio.cursors import CURSORS_STREAM
from liftbridge_client.core.addresses import written
from liftbridge_client.core.deadlines import within
from liftbridge_client.core.membership import Membership
from liftbridge_client.errors import FencedError, LiftbridgeError, NotFoundError, RetriableError
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import groups_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

BEAT_SECONDS_MIN: Final = 0.25
"""Least time that a heartbeat has for its answer."""


class Coordination:
    """Heartbeats of one member; its `Membership` knows what they say and mean."""

    def __init__(self, client: "Session", membership: Membership) -> None:
        self._client = client
        self._membership = membership
        self._known = ("", "")  # a broker and its address

    async def join(self) -> tuple[groups_pb2.HeartbeatResponse, float]:
        """Join by a broker that answers; return the answer, and when the call was sent."""
        address = await self._client.discover()
        return await self._ask(address)

    async def beat(self) -> tuple[groups_pb2.HeartbeatResponse, float]:
        """Send a heartbeat to the coordinator; return the answer, and when it was sent.

        Raises:
            FencedError: The membership is over.
            NotFoundError: The group is gone.
            RetriableError: The coordinator does not answer within a heartbeat's interval, or is
                another broker by now; `look` finds out.
        """
        with within(max(self._membership.interval_seconds, BEAT_SECONDS_MIN)):
            return await self._ask(await self._address())

    async def _ask(self, address: str) -> tuple[groups_pb2.HeartbeatResponse, float]:
        sent_at = asyncio.get_running_loop().time()
        request = self._membership.request()
        return await self._client.ask(address, methods.HEARTBEAT, request), sent_at

    async def _address(self) -> str:
        name, address = self._known
        if name != self._membership.coordinator:
            name = self._membership.coordinator
            broker = (await self._client.refresh()).brokers.get(name)
            if broker is None:
                raise RetriableError(f"coordinator {name} is not in the metadata")
            address = written(broker.host, broker.port)
            self._known = name, address
        return address

    async def look(self) -> None:
        """Ask another broker who coordinates; report a coordinator that does not answer."""
        former = self._membership.coordinator
        self._known = ("", "")
        with suppress(LiftbridgeError), within(self._client.timeout_seconds):
            address = await self._client.discover()
            found = await self._client.ask(
                address,
                methods.FETCH_METADATA,
                api_pb2.FetchMetadataRequest(
                    streams=[CURSORS_STREAM], groups=[self._membership.group]
                ),
            )
            (group,) = found.groupMetadata
            if group.error or not group.coordinator:
                return
            self._membership.coordinator = group.coordinator
            if group.coordinator == former:
                await self._client.ask(
                    address,
                    methods.REPORT_COORDINATOR,
                    api_pb2.ReportConsumerGroupCoordinatorRequest(
                        groupId=self._membership.group,
                        consumerId=self._membership.name,
                        coordinator=former,
                        epoch=group.epoch,
                    ),
                )

    async def is_replaced(self) -> bool:
        """Return whether another process joined under this member's name or instance since.

        A broker that cannot or may not tell counts as `False`: the member then joins again.
        """
        mine = self._membership
        request = groups_pb2.DescribeGroupRequest(group_id=mine.group)
        with suppress(LiftbridgeError), within(self._client.timeout_seconds):
            found = await self._client.call(methods.DESCRIBE_GROUP, request)
            return any(
                one.member_epoch > mine.member_epoch
                and (
                    one.member_id == mine.name
                    or (mine.instance_id and one.instance_id == mine.instance_id)
                )
                for one in found.members
            )
        return False

    async def leave(self) -> None:
        """Leave the group; no-op for a membership that is over."""
        mine = self._membership
        if not mine.member_epoch:
            return
        request = groups_pb2.LeaveRequest(
            group_id=mine.group, member_id=mine.name, member_epoch=mine.member_epoch
        )
        with suppress(FencedError, NotFoundError):
            await self._client.call(methods.LEAVE_GROUP, request)
