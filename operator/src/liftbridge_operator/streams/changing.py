"""Carry out the action of a stream at the brokers."""

from collections.abc import Mapping

from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.streams.actions import (
    Alter,
    Create,
    Delete,
    Forget,
    Mark,
    OfStream,
    SetReadonly,
)
from liftbridge_operator.streams.marks import mark_of
from liftbridge_operator.streams.observation import Resource
from liftbridge_operator.streams.port import StreamBrokers

Event = tuple[EventReason, Mapping[str, object]]


async def change(brokers: StreamBrokers, resource: Resource, action: OfStream) -> Event | None:
    """Carry out an action.

    Args:
        brokers: Brokers of the cluster.
        resource: The `Stream` resource.
        action: The decided action.

    Returns:
        The Event that reports it; None for none.

    Raises:
        BrokersError: It was not done, or it is not known whether it was.
    """
    name = resource.stream_name
    mine = mark_of(resource.namespace, resource.name, resource.uid)
    event: Event | None = None
    match action:
        case Create():
            event = await _create(brokers, action, mine)
        case Mark():
            await brokers.mark(name, action.stream_id, expected=action.expected, owner=mine)
            event = (EventReason.STREAM_ADOPTED, {"stream": name}) if action.is_adopted else None
        case Forget():
            await brokers.mark(name, action.stream_id, expected=mine, owner="")
            event = EventReason.STREAM_FORGOTTEN, {"stream": name}
        case Alter():
            await brokers.alter(name, action.settings, factor=action.factor)
            event = _altered(name, action.fields, is_drift=action.is_drift)
        case SetReadonly():
            await brokers.set_readonly(name, is_readonly=action.is_readonly)
            event = _altered(name, ("readonly",), is_drift=action.is_drift)
        case Delete():
            # A stream of this name that was created since has another id.
            await brokers.mark(name, action.stream_id, expected=mine, owner=mine)
            await brokers.delete(name)
            event = EventReason.STREAM_DELETED, {"stream": name}
    return event


def _altered(name: str, fields: tuple[str, ...], *, is_drift: bool) -> Event:
    reason = EventReason.DRIFT_REPAIRED if is_drift else EventReason.STREAM_ALTERED
    return reason, {"stream": name, "fields": ", ".join(fields)}


async def _create(brokers: StreamBrokers, action: Create, mine: str) -> Event:
    stream_id = await brokers.create(
        action.name,
        subject=action.subject,
        group=action.group,
        partitions=action.partitions,
        factor=action.factor,
        settings=action.settings,
    )
    await brokers.mark(action.name, stream_id, expected="", owner=mine)
    if action.is_again:
        return EventReason.STREAM_MISSING, {"stream": action.name}
    return EventReason.STREAM_CREATED, {
        "stream": action.name,
        "partitions": action.partitions,
        "replicas": "all" if action.factor < 0 else action.factor,
    }
