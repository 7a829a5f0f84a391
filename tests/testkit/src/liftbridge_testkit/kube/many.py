"""Measures the cost of many `Stream` resources to the operator: memory, starts, writes, repairs.

`python -m liftbridge_testkit.kube.many` starts an API server with etcd (`control_plane`), a model
of three brokers behind their port for operators (`model_brokers`), and the shipped operator with
both of its reconcilers. There are no nodes: the cluster of the streams has no pods, and the model
presents the certificate that the operator issues for brokers. Then

1. 5,000 resources (`--streams`) are created, and the operator started: it creates all streams;
2. it is started again, with everything in place, until each resource had a pass and none waits;
3. it is idle for a minute (`--rest-seconds`), and its writes are counted from the audit log;
4. streams are deleted directly at the brokers, one by one, at random moments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from base64 import b64decode
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import SECRETS, STREAMS
from liftbridge_operator.model import names
from liftbridge_operator.process.metrics import PREFIX, label_of
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.kube.audit import read, writes
from liftbridge_testkit.kube.control_plane import ADMIN, ControlPlane
from liftbridge_testkit.kube.definitions import define
from liftbridge_testkit.kube.model_brokers import ModelBrokers, ServerFiles, relaying, serving
from liftbridge_testkit.kube.person import cluster
from liftbridge_testkit.processes import ProcessError, ServerProcess, free_port, program
from liftbridge_testkit.progress import say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

CLUSTER: Final = "events"
NAMESPACE: Final = "default"
USER: Final = "operator"
IN_FLIGHT_MAX: Final = 32
FIRST_SECONDS_MAX: Final = 1_800.0
SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.25
REPAIR_POLL_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 10.0
"""Time between two observations of the operator, within which streams are deleted."""


class Figure(NamedTuple):
    """A figure; `below` is None without a target."""

    title: str
    value: float
    unit: str
    below: float | None = None

    @property
    def is_met(self) -> bool:
        """Return whether the figure meets its target."""
        return self.below is None or self.value < self.below

    @property
    def line(self) -> list[str]:
        """Row of the table."""
        value = f"{self.value:,.0f}" if self.value == int(self.value) else f"{self.value:,.1f}"
        told = [self.title, f"{value} {self.unit}".rstrip()]
        if self.below is None:
            return [*told, "-", "-"]
        asked = f"< {self.below:g} {self.unit}" if self.unit else f"< {self.below:g}"
        return [*told, asked, "yes" if self.is_met else "NO"]


class Passes(NamedTuple):
    """Operator's metrics of passes over streams.

    Attributes:
        ended: Passes that have ended.
        failed: Passes that failed.
        waiting: Resources that wait for a pass or are in a pass.
    """

    ended: float
    failed: float
    waiting: float


def passes_of(text: str) -> Passes:
    """Parse the metrics."""
    ended = failed = waiting = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("kind") != label_of(STREAMS):
                continue
            name = sample.name.removeprefix(PREFIX)
            if name == "passes_total":
                ended += sample.value
                failed += sample.value * (sample.labels["result"] in {"failed", "timed_out"})
            elif name in {"queue_depth", "queue_running"}:
                waiting += sample.value
    return Passes(ended, failed, waiting)


class Operator(ServerProcess):
    """The operator as a process."""

    def __init__(self, folder: Path, kubeconfig: Path, relay: int) -> None:
        """Configure the operator.

        Args:
            folder: Directory of its log.
            kubeconfig: Kubeconfig of its user.
            relay: Port of the proxy through which it reaches brokers.
        """
        environment = {"KUBECONFIG": str(kubeconfig), "grpc_proxy": f"http://127.0.0.1:{relay}"}
        super().__init__("operator", folder, environment=environment)
        for name in ("no_grpc_proxy", "no_proxy"):
            self._environment.pop(name, None)
        self._listen = f"127.0.0.1:{free_port()}"

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        return [str(program("liftbridge-operator")), "run", "--listen", self._listen]

    async def passes(self, session: aiohttp.ClientSession) -> Passes:
        """Return the passes since its start; none before it has listed the resources.

        Raises:
            ProcessError: The operator has exited.
        """
        if not self.is_alive():
            raise ProcessError(self._story("ended by itself"))
        try:
            async with session.get(f"http://{self._listen}/readyz") as answer:
                if answer.status != 200:
                    return Passes(0, 0, 0)
            async with session.get(f"http://{self._listen}/metrics") as answer:
                return passes_of(await answer.text())
        except aiohttp.ClientError:
            return Passes(0, 0, 0)

    async def end(self) -> None:
        """Stop it as Kubernetes does."""
        self.terminate()
        await asyncio.to_thread(self.wait)

    @property
    def peak_mb(self) -> float:
        """Peak of its resident memory, in MB of a million bytes."""
        return peak_mb(Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8"))


def peak_mb(status: str) -> float:
    """Parse `VmHWM` of `/proc/PID/status`, in MB of a million bytes."""
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1_024 / 1e6


def body_of(number: int) -> dict[str, Any]:
    """Return the body of one resource."""
    return {
        "apiVersion": STREAMS.api_version,
        "kind": STREAMS.kind,
        "metadata": {"name": f"many-{number}", "namespace": NAMESPACE},
        "spec": {
            "clusterRef": {"name": CLUSTER},
            "subject": f"many.{number}",
            "replicationFactor": 3,
            "config": {"retentionMaxAge": "24h", "minISR": 2},
        },
    }


class Measurement:
    """All measurements, in sequence."""

    def __init__(
        self,
        options: argparse.Namespace,
        plane: ControlPlane,
        kube: KubeClient,
        operator: Operator,
        brokers: ModelBrokers,
        session: aiohttp.ClientSession,
    ) -> None:
        self._count: int = options.streams
        self._rest: float = options.rest_seconds
        self._repairs: int = options.repairs
        self._rng = Random(options.seed)
        self._plane, self._kube = plane, kube
        self._operator, self._brokers, self._session = operator, brokers, session
        self.figures: list[Figure] = []

    def _tell(self, *figures: Figure) -> None:
        for figure in figures:
            say("  ".join(figure.line))
        self.figures += figures

    def _writes(self, since: datetime) -> int:
        """Return the writes of the operator since a moment, without its Lease."""
        return len(writes(read(self._plane.audit_log), USER, since))

    async def certificate(self) -> ServerFiles:
        """Create the cluster, and wait for the certificate of its brokers."""
        body = cluster(CLUSTER, NAMESPACE)
        await self._kube.create({name: body[name] for name in body if name != "status"})
        self._operator.spawn()
        found: list[ServerFiles] = []

        async def is_made() -> bool:
            try:
                await self._kube.get(SECRETS, NAMESPACE, names.operator_leaf(CLUSTER))
                secret = await self._kube.get(SECRETS, NAMESPACE, names.internal_leaf(CLUSTER))
            except NotFoundError:
                return False
            keys = (names.KEY_KEY, names.CERT_KEY, names.CA_KEY)
            found.append(ServerFiles(*(b64decode(secret["data"][key]) for key in keys)))
            return True

        await until(is_made, "certificates")
        await self._operator.end()
        return found[0]

    async def create(self) -> None:
        """Create all resources, many concurrently."""
        begin = monotonic()
        await asyncio.gather(*(self._kube.create(body_of(one)) for one in range(self._count)))
        seconds = monotonic() - begin
        self._tell(Figure("resources created", self._count / seconds, "each second"))

    async def first_start(self) -> None:
        """Start with resources whose streams do not exist."""
        since = datetime.now(UTC)
        seconds = await self._start(FIRST_SECONDS_MAX)
        marked = sum(bool(self._brokers.owner(f"many-{one}")) for one in range(self._count))
        if marked != self._count:
            raise ProcessError(f"{marked} of {self._count} streams are there")
        self._tell(
            Figure("first start, all streams created and told", seconds, "s"),
            Figure("processor time of the first start", self._operator.cpu_seconds(), "s"),
            Figure("writes of the first start", self._writes(since), ""),
            Figure("most memory in the first start", self._operator.peak_mb, "MB", 300.0),
        )
        await self._operator.end()

    async def restart(self) -> None:
        """Start with everything in place."""
        since, before = datetime.now(UTC), self._brokers.changes
        seconds = await self._start(SECONDS_MAX)
        self._tell(
            Figure("start with all in place, all looked at", seconds, "s", 30.0),
            Figure("processor time of this start", self._operator.cpu_seconds(), "s"),
            Figure("writes of this start", self._writes(since), "", 1.0),
            Figure("changes at the brokers in this start", self._brokers.changes - before, "", 1.0),
        )

    async def rest(self) -> None:
        """Measure the idle operator."""
        since, before = datetime.now(UTC), self._operator.cpu_seconds()
        await asyncio.sleep(self._rest)
        spent = self._operator.cpu_seconds() - before
        self._tell(
            Figure(f"writes in {self._rest:g} s at rest", self._writes(since), "", 1.0),
            Figure("processor time at rest", 100 * spent / self._rest, "% of a core"),
        )

    async def repair(self) -> None:
        """Delete streams at the brokers, and measure the repair."""
        taken: list[float] = []
        for one in self._rng.sample(range(self._count), self._repairs):
            name = f"many-{one}"
            await asyncio.sleep(self._rng.uniform(0, LOOK_SECONDS))
            begin = monotonic()
            self._brokers.lose(name)

            async def is_there(name: str = name) -> bool:
                return bool(self._brokers.owner(name))

            await until(is_there, f"{name} there again", poll=REPAIR_POLL_SECONDS)
            taken.append(monotonic() - begin)
        self._tell(
            Figure(f"deleted stream there again, worst of {len(taken)}", max(taken), "s", 30.0),
            Figure("deleted stream there again, mean", sum(taken) / len(taken), "s"),
            Figure("memory now", self._operator.rss_bytes() / 1e6, "MB"),
            Figure("most memory since the start", self._operator.peak_mb, "MB", 300.0),
        )

    async def _start(self, seconds_max: float) -> float:
        """Start the operator; return the time until each resource had a pass and none waits."""
        begin = monotonic()
        self._operator.spawn()

        async def is_done() -> bool:
            told = await self._operator.passes(self._session)
            if told.failed:
                raise ProcessError(f"{told.failed:.0f} passes failed")
            return told.ended >= self._count and not told.waiting

        await until(is_done, "every resource looked at", seconds_max=seconds_max)
        return monotonic() - begin


async def until(
    holds: Callable[[], Awaitable[bool]],
    what: str,
    *,
    seconds_max: float = SECONDS_MAX,
    poll: float = POLL_SECONDS,
) -> None:
    """Poll until a condition holds.

    Raises:
        ProcessError: It does not hold in time.
    """
    end = monotonic() + seconds_max
    while not await holds():
        if monotonic() > end:
            raise ProcessError(f"not in {seconds_max:g} s: {what}")
        await asyncio.sleep(poll)


async def measure(options: argparse.Namespace, plane: ControlPlane, folder: Path) -> list[Figure]:
    """Return all figures."""
    brokers, ports = ModelBrokers(CLUSTER), [0]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        api = await stack.enter_async_context(connect(in_flight_max=IN_FLIGHT_MAX))
        relay = await stack.enter_async_context(relaying(lambda: ports[0]))
        operator = Operator(folder, plane.kubeconfig(USER), relay)
        stack.callback(operator.kill)
        kube = KubeClient(api, fence=None, rng=Random(0))
        run = Measurement(options, plane, kube, operator, brokers, session)
        files = await run.certificate()
        ports[0] = await stack.enter_async_context(serving(brokers, files))
        await run.create()
        await run.first_start()
        await run.restart()
        await run.rest()
        await run.repair()
        return run.figures


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="many", description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=5_000, help="resources (5,000)")
    parser.add_argument("--rest-seconds", type=float, default=60.0, help="at rest (60)")
    parser.add_argument("--repairs", type=int, default=5, help="streams deleted (5)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/operator-scale.json"))
    parser.add_argument("--keep", type=Path, help="folder that keeps the logs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a figure misses its target."""
    options = options_of(arguments)
    about = machine(0.0)
    with tempfile.TemporaryDirectory(prefix="many-") as name:
        folder = Path(options.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        with ControlPlane(folder) as plane:
            # By this variable the client finds the API server.
            os.environ["KUBECONFIG"] = str(plane.kubeconfig(ADMIN))
            define(plane.kubernetes)
            found = asyncio.run(measure(options, plane, folder))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": about,
        "streams": options.streams,
        "figures": [figure._asdict() for figure in found],
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [figure.line for figure in found]
    say(f"\n{table(['what', 'measured', 'target', 'met'], lines)}\n\nwritten: {options.output}")
    return 0 if all(figure.is_met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
