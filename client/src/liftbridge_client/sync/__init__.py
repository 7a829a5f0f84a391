"""The same client without `await`: same names, same arguments, same values.

`aclose` is `close`, `async with` is `with`, `async for` is `for`, and a future is one of
`concurrent.futures`. Everything may be called from any thread.
"""

from liftbridge_client.sync.client import SyncClient, connect_sync
from liftbridge_client.sync.publisher import SyncPublisher
from liftbridge_client.sync.reading import SyncEvents, SyncSubscription
from liftbridge_client.sync.stream import SyncStream, SyncStreams

__all__ = [
    "SyncClient",
    "SyncEvents",
    "SyncPublisher",
    "SyncStream",
    "SyncStreams",
    "SyncSubscription",
    "connect_sync",
]
