"""Pipelines of a story that archive its streams to an object store in the same namespace.

    archives = Archives(s, spark_image)
    archives.start_store(store_image)
    archives.apply("all", mode="Continuous", interval="5s")
    archives.await_all("all")
    assert archives.faults("all") == []

The archive is read from this machine, which reaches pods, and compared with the whole logs. So
lost, repeated and changed records are detected, whatever their cause.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import yaml

from liftbridge_client import connect
from liftbridge_testkit.kube.audit import read
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.release import signal_process
from liftbridge_testkit.kube.rights import EXECUTORS, Rights, rights
from liftbridge_testkit.kube.verdict import READ_TIME, read_log
from liftbridge_testkit.repository import ROOT
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.stores.store import Below, opened
from pyspark_liftbridge.archive.table import folder_of
from pyspark_liftbridge.archive.verify import verify

if TYPE_CHECKING:
    from liftbridge_testkit.kube.stories import Story

MANIFEST: Final = ROOT / "tests" / "e2e" / "manifests" / "object_store.yaml"
STORE: Final = "objects"
PORT: Final = 8333
KEYS: Final = {"access_key_id": "tests", "secret_access_key": "secret-of-tests"}
STORE_SECONDS_MAX: Final = 120
WHOLE_SECONDS_MAX: Final = 600
"""Bound of a start of Spark and two observations of the operator, on a busy machine."""

LABEL: Final = "liftbridge.io/pipeline"
EXECUTOR_LABEL: Final = "liftbridge.io/executor-of"

Place = tuple[str, int]
"""Stream and number of a partition."""


class Archives:
    """Actions on pipelines of a story, and checks of their archives."""

    def __init__(self, story: Story, image: str) -> None:
        """Configure the actions; `image` is the image of Spark."""
        self._story = story
        self._image = image

    def start_store(self, image: str) -> None:
        """Run an object store in the cluster; the Secret `bucket` has its keys."""
        text = MANIFEST.read_text(encoding="utf-8").replace("IMAGE", image)
        self._story.kubectl("apply", "--validate=strict", "-f", "-", text=text)
        rollout = ("rollout", "status", f"deployment/{STORE}", f"--timeout={STORE_SECONDS_MAX}s")
        self._story.kubectl(*rollout)

    # Pipelines.

    def apply(self, name: str, **spec: Any) -> None:
        """Create a pipeline that archives all streams of the story to its own root."""
        given = {
            "type": "Archive",
            "clusterRef": {"name": "c"},
            "source": {"streams": sorted(self._story.streams)},
            "archive": {
                "root": f"s3://{name}",
                "endpoint": f"http://{STORE}:{PORT}",
                "allowHttp": True,
            },
            "credentials": {"secrets": ["bucket"]},
            "image": self._image,
            "resources": {
                "requests": {"cpu": "50m", "memory": "512Mi"},
                "limits": {"memory": "1536Mi"},
            },
            **spec,
        }
        body = {
            "apiVersion": "liftbridge.io/v1alpha1",
            "kind": "StreamPipeline",
            "metadata": {"name": name},
            "spec": given,
        }
        text = yaml.safe_dump(body)
        self._story.kubectl("apply", "--validate=strict", "-f", "-", text=text)

    def status(self, name: str) -> Any:
        """Return the status of a pipeline; empty while there is none."""
        return self._story.get("lbp", name).get("status", {})

    def claims(self, name: str) -> dict[str, tuple[str, str]]:
        """Return the conditions of a pipeline: status and reason by type."""
        conditions = self.status(name).get("conditions", ())
        return {
            condition["type"]: (condition["status"], condition["reason"])
            for condition in conditions
        }

    def archived(self, name: str) -> dict[Place, int]:
        """Return the first offset that is not archived of each partition, from the status."""
        return {
            (one["stream"], one["partition"]): one["archivedOffset"] + 1
            for one in self.status(name).get("partitions", ())
        }

    def await_claim(
        self,
        name: str,
        kind: str,
        status: str,
        reason: str,
        seconds_max: float = WHOLE_SECONDS_MAX,
    ) -> None:
        """Wait until a condition is reported.

        Raises:
            AssertionError: It was not reported in time; the text has the status of the pipeline.
        """
        self._until(
            name,
            lambda: self.claims(name).get(kind) == (status, reason),
            f"{kind}={status} {reason}",
            seconds_max,
        )

    def await_all(self, name: str, seconds_max: float = WHOLE_SECONDS_MAX) -> None:
        """Wait until the status of a pipeline shows that all records committed now are archived."""
        wanted = asyncio.run(self._ends())
        self._until(
            name,
            lambda: all(self.archived(name).get(one, 0) >= end for one, end in wanted.items()),
            "that all is archived",
            seconds_max,
        )

    def _until(self, name: str, condition: Any, what: str, seconds_max: float) -> None:
        try:
            self._story.until(condition, what, seconds_max)
        except AssertionError as error:
            raise AssertionError(f"{name}: not {what}: {self.told(name)}") from error

    def told(self, name: str) -> str:
        """Return a description of a pipeline, for people."""
        texts = []
        selector = f"--selector={LABEL}={name}"
        for command in (
            ("get", "lbp", name, "--output=yaml"),
            ("get", "pods", "--output=wide"),
            ("logs", selector, "--tail=40", "--prefix"),
            ("logs", f"--selector={EXECUTOR_LABEL}={name}", "--tail=20", "--prefix"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        ):
            try:
                texts.append(self._story.kubectl(*command))
            except CommandError as error:
                texts.append(str(error))
        return "\n".join(texts)

    # Pods.

    def drivers(self, name: str) -> list[Any]:
        """Return the running pods that run the command."""
        return self._running(f"{LABEL}={name}")

    def executors(self, name: str) -> list[Any]:
        """Return the running pods that Spark created for the pipeline."""
        return self._running(f"{EXECUTOR_LABEL}={name}")

    def _running(self, selector: str) -> list[Any]:
        found = self._story.kubectl("get", "pods", f"--selector={selector}", "--output=json")
        return [
            one
            for one in yaml.safe_load(found)["items"]
            if "deletionTimestamp" not in one["metadata"]
            and any(
                "running" in each["state"] for each in one["status"].get("containerStatuses", ())
            )
        ]

    def kill(self, pod: Any) -> None:
        """Send `kill -9` to all processes in a pod of Spark.

        The JVM, and the Python that started it.
        """
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        # Kill the parent of the JVM first, so that no process is left to report its end.
        found = [
            pid
            for program in ("python", "java")
            for pid in self._story.machines.pids(node, uid, program)
        ]
        assert found, f"nothing of Spark runs in {pod['metadata']['name']}"
        for pid in found:
            signal_process(pid, signal.SIGKILL)

    def lose(self, pod: Any) -> None:
        """Delete a pod as if its node were gone: immediately, without waiting for its end."""
        name = pod["metadata"]["name"]
        self._story.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

    def driver_rights(self, name: str) -> Rights:
        """Return the requests of the driver of a pipeline since the beginning of the story."""
        selector = f"--selector={EXECUTORS}=executors"
        found = self._story.kubernetes.kubectl("get", "clusterroles", selector, "--output=json")
        # Without their labels: these roles are not for the operator.
        roles = [one | {"metadata": {}} for one in yaml.safe_load(found)["items"]]
        user = f"system:serviceaccount:{self._story.namespace}:{name}-pipeline"
        return rights(roles, read(self._story.machines.audit_log), user, self._story.since)

    # Checks of archives.

    def faults(self, name: str) -> list[str]:
        """Return the differences between the archive and the logs of all streams.

        End the load first.
        """
        found: list[str] = []
        for stream in sorted(self._story.streams):
            table = self._table(name, stream)
            found += [f"{stream}: {one.place}: {one.text}" for one in verify(table)]
            rows = _rows(table)
            logs = asyncio.run(self._logs(stream))
            for number, stored in enumerate(logs):
                kept = rows.pop(number, [])
                found += differences(f"{stream}/{number}", kept, stored)
            found += [f"{stream}: archived partition {number} is not there" for number in rows]
        return found

    def _table(self, name: str, stream: str) -> Below:
        pods = self._story.get("pods")
        (address,) = [
            pod["status"]["podIP"]
            for pod in pods
            if pod["metadata"].get("labels", {}).get("app") == STORE and "podIP" in pod["status"]
        ]
        given = {**KEYS, "endpoint": f"http://{address}:{PORT}", "allow_http": "true"}
        return Below(opened(f"s3://{name}", given), f"{folder_of(stream)}/")

    async def _ends(self) -> dict[Place, int]:
        story = self._story
        async with connect(
            story.servers, tls=story.tls, timeout=READ_TIME, retry_time=READ_TIME
        ) as client:
            return {
                (stream, one.partition): one.high_watermark
                for stream in story.streams
                for one in await client.streams.get(stream).bounds()
            }

    async def _logs(self, stream: str) -> list[list[tuple[int, bytes]]]:
        story = self._story
        async with connect(
            story.servers, tls=story.tls, timeout=READ_TIME, retry_time=READ_TIME
        ) as client:
            return [
                [(one.offset, one.value) for one in await read_log(client, stream, number)]
                for number in range(story.streams[stream])
            ]


def _rows(table: Below) -> dict[int, list[tuple[int, bytes]]]:
    """Return offset and value of all rows of a table, by partition, in order."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for add in log.load(table).files.values():
        file = table.open(add.object_path)
        assert file is not None, f"{add.path} is named by the log and not there"
        with file:
            rows = pq.read_table(file, columns=["partition", "offset", "value"]).to_pylist()
        for row in rows:
            found.setdefault(row["partition"], []).append((row["offset"], row["value"]))
    return {number: sorted(rows) for number, rows in found.items()}


def differences(
    place: str, kept: list[tuple[int, bytes]], stored: list[tuple[int, bytes]]
) -> list[str]:
    """Return lost, repeated and different records of a partition."""
    found = []
    offsets = [offset for offset, _ in kept]
    lost = sorted({offset for offset, _ in stored} - set(offsets))
    twice = len(offsets) - len(set(offsets))
    if lost:
        found.append(f"{place}: {len(lost)} records are not archived, the first is {lost[0]}")
    if twice:
        found.append(f"{place}: {twice} records are archived twice")
    wrong = [one for one in kept if one not in set(stored)]
    if wrong:
        found.append(f"{place}: {len(wrong)} archived records are not those of the log")
    return found
