"""Run passes: take keys from the queue of a kind and pass them to its reconciler."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from liftbridge_operator.kube.errors import FencedError, KubeError
from liftbridge_operator.kube.kinds import Kind
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.metrics import Metrics, label_of
from liftbridge_operator.process.queue import Taken, WorkQueue
from liftbridge_operator.process.reconciler import (
    Key,
    Reconciler,
    RefusedError,
    RequeueAfter,
)

PASS_SECONDS_MAX: Final = 60.0
"""Time after which a pass is cancelled: nothing that it may wait for takes so long."""

log = structlog.get_logger("liftbridge.operator")


class Dispatcher:
    """Runs the passes of one kind of resources by several workers over one queue.

    Owned by the process; `request` may be called from the event loop only.

    Attributes:
        kind: Kind of the resources.
        queue: Keys that wait for a pass.
    """

    def __init__(
        self,
        kind: Kind,
        reconciler: Reconciler,
        *,
        queue: WorkQueue,
        clock: Clock,
        metrics: Metrics,
        workers: int,
        deadline: Callable[[float | None], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        self.kind = kind
        self.queue = queue
        self._reconciler = reconciler
        self._clock = clock
        self._metrics = metrics
        self._workers = workers
        self._deadline = deadline
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._label = label_of(kind)

    def request(self, key: Key, after_s: float = 0.0) -> None:
        """Request a pass for a key of this kind within this time."""
        assert key.kind == self.kind, f"{key} is none of {self.kind.plural}"
        if not self.queue.add(key, self._clock.now(), after_s):
            self._metrics.count("queue_dropped_total", self._label)
        self._wake.set()

    async def run(self) -> None:
        """Run passes until `stop`, and finish passes that have started."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._work())

    def stop(self) -> None:
        """Start no further pass."""
        self._is_stopping = True
        self._wake.set()

    async def _work(self) -> None:
        while not self._is_stopping:
            found = self.queue.take(self._clock.now())
            if found is None:
                await self._await_work()
                continue
            await self._pass(found)
            # A key that this pass requested or held back may be due before a sleeping worker wakes.
            self._wake.set()

    async def _await_work(self) -> None:
        self._wake.clear()
        then = self.queue.next_s()
        seconds = None if then is None else max(0.0, then - self._clock.now())
        await self._clock.wait(self._wake, seconds)

    async def _pass(self, taken: Taken) -> None:
        key, began = taken.key, self._clock.now()
        self._metrics.observe("queue_wait_seconds", taken.waited_s, self._label)
        try:
            async with self._deadline(PASS_SECONDS_MAX):
                again = await self._reconciler.reconcile(key)
        except FencedError:
            self._end(key, began, "refused", None)
            log.info("pass_ended_without_lease", key=str(key))
        except (KubeError, RefusedError) as refused:
            wait = self._fail(key, began, "refused")
            log.warning("pass_refused", key=str(key), error=str(refused), retry_s=round(wait, 1))
        except TimeoutError:
            wait = self._fail(key, began, "timed_out")
            log.warning("pass_timed_out", key=str(key), retry_s=round(wait, 1))
        except Exception:
            # One broken resource must not stop the passes of all others.
            wait = self._fail(key, began, "failed")
            log.exception("pass_failed", key=str(key), retry_s=round(wait, 1))
        else:
            self._end(key, began, "done" if again is None else "again", again)

    def _end(self, key: Key, began: float, result: str, again: RequeueAfter | None) -> None:
        now = self._clock.now()
        self._record_pass(result, now - began)
        self.queue.succeed(key, now, again)

    def _fail(self, key: Key, began: float, result: str) -> float:
        now = self._clock.now()
        self._record_pass(result, now - began)
        return self.queue.fail(key, now)

    def _record_pass(self, result: str, seconds: float) -> None:
        self._metrics.count("passes_total", self._label, result)
        self._metrics.observe("pass_seconds", seconds, self._label)
