"""Linearizable reads without log entries: read-index (Diss. 6.4).

The leader notes its commit index, confirms by a round of heartbeats that it was still the leader
after the read began, and answers with the index; the reader waits until it is applied. A leader
that has not committed an entry of its own term does not know the commit index, so reads wait for
that. Leases are not used: a stopped clock must not make a read stale.
"""

from collections import deque
from typing import NamedTuple

from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.raft.types import RaftBusyError, ReadState


class _Read(NamedTuple):
    """A read at the leader; `number` is the token for this peer, or the context for `origin`."""

    origin: Peer | None
    number: int


class ConfirmedRead(NamedTuple):
    """A read whose index is final."""

    origin: Peer | None
    number: int
    read_index: int


class LeaderReads:
    """Reads that wait at a leader, for one term.

    Attributes:
        context: Newest round; heartbeats carry it.
        is_round_due: Whether a read waits for a round that no heartbeat carried yet.
    """

    __slots__ = ("_early", "_reads_max", "_waiting", "context", "is_round_due")

    def __init__(self, reads_max: int) -> None:
        """Hold at most `reads_max` reads."""
        self._reads_max = reads_max
        self._early: list[_Read] = []
        self._waiting: deque[tuple[int, int, _Read]] = deque()
        self.context = 0
        self.is_round_due = False

    def add(self, origin: Peer | None, number: int, commit: int | None) -> None:
        """Take a read; `commit` is `None` before an entry of the leader's term is committed.

        Raises:
            RaftBusyError: Too many wait.
        """
        if len(self._early) + len(self._waiting) >= self._reads_max:
            raise RaftBusyError("too many reads wait for the metadata group")
        read = _Read(origin, number)
        if commit is None:
            self._early.append(read)
        else:
            self._enter(read, commit)

    def on_own_term_committed(self, commit: int) -> None:
        """Begin the reads that waited for the commit index, which is known from now on."""
        early, self._early = self._early, []
        for read in early:
            self._enter(read, commit)

    def _enter(self, read: _Read, commit: int) -> None:
        if not self.is_round_due:
            # Reads that arrive before the next heartbeats share their round.
            self.context += 1
            self.is_round_due = True
        self._waiting.append((self.context, commit, read))

    def confirm(self, context: int) -> list[ConfirmedRead]:
        """Finalise all reads up to round `context`, which a quorum answered."""
        done: list[ConfirmedRead] = []
        waiting = self._waiting
        if self.is_round_due:
            context = min(context, self.context - 1)  # no peer can have answered an unsent round
        while waiting and waiting[0][0] <= context:
            _, index, read = waiting.popleft()
            done.append(ConfirmedRead(read.origin, read.number, index))
        return done

    def own_tokens(self) -> list[int]:
        """Return the tokens of this peer's pending reads."""
        own = [read.number for read in self._early if read.origin is None]
        own += [read.number for _, _, read in self._waiting if read.origin is None]
        return own


class LocalReads:
    """Reads of this peer's host: sent to another leader, or final and waiting to be applied.

    Attributes:
        failed: Tokens that got no answer; taken by the next `Ready`.
    """

    __slots__ = ("_asked", "_context", "_final", "_reads_max", "failed")

    def __init__(self, reads_max: int, first_context: int) -> None:
        """Hold at most `reads_max` reads.

        Queries are numbered from `first_context` on, which differs for each process. Otherwise an
        answer to an earlier process could match a later query.
        """
        self._reads_max = reads_max
        self._asked: dict[int, tuple[int, int]] = {}
        self._final: list[ReadState] = []
        self._context = first_context
        self.failed: list[int] = []

    def check_room(self) -> None:
        """Refuse a read if too many wait.

        Raises:
            RaftBusyError: Too many reads wait.
        """
        if len(self._asked) + len(self._final) >= self._reads_max:
            raise RaftBusyError("too many reads wait for the metadata leader")

    def ask(self, token: int, deadline: int) -> int:
        """Note a query to the leader; return the context for the message."""
        self._context += 1
        self._asked[self._context] = (token, deadline)
        return self._context

    def on_answer(self, context: int, index: int) -> bool:
        """Handle the leader's answer; return whether the query was pending."""
        asked = self._asked.pop(context, None)
        if asked is None:
            return False
        self._final.append(ReadState(asked[0], index))
        return True

    def add_final(self, token: int, index: int) -> None:
        """Add a read that may be served once everything up to `index` is applied."""
        self._final.append(ReadState(token, index))

    def fail_asked(self) -> None:
        """Fail queries to a leader that was lost."""
        self.failed += [token for token, _ in self._asked.values()]
        self._asked.clear()

    def expire(self, now: int) -> None:
        """Fail queries that timed out; their deadlines are in ascending order."""
        while self._asked:
            context = next(iter(self._asked))
            token, deadline = self._asked[context]
            if deadline > now:
                return
            del self._asked[context]
            self.failed.append(token)

    def next_deadline(self) -> int | None:
        """Return the time of the next `expire` call."""
        for _, deadline in self._asked.values():
            return deadline
        return None

    def take(self, index: int) -> tuple[tuple[ReadState, ...], tuple[int, ...]]:
        """Return reads to serve once everything up to `index` is applied; failed tokens."""
        if not self._final and not self.failed:
            return (), ()
        served = tuple(read for read in self._final if read.read_index <= index)  # guard R.applied
        if served:
            self._final = [read for read in self._final if read.read_index > index]
        failed = tuple(self.failed)
        self.failed.clear()
        return served, failed

    def has_any(self, index: int) -> bool:
        """Return whether `take` has reads."""
        return bool(self.failed) or any(read.read_index <= index for read in self._final)
