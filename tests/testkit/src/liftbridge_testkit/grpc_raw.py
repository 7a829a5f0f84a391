"""grpcio's client for methods whose messages are plain bytes.

The declared types of grpcio ask for serializers that are optional in fact, and lack a name or two.
"""

from typing import Any, Final

import grpc
from grpc import aio

EOF: Final[object] = vars(aio)["EOF"]
"""Result of `read` at the end of a streaming call."""


def raw(channel: aio.Channel | grpc.Channel) -> Any:
    """Return the channel, not held to its declared types."""
    return channel
