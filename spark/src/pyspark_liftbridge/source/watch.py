"""Bounds of the partitions of a running query, kept up to date by one thread.

Spark requests the end of the logs a hundred times a second. The answer is cached, and updated by
one open call to each broker.
"""

import logging
import math
import threading
import time
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from liftbridge_client import LiftbridgeError, SyncClient
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import Bounds
from pyspark_liftbridge.plan.progress import advanced
from pyspark_liftbridge.source import cluster

_log: Final = logging.getLogger(__name__)

WAIT_SECONDS_MIN: Final = 5.0
WAIT_SECONDS_MAX: Final = 30.0
"""Maximum wait of an open call; new streams and partitions are looked up at this interval."""

WAIT_SECONDS_STREAM: Final = 2.0
"""Additional wait for each stream.

A broker checks all streams for each call, and an older broker has an open call for each stream.
"""

ALL_SECONDS: Final = 600.0
"""Interval at which all bounds are fetched, because retention moves log start offsets."""

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_STREAM: Final = 0.01
"""Pauses between two rounds with continuous news: in all, and for each stream with news."""

PAUSE_SECONDS_MAX: Final = 5.0
"""Pause between two rounds while brokers fail."""

POLL_SECONDS: Final = 1.0
"""Pause between two rounds if brokers do not support open calls."""


class _Failure(NamedTuple):
    """Time at which brokers stopped answering (monotonic), and the cause."""

    since_ns: int
    error: LiftbridgeError


class Watch:
    """Bounds of all partitions of a query; `bounds` is called by one thread.

    Args:
        options: Options of the query.
        found: Initial bounds.
    """

    def __init__(self, options: SourceOptions, found: Bounds) -> None:
        self._options = options
        self._bounds = found
        self._made: dict[str, datetime] = {}
        self._news: frozenset[str] = frozenset()
        self._asked_all_at = -math.inf
        self._busy_count = 0
        self._failure: _Failure | None = None
        self._is_over = threading.Event()
        # A daemon: Spark kills the process of a reader without a warning.
        self._thread = threading.Thread(target=self._run, name="liftbridge-watch", daemon=True)
        self._thread.start()

    def bounds(self) -> Bounds:
        """Return the bounds that brokers reported last; does not wait.

        Raises:
            LiftbridgeError: Brokers have not answered for longer than `fetch.timeout`.
        """
        assert self._thread.is_alive(), "the watch has stopped: the log of the driver has its error"
        failure = self._failure
        if failure is not None:
            absent_ns = time.monotonic_ns() - failure.since_ns
            if absent_ns > self._options.fetch.timeout_ns:
                raise failure.error
        return self._bounds

    def stop(self) -> None:
        """Stop the thread, at the latest when its open call returns."""
        self._is_over.set()

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._is_over.is_set():
            began_ns = time.monotonic_ns()
            try:
                cluster.ask(self._options, self._refresh)
                self._failure, pause = None, PAUSE_SECONDS
                cluster.ask(self._options, self._await_news)
            except LiftbridgeError as error:
                if self._failure is None:
                    _log.warning("brokers do not report their progress: %s", error)
                since_ns = began_ns if self._failure is None else self._failure.since_ns
                self._failure = _Failure(since_ns, error)
                self._is_over.wait(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _refresh(self, client: SyncClient) -> None:
        """Fetch bounds of streams with news, of new streams, and periodically of all streams."""
        options = self._options
        there = cluster.streams_of(client)
        partitions = cluster.partitions_of(
            client,
            options.subscription,
            running={bound.stream for bound in self._bounds},
            there=there,
        )
        made = {name: info.created for name, info in there.items() if name in partitions}
        now = time.monotonic()
        is_due = now - self._asked_all_at > ALL_SECONDS
        asked = {
            name: numbers
            for name, numbers in partitions.items()
            if is_due
            or name in self._news
            or made.get(name) != self._made.get(name)
            or any(PartitionId(name, number) not in self._bounds for number in numbers)
        }
        bounds = cluster.bounds_of(client, asked, options)
        kept = {
            one: known
            for one, known in self._bounds.items()
            if one.number in partitions.get(one.stream, ()) and one.stream not in asked
        }
        self._bounds = dict(sorted({**kept, **advanced(self._bounds, bounds)}.items()))
        self._busy_count = len(self._news)
        self._made, self._news = made, frozenset()
        self._asked_all_at = now if is_due else self._asked_all_at

    def _await_news(self, client: SyncClient) -> None:
        known: dict[str, dict[int, int]] = {}
        for one, found in self._bounds.items():
            known.setdefault(one.stream, {})[one.number] = found.latest
        if not known or not client.has_data:
            self._news = frozenset(known)
            self._is_over.wait(POLL_SECONDS)
            return
        self._is_over.wait(PAUSE_SECONDS + PAUSE_SECONDS_STREAM * self._busy_count)
        seconds = WAIT_SECONDS_MIN + WAIT_SECONDS_STREAM * len(known)
        self._news = client.streams.await_news(
            known,
            timedelta(seconds=min(seconds, WAIT_SECONDS_MAX)),
            read_replica=self._options.fetch.read_replica,
        )
