"""Create a stream, publish to it, read it from the beginning. Needs a broker: `liftbridge dev`."""

import asyncio

from liftbridge_client import AlreadyExistsError, Start, Stop, connect


async def main() -> None:
    """Run the example."""
    async with connect("localhost:9292") as lb:
        try:
            orders = await lb.streams.create("orders")
        except AlreadyExistsError:
            orders = lb.streams.get("orders")
        async with orders.publisher() as publisher:
            ack = await publisher.publish(b"three apples", key=b"42")
        print("stored at offset", ack.offset)
        async for message in orders.subscribe(start=Start.earliest(), stop=Stop.latest()):
            print(message.offset, message.key, message.value)


if __name__ == "__main__":
    asyncio.run(main())
