"""Store numbered lines exactly once, whatever happens to the broker in between."""

import asyncio

from liftbridge_client import Start, Stop, connect

COUNT = 200_000
BATCH = 1_000


async def main() -> None:
    """Publish, then read everything back and compare."""
    async with connect("liftbridge://localhost:9292") as lb:
        stream = await lb.streams.create("lines", subjects=["lines"])
        async with stream.publisher(idempotent=True) as publisher:
            for first in range(0, COUNT, BATCH):
                batch = [b"line %d" % number for number in range(first, first + BATCH)]
                await publisher.publish_batch(batch)
                print(f"{first + BATCH} acknowledged")
        stored = [
            m.value async for m in stream.subscribe(start=Start.earliest(), stop=Stop.latest())
        ]
    print("exactly once, in order:", stored == [b"line %d" % number for number in range(COUNT)])


if __name__ == "__main__":
    asyncio.run(main())
