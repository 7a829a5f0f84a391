"""Messages between the readers of a member and its application, and the positions they make.

Readers put messages in while there is room. The application takes one batch at a time, of one
partition; when it asks for the next one, it has finished the batch. Only what is finished is
committed.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from liftbridge_client.core.membership import Claim
from liftbridge_client.errors import FencedError
from liftbridge_client.model import Message

if TYPE_CHECKING:
    from liftbridge_client.admin_model import PartitionName

MESSAGE_BYTES: Final = 512
"""Bytes that a message takes besides its key, value and headers, about."""


def size_of(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    headers = sum(len(name) + len(value) for name, value in message.headers.items())
    return MESSAGE_BYTES + len(message.key) + len(message.value) + headers


class Deliveries:
    """Bounded buffer of all partitions of a member, and what the application has of it.

    The bounds are exceeded by at most one message of each reader.

    Attributes:
        count: Messages that wait.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Start empty."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[Claim, deque[Message]] = OrderedDict()
        self.count = self._bytes = 0
        self._in_hand: tuple[Claim, int] | None = None
        self._dirty: dict[Claim, None] = {}
        self._lost: set[PartitionName] = set()

    @property
    def has_room(self) -> bool:
        """Return whether readers may go on."""
        return self.count < self._messages_max and self._bytes < self._bytes_max

    @property
    def in_hand(self) -> Claim | None:
        """Claim of the batch that the application has and has not finished."""
        return self._in_hand[0] if self._in_hand is not None else None

    # -- messages -----------------------------------------------------------------------------

    def begin(self, claim: Claim, next_offset: int, stored: int | None) -> None:
        """Note where the group continues in a partition.

        A place that is not after the stored position becomes one, so that a successor does not
        choose another place before anything is finished.
        """
        claim.begun_at = claim.next_offset = next_offset
        claim.committed = stored
        if next_offset or stored is not None:  # nothing can be stored for the beginning
            self._finish(claim, next_offset - 1)

    def put(self, claim: Claim, message: Message) -> None:
        """Add a message that was read; no-op for a claim that ends."""
        if claim.is_ending or claim.is_over:
            return
        self._waiting.setdefault(claim, deque()).append(message)
        self.count += 1
        self._bytes += size_of(message)

    def take(self, count_max: int) -> tuple[Claim, Sequence[Message]] | None:
        """Hand out the messages of the partition that waited longest; `None` without any.

        The caller has finished what it had.
        """
        assert self._in_hand is None
        if not self._waiting:
            return None
        claim, waiting = self._waiting.popitem(last=False)
        messages = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        if waiting:
            self._waiting[claim] = waiting
        self.count -= len(messages)
        self._bytes -= sum(map(size_of, messages))
        last = messages[-1].offset
        claim.next_offset = last + 1
        self._in_hand = claim, last
        return claim, messages

    def drop(self, claim: Claim) -> None:
        """Forget the messages of a claim that wait; they are read again, here or elsewhere."""
        dropped = self._waiting.pop(claim, ())
        self.count -= len(dropped)
        self._bytes -= sum(map(size_of, dropped))

    # -- positions ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Note that the application has finished its batch."""
        if self._in_hand is not None:
            (claim, last), self._in_hand = self._in_hand, None
            self._finish(claim, last)

    def _finish(self, claim: Claim, offset: int) -> None:
        claim.finished = offset
        if claim.is_dirty:
            self._dirty[claim] = None
        else:
            self._dirty.pop(claim, None)

    def rewind(self, claim: Claim, offset: int) -> None:
        """Go back to an offset, from which on the log holds other messages than were read."""
        self.drop(claim)
        if self.in_hand is claim:
            self._in_hand = None
        claim.next_offset = offset
        if claim.finished is not None and claim.finished >= offset:
            self._finish(claim, offset - 1)

    def lose(self, claims: Iterable[Claim]) -> None:
        """Forget claims that ended: others read on from the stored positions."""
        for claim in claims:
            self.drop(claim)
            if self.in_hand is claim:
                self._in_hand = None
                self._lost.add(claim.partition)
            elif claim in self._dirty and claim.has_finished:
                self._lost.add(claim.partition)
            self._dirty.pop(claim, None)

    def begin_anew(self, claim: Claim) -> None:
        """Forget everything about a claim whose stream is gone; it may be created again."""
        self.lose([claim])
        claim.begun_at = claim.next_offset = claim.finished = claim.committed = None

    def to_commit(self, claims: Iterable[Claim] | None = None) -> Mapping[Claim, int]:
        """Return the positions that are finished and not stored, of all claims or of some."""
        wanted = self._dirty if claims is None else [one for one in claims if one in self._dirty]
        return {claim: claim.finished for claim in wanted if claim.finished is not None}

    def on_committed(self, stored: Mapping[Claim, int]) -> None:
        """Note that positions are stored."""
        for claim, offset in stored.items():
            claim.committed = offset
            if not claim.is_dirty:
                self._dirty.pop(claim, None)

    def forgive_lost(self) -> None:
        """Forget which partitions were lost before their positions were stored."""
        self._lost.clear()

    def check_lost(self) -> None:
        """Refuse, once, if partitions were lost before their positions were stored.

        Raises:
            FencedError: The message names some of them.
        """
        if self._lost:
            lost, self._lost = sorted(self._lost), set()
            named = ", ".join(f"{one.stream}/{one.partition}" for one in lost[:3])
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            raise FencedError(
                f"{named}{more} went to another member before the positions were stored: what was "
                "read there since the last commit is delivered again"
            )
