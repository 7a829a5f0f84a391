"""`create` of a stream that exists: it has to be as asked for, field by field."""

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from liftbridge_client import AlreadyExistsError, StreamSettings, connect, connect_sync

PAIRS: dict[str, tuple[Any, Any]] = {
    "subject": ("one", "two"),
    "group": ("one", "two"),
    "partitions": (2, 3),
}
"""Two values of what is no setting."""

NOT_HERE = {"encryption", "min_isr", "retention_cursor_max_bytes"}
"""Settings that a broker alone takes only with others, or not at all."""


def pair(name: str) -> tuple[Any, Any]:
    """Two values of a setting."""
    kind = next(str(field.type) for field in fields(StreamSettings) if field.name == name)
    if "timedelta" in kind:
        return timedelta(seconds=7), timedelta(seconds=8)
    if "bool" in kind:
        return True, False
    if "commit" in kind:
        return "commit", "never"
    if "manual" in kind:
        return "manual", "balanced"
    return ("one", "two") if "str" in kind else (1, 2)


SETTINGS = [field.name for field in fields(StreamSettings) if field.name not in NOT_HERE]


@pytest.mark.parametrize("field", [*PAIRS, *SETTINGS])
async def test_stream_that_exists_is_compared_in_every_field(broker, name, field):
    first, second = PAIRS.get(field) or pair(field)

    async def create(value: Any, **more: Any) -> object:
        if field in PAIRS:
            return await lb.streams.create(name, **{field: value}, **more)
        return await lb.streams.create(name, settings=StreamSettings(**{field: value}), **more)

    async with connect(broker.address) as lb:
        await create(first)
        await create(first, if_not_exists=True)
        with pytest.raises(AlreadyExistsError, match=rf"{field} .*, not "):
            await create(second, if_not_exists=True)
        with pytest.raises(AlreadyExistsError):
            await create(first)


async def test_stream_of_the_original_is_compared_in_what_its_metadata_tell(lb, name):
    streams = lb.streams
    await streams.create(name, partitions=2)
    await streams.create(name, partitions=2, if_not_exists=True)
    with pytest.raises(AlreadyExistsError, match="partitions 2, not 1"):
        await streams.create(name, if_not_exists=True)


def test_synchronous_client_compares_too(broker, name):
    with connect_sync(broker.address) as lb:
        lb.streams.create(name, if_not_exists=True)
        lb.streams.create(name, if_not_exists=True)
        with pytest.raises(AlreadyExistsError, match=r"subject '.*', not 'other'"):
            lb.streams.create(name, subject="other", if_not_exists=True)
