"""Share the messages of a stream: start this several times. Needs a broker: `liftbridge dev`."""

import asyncio
from collections.abc import Sequence

from liftbridge_client import PartitionName, connect


def given(partitions: Sequence[PartitionName]) -> None:
    """Tell what this process reads from now on."""
    print("reads", ", ".join(f"{stream}/{number}" for stream, number in partitions))


async def main() -> None:
    """Process every message at least once, in the order of its partition."""
    async with connect("localhost:9292") as lb:
        await lb.streams.create("orders", partitions=4, if_not_exists=True)
        async with lb.consumers.join("billing", ["orders"], on_assigned=given) as consumer:
            async for batch in consumer:
                for message in batch:
                    print(f"{message.stream}/{message.partition}", message.offset, message.value)


if __name__ == "__main__":
    asyncio.run(main())
