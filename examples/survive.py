"""Store numbered lines exactly once, whatever happens to the broker in between."""

import asyncio

from liftbridge_client import LiftbridgeError, Start, Stop, connect

COUNT = 5_000_000
BATCH = 1_000


async def main() -> None:
    """Publish, then read everything back and compare."""
    async with connect("localhost:9292") as lb:
        stream = await lb.streams.create("lines")
        async with stream.publisher(idempotent=True) as publisher:
            for first in range(0, COUNT, BATCH):
                values = [b"line %d" % number for number in range(first, first + BATCH)]
                for result in await publisher.publish_batch(values):
                    if isinstance(result, LiftbridgeError):
                        raise result
                if first % 100_000 == 0:
                    print(first + BATCH, "acknowledged")
        expected = 0
        async for message in stream.subscribe(start=Start.earliest(), stop=Stop.latest()):
            assert message.value == b"line %d" % expected
            expected += 1
    print(f"read back {expected} of {COUNT}, each once and in order")


if __name__ == "__main__":
    asyncio.run(main())
