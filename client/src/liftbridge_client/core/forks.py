"""Forked processes: a client's threads, loops and connections, and gRPC, do not survive a fork."""

import os

from liftbridge_client.errors import UsageError


class Opener:
    """The process that opened an object; none until `open`."""

    def __init__(self) -> None:
        self._pid = 0

    def open(self) -> None:
        """Record this process as the opener."""
        self._pid = os.getpid()

    @property
    def is_other(self) -> bool:
        """Return whether another process opened the object."""
        return self._pid not in (0, os.getpid())

    def check(self) -> None:
        """Refuse use by another process, in which a call would wait for ever.

        Raises:
            UsageError: This is another process.
        """
        if self.is_other:
            raise UsageError(
                f"process {self._pid} opened this client, but process {os.getpid()} uses it: "
                "open the client after the fork, or start processes with spawn"
            )
