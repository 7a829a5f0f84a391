"""Forked processes: threads, loops and connections of a client, and gRPC, do not come along."""

import os

from liftbridge_client.errors import UsageError


class Opener:
    """The process that opened something: nobody until `open`."""

    def __init__(self) -> None:
        self._pid = 0

    def open(self) -> None:
        """This process opens it."""
        self._pid = os.getpid()

    @property
    def is_other(self) -> bool:
        """Whether another process opened it."""
        return self._pid not in (0, os.getpid())

    def check(self) -> None:
        """Refuse use by another process, where a call would wait for ever.

        Raises:
            UsageError: It is another one.
        """
        if self.is_other:
            raise UsageError(
                f"process {self._pid} opened this client, but process {os.getpid()} uses it: "
                "open the client after the fork, or start processes with spawn"
            )
