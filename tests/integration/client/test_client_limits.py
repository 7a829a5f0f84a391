"""What a broker refuses for a limit is told as that, never as the end of a stream."""

from pathlib import Path

import pytest

from liftbridge_client import EndOfStreamError, RefusedError, Start, connect
from liftbridge_testkit.processes import Broker


async def test_subscription_beyond_the_limit_is_refused_and_does_not_end_empty(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, config={"subscriptions.max": 1}) as broker:
        async with connect(broker.address) as client:
            stream = await client.streams.create("s", partitions=2)
            await stream.publish(b"first", partition=0)
            await stream.publish(b"second", partition=1)
            held = aiter(stream.subscribe(partition=0, start=Start.earliest()))
            assert (await anext(held)).value == b"first"

            refused = aiter(stream.subscribe(partition=1, start=Start.earliest()))
            with pytest.raises(RefusedError, match=r"limit 1 \(subscriptions.max\)") as caught:
                await anext(refused)
            assert not isinstance(caught.value, EndOfStreamError)
