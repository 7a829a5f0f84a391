"""Rewraps data keys: unwraps those of former master keys, and wraps them by the current one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from liftbridge_broker.controller.commands import RewrapDataKeys, RewrappedKey
from liftbridge_broker.controller.keys import REWRAPPED_MAX
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError, UnavailableError
from liftbridge_broker.model.ids import StreamId
from liftbridge_broker.model.keys import check_value
from liftbridge_broker.node.context import NodeContext


class Rewrapped(NamedTuple):
    """Result of one run.

    Attributes:
        count: Data keys that were rewrapped.
        left_count: Data keys that were wrapped by a former master key at the start of the run, and
            still are.
    """

    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not needed here
    left_count: int


Reply = Callable[[Rewrapped | LiftbridgeError], None]


@dataclass(slots=True, eq=False)
class _Run:
    """One run.

    Attributes:
        reply: Gets the outcome.
        former_count: Data keys wrapped by a former master key when it began.
        waiting_count: Streams without an outcome yet.
        keys: The keys that were rewrapped.
        error: The first error.
    """

    reply: Reply
    former_count: int
    waiting_count: int
    keys: list[RewrappedKey] = field(default_factory=list)
    error: LiftbridgeError | None = None


def former(state: ClusterState) -> list[StreamId]:
    """Return the streams whose data keys are not wrapped by the current master key."""
    keys = ((stream_id, state.streams[stream_id].data_key) for stream_id in state.encrypted)
    return [one for one, key in keys if key is not None and key.master_key != state.master_key]


class Rewrapping:
    """Runs of one broker, one at a time."""

    def __init__(self, context: NodeContext) -> None:
        """Start without a run."""
        self._context = context
        self._run: _Run | None = None

    def begin(self, reply: Reply) -> None:
        """Rewrap at most `REWRAPPED_MAX` data keys.

        `reply` gets the outcome once it shows in the metadata, or the first error. Repeat it while
        keys are left.
        """
        if self._run is not None:
            reply(UnavailableError("data keys are being rewrapped already, repeat it later"))
            return
        found = former(self._context.state)
        if not found:
            reply(Rewrapped(0, 0))
            return
        streams = found[:REWRAPPED_MAX]
        run = self._run = _Run(reply, len(found), len(streams))
        for stream_id in streams:
            self._unwrap(run, stream_id)

    def _unwrap(self, run: _Run, stream_id: StreamId) -> None:
        stream = self._context.state.streams.get(stream_id)
        if stream is None or stream.data_key is None or run.error is not None:
            self._settle(run)
            return
        key, masters = stream.data_key, self._context.data_keys.masters
        target = self._context.state.master_key

        def unwrapped(outcome: bytes | LiftbridgeError) -> None:
            if isinstance(outcome, LiftbridgeError):
                self._settle(run, error=outcome)
                return
            blank = RewrappedKey(stream_id, key.wrapped, target, b"", check_value(outcome))
            masters.wrap(target, outcome, stream.name, partial(self._wrapped, run, blank))

        masters.unwrap(key.master_key, key.wrapped, stream.name, unwrapped)

    def _wrapped(self, run: _Run, blank: RewrappedKey, outcome: bytes | LiftbridgeError) -> None:
        if isinstance(outcome, LiftbridgeError):
            self._settle(run, error=outcome)
            return
        run.keys.append(blank._replace(wrapped=outcome))
        self._settle(run)

    def _settle(self, run: _Run, error: LiftbridgeError | None = None) -> None:
        """Note the outcome of one stream; after the last, propose what succeeded."""
        run.error = run.error or error
        run.waiting_count -= 1
        if run.waiting_count:
            return
        if not run.keys:
            self._end(run, run.error)
            return
        command = RewrapDataKeys(keys=tuple(run.keys))
        self._context.propose(command, self._context.now, partial(self._proposed, run))

    def _proposed(self, run: _Run, outcome: object) -> None:
        self._end(run, outcome if isinstance(outcome, LiftbridgeError) else run.error)

    def _end(self, run: _Run, error: LiftbridgeError | None) -> None:
        self._run = None
        count = len(run.keys)
        run.reply(Rewrapped(count, run.former_count - count) if error is None else error)
