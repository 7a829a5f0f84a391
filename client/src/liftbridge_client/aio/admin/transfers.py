"""Leadership transfers that are safe to repeat after a lost answer.

Each request for listed partitions names the new leader; if the caller names none, the client
chooses as brokers do. A partition that an earlier attempt transferred is then refused, rather than
transferred to a third broker or back, and counts as done because the named broker leads it. Without
a list, brokers transfer only partitions that the former leader still leads.
"""

from collections.abc import Sequence

from liftbridge_client import admin_model as model
from liftbridge_client.aio.admin.calls import AdminCalls, ref_of
from liftbridge_client.errors import FailedPreconditionError, LiftbridgeError, NotFoundError
from liftbridge_proto.ext.v1 import admin_pb2

_Names = Sequence[model.PartitionName]


async def transfer(
    calls: AdminCalls, partitions: _Names, *, source: str, to: str
) -> Sequence[model.PartitionOutcome]:
    """Transfer the listed partitions, or all that `source` leads, to a broker, or any if empty."""
    if partitions and not source and not to:
        parts = await _successors(calls, partitions)
    else:
        parts = {to: partitions}
    outcomes: list[model.PartitionOutcome] = []
    for successor, names in parts.items():
        refs = [ref_of(one) for one in names]
        request = admin_pb2.TransferLeadershipRequest(
            partitions=refs, to=successor, **{"from": source}
        )
        try:
            await _transfer(calls, request, names, outcomes)
        except LiftbridgeError as error:
            error.may_be_done = error.may_be_done or any(not outcome.code for outcome in outcomes)
            raise
    places = {tuple(name): place for place, name in enumerate(partitions)}
    return sorted(outcomes, key=lambda one: places.get(one[:2], 0))


async def _transfer(
    calls: AdminCalls,
    request: admin_pb2.TransferLeadershipRequest,
    names: _Names,
    outcomes: list[model.PartitionOutcome],
) -> None:
    """Make a request; repeat it for the rest if an attempt transferred a part. Add its outcomes."""
    while True:
        try:
            response = await calls.call(
                "TransferLeadership", request, admin_pb2.TransferLeadershipResponse
            )
        except FailedPreconditionError as error:
            moved = await _moved(calls, request, names) if error.may_be_done else set()
            if not moved:
                raise
        else:
            result = model.outcomes_of(response.outcomes)
            refused = [model.PartitionName(*one[:2]) for one in result if one.code]
            moved = await _moved(calls, request, refused)
            outcomes += [
                one._replace(code="", text="") if one[:2] in moved else one for one in result
            ]
            return
        outcomes += [model.PartitionOutcome(*name, "", "") for name in names if name in moved]
        names = [name for name in names if name not in moved]
        if not names:
            return
        del request.partitions[:]
        request.partitions.extend(ref_of(name) for name in names)


async def _moved(
    calls: AdminCalls, request: admin_pb2.TransferLeadershipRequest, names: _Names
) -> set[model.PartitionName]:
    """Find the partitions that an attempt of the refused request has transferred."""
    try:
        statuses = await _statuses(calls, names)
    except LiftbridgeError as error:
        error.may_be_done = True  # an earlier attempt, or other partitions of this attempt
        raise
    to, source = request.to, getattr(request, "from")
    if to:
        return {name for name, one in statuses.items() if one.leader == to}
    # With neither, the partition has no other replica that could lead it.
    return {name for name, one in statuses.items() if source and one.leader not in {"", source}}


async def _successors(calls: AdminCalls, partitions: _Names) -> dict[str, _Names]:
    """Group partitions by their new leader: the first in-sync replica that can lead.

    Raises:
        FailedPreconditionError: They have different leaders.
        NotFoundError: A partition does not exist.
    """
    response = await calls.call(
        "ListBrokers",
        admin_pb2.ListBrokersRequest(is_confirmed=True),
        admin_pb2.ListBrokersResponse,
        find=calls.leader,
    )
    able = {
        broker.broker for broker in response.brokers if not (broker.is_fenced or broker.is_stopping)
    }
    statuses = await _statuses(calls, partitions)
    for name in partitions:
        if name not in statuses:
            raise NotFoundError(f"no such partition: {name.partition} of stream {name.stream}")
    leaders = {status.leader for status in statuses.values()}
    if leaders == {""} or len(leaders) > 1:
        raise FailedPreconditionError(
            "partitions: must all be led by one broker, but are led by "
            + ", ".join(sorted(leader or "none" for leader in leaders))
        )
    parts: dict[str, list[model.PartitionName]] = {}
    for name in partitions:
        parts.setdefault(_successor(statuses[name], able), []).append(name)
    return dict(parts)


def _successor(partition: model.PartitionStatus, able: set[str]) -> str:
    """Choose the new leader of a partition.

    If no replica can lead, name one that the broker refuses.
    """
    replicas = (*partition.isr, *(replica.broker for replica in partition.replicas))
    others = [replica for replica in replicas if replica != partition.leader]
    return next((other for other in others if other in able), others[0] if others else "")


async def _statuses(
    calls: AdminCalls, names: _Names
) -> dict[model.PartitionName, model.PartitionStatus]:
    """Fetch the named partitions that exist, from the metadata leader."""
    if not names:
        return {}
    wanted = set(names)
    request = admin_pb2.ListPartitionsRequest(streams=sorted({one.stream for one in names}))
    statuses = {}
    async for one in calls.partitions(request, calls.leader):
        name = model.PartitionName(one.stream, one.partition)
        if name in wanted:
            statuses[name] = one
    return statuses
