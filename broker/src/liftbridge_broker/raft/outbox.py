"""Outgoing messages, with or without promises.

A message promises state that other peers rely on: a term, a vote, entries, a snapshot. It may be
sent only when this peer has made that state durable (Raft fig. 2, `MustSync` and `msgsAfterAppend`
of etcd/raft).
"""

from liftbridge_broker.raft.types import Message


class Outbox:
    """Two bounded lists of messages; excess messages are dropped and counted, as in a network.

    Attributes:
        dropped_count: Messages dropped so far.
    """

    __slots__ = ("_after", "_before", "_messages_max", "dropped_count")

    def __init__(self, messages_max: int) -> None:
        """Hold at most `messages_max` messages."""
        self._messages_max = messages_max
        self._before: list[Message] = []
        self._after: list[Message] = []
        self.dropped_count = 0

    def send(self, message: Message, *, is_durable: bool = True) -> None:
        """Queue `message`, after the next sync unless its promised state `is_durable`."""
        if len(self._before) + len(self._after) >= self._messages_max:
            self.dropped_count += 1
        elif is_durable:
            self._before.append(message)
        else:
            self._after.append(message)

    def has_any(self, *, is_writing: bool) -> bool:
        """Return whether `take` without anything to persist has messages."""
        return bool(self._before) or (bool(self._after) and not is_writing)

    def take(
        self, *, must_persist: bool, is_writing: bool
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Return the messages to send before and after the sync of this `Ready`.

        Args:
            must_persist: Whether this `Ready` has something to write.
            is_writing: Whether an earlier `Ready` is not durable yet; then promises stay queued.
        """
        before, after = tuple(self._before), tuple(self._after)
        self._before.clear()
        if is_writing:
            return before, ()
        self._after.clear()
        return (before, after) if must_persist else (before + after, ())
