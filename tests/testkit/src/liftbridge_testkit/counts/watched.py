"""Functions of the broker whose calls are counted, and the layout of the counts.

A broker that counts (`counts.process`) keeps one unsigned 64-bit integer for each line of
`NAMES` in a file that others map.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FUNCTIONS: Final = {
    "frames sent": ("node/peers/peer_link.py", "PeerLink.send"),
    "frames received": ("node/peers/peer_link.py", "PeerLink.receive"),
    "frames encoded": ("wire/peer/messages.py", "encode"),
    "frames decoded": ("wire/peer/messages.py", "decode"),
    "frames signed": ("wire/peer/frame.py", "SigningKey.sign"),
    "frames verified": ("wire/peer/frame.py", "SigningKey.has_signed"),
    "NATS messages sent": ("adapters/nats/link.py", "Link.publish"),
    "NATS chunks received": ("adapters/nats/connection.py", "Connection.buffer_updated"),
    "NATS chunks sent": ("adapters/nats/connection.py", "Connection._flush"),
    "gRPC chunks received": ("api/grpc/connection.py", "GrpcConnection.data_received"),
    "gRPC chunks sent": ("api/grpc/connection.py", "GrpcConnection._write"),
    "file appends": ("adapters/disk/files.py", "LocalFiles.append"),
    "file reads": ("adapters/disk/files.py", "_read"),
    "jobs for threads": ("adapters/disk/worker.py", "Worker.submit"),
    "deadlines computed": ("node/node.py", "Node.next_deadline"),
    "timers run": ("node/node.py", "Node.on_timer"),
}
"""By title: file below `liftbridge_broker`, and qualified name."""

CALLBACKS: Final = "callbacks of the loop"
CALLS: Final = "calls of Python"
NAMES: Final = (*FUNCTIONS, CALLBACKS, CALLS)


def mapped(path: Path) -> memoryview:
    """Map a file of counts; create it if it is not there."""
    size = 8 * len(NAMES)
    with path.open("a+b") as file:
        file.truncate(size)
        return memoryview(mmap.mmap(file.fileno(), size)).cast("Q")
