"""Watches of a story: objects by `kubectl get --watch`, replicas in sync by the brokers' metadata.

A watch that ends, for example because the API server restarts, is opened again; objects that are no
longer listed then count as gone. All observations are appended to a `Timeline`, and to a file of
JSON lines, so that a failed story can be examined afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final

from liftbridge_client import LiftbridgeError
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.journal import wall_seconds
from liftbridge_testkit.kube.timeline import CLUSTER, POD, SET, STREAM, Isr, Seen, reduced
from liftbridge_testkit.load import Worker
from liftbridge_testkit.steady import RETRY_SECONDS, client_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from liftbridge_client import Metadata, TlsFiles
    from liftbridge_testkit.kube.cluster import Kubernetes
    from liftbridge_testkit.kube.timeline import Timeline

RESOURCES: Final = {
    POD: "pods",
    SET: "statefulsets.apps",
    CLUSTER: "liftbridgeclusters.liftbridge.io",
    STREAM: "streams.liftbridge.io",
}
ISR_SECONDS: Final = 0.5


class Recorder:
    """Appends to a timeline and to a file, from several threads."""

    def __init__(self, timeline: Timeline, path: Path) -> None:
        self.timeline = timeline
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def saw(self, kind: str, name: str, body: Mapping[str, Any] | None) -> None:
        """Record a state of an object; None if it is gone."""
        with self._lock:
            seen = Seen(wall_seconds(), kind, name, None if body is None else reduced(body))
            self.timeline.seen.append(seen)
            self._file.write(json.dumps(seen) + "\n")

    def saw_isr(self, sizes: Mapping[str, int], leaderless: tuple[str, ...]) -> None:
        """Record replicas in sync, if they changed."""
        with self._lock:
            before = self.timeline.isr[-1:]
            if before and (before[0].sizes, before[0].leaderless) == (sizes, leaderless):
                return
            isr = Isr(wall_seconds(), sizes, leaderless)
            self.timeline.isr.append(isr)
            self._file.write(json.dumps([isr.at, "isr", sizes, leaderless]) + "\n")

    def close(self) -> None:
        """Flush and close the file."""
        with self._lock:
            self._file.close()


class ObjectWatch(Worker):
    """Sees all objects of one kind in a namespace."""

    def __init__(self, recorder: Recorder, cluster: Kubernetes, namespace: str, kind: str) -> None:
        super().__init__(f"watch-{kind}")
        self._recorder = recorder
        self._cluster = cluster
        self._get = ("--namespace", namespace, "get", RESOURCES[kind], "--output=json")
        self._kind = kind
        self._known: set[str] = set()
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Watch, and reopen the watch when it ends."""
        while not self._stopping.is_set():
            with contextlib.suppress(CommandError, OSError):
                self._list()
                self._watch()
            self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        self.join()

    def _list(self) -> None:
        """Note objects that disappeared since the last watch.

        Present objects come with the next watch.
        """
        listed = json.loads(self._cluster.kubectl(*self._get))["items"]
        names = {one["metadata"]["name"] for one in listed}
        for name in sorted(self._known - names):
            self._recorder.saw(self._kind, name, None)
        self._known &= names

    def _watch(self) -> None:
        command = ["kubectl", *self._get, "--watch", "--output-watch-events"]
        self._process = subprocess.Popen(
            command,
            env=dict(self._cluster.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with self._process as process:
            if self._stopping.is_set():
                process.terminate()
            assert process.stdout is not None
            for line in process.stdout:  # an event for each
                self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        body = event["object"]
        if body.get("kind") != self._kind:
            return  # a Status: the watch ends
        name = body["metadata"]["name"]
        is_gone = event["type"] == "DELETED"
        self._recorder.saw(self._kind, name, None if is_gone else body)
        (self._known.discard if is_gone else self._known.add)(name)
        self._succeeded()


class IsrWatch(Worker):
    """Fetches the replicas in sync from brokers twice a second; no answer is no observation."""

    def __init__(
        self,
        recorder: Recorder,
        servers: str,
        streams: Mapping[str, int],
        tls: TlsFiles | None,
    ) -> None:
        super().__init__("watch-isr")
        self._tls = tls
        self._recorder = recorder
        self._servers = servers
        self._streams = streams

    def run(self) -> None:
        """Run an event loop in this thread."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(LiftbridgeError):
                async with client_of(self._servers, self._tls) as client:
                    while not self._stopping.is_set():
                        self._recorder.saw_isr(*in_sync(await client.metadata(), self._streams))
                        self._succeeded()
                        await asyncio.sleep(ISR_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)


def in_sync(
    metadata: Metadata, streams: Mapping[str, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the replicas in sync of each partition of streams, and partitions without a leader."""
    found = {
        f"{name}/{number}": one
        for name in streams
        if name in metadata.streams
        for number, one in sorted(metadata.streams[name].partitions.items())
    }
    sizes = {name: len(one.isr) for name, one in found.items()}
    return sizes, tuple(name for name, one in found.items() if not one.leader)


class Watches:
    """All watches of a story."""

    def __init__(
        self, timeline: Timeline, cluster: Kubernetes, namespace: str, folder: Path
    ) -> None:
        """Begin to watch objects; see `watch_isr`."""
        self._recorder = Recorder(timeline, folder / "timeline.jsonl")
        self._workers: list[Worker] = [
            ObjectWatch(self._recorder, cluster, namespace, kind) for kind in RESOURCES
        ]
        for worker in self._workers:
            worker.start()

    def watch_isr(
        self, servers: str, streams: Mapping[str, int], tls: TlsFiles | None = None
    ) -> None:
        """Begin to watch replicas in sync."""
        worker = IsrWatch(self._recorder, servers, streams, tls)
        self._workers.append(worker)
        worker.start()

    def stop(self) -> None:
        """End all watches."""
        for worker in self._workers:
            worker.stop()
        self._recorder.close()
