"""The asyncio client."""

from liftbridge_client.aio.client import Client, connect
from liftbridge_client.aio.publisher import Publisher
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.streams import Streams
from liftbridge_client.aio.subscription import Subscription

__all__ = ["Client", "Publisher", "Stream", "Streams", "Subscription", "connect"]
