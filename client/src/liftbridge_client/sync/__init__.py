"""The same client without `await`: same names, same arguments, same values.

`aclose` becomes `close`, `async with` becomes `with`, `async for` becomes `for`, and futures are
those of `concurrent.futures`. Any thread may call any method.
"""

from liftbridge_client.sync.client import SyncClient, connect_sync
from liftbridge_client.sync.consumers import SyncConsumer, SyncConsumers
from liftbridge_client.sync.publisher import SyncPublisher
from liftbridge_client.sync.reading import SyncEvents, SyncSubscription
from liftbridge_client.sync.stream import SyncStream, SyncStreams

__all__ = [
    "SyncClient",
    "SyncConsumer",
    "SyncConsumers",
    "SyncEvents",
    "SyncPublisher",
    "SyncStream",
    "SyncStreams",
    "SyncSubscription",
    "connect_sync",
]
