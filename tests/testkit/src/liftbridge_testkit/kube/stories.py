"""One story: a cluster and streams from a manifest, with load, watches, actions and checks.

    with story(stage, "image-roll") as s:
        with s.marked("roll"):
            s.change(image=stage.next_image)
            s.await_ready()
        s.check_roll("roll", brokers=3)

At the end of every story: no acknowledged message is lost or changed, readers got all of them in
order, statuses never claimed more than was true, long waits were explained, and the operator met no
bug. `results` stores the findings of a story; all its objects are removed from the cluster.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import yaml

from liftbridge_client import TlsFiles
from liftbridge_testkit.kube import results
from liftbridge_testkit.kube.acts import CLUSTER, READY_SECONDS_MAX, Acts
from liftbridge_testkit.kube.audit import read
from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.gaps import Span, longest_gap
from liftbridge_testkit.kube.journal import wall_seconds
from liftbridge_testkit.kube.load import Load
from liftbridge_testkit.kube.nodes import Machines
from liftbridge_testkit.kube.release import USER, Killer
from liftbridge_testkit.kube.rights import rights
from liftbridge_testkit.kube.timeline import (
    Timeline,
    container_restarts,
    downs,
    isr_below,
    most_down,
    planned,
    restart_spans,
    stale_statuses,
    unexplained_waits,
    untrue_statuses,
)
from liftbridge_testkit.kube.verdict import Verdict, judge
from liftbridge_testkit.kube.watching import Watches
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from liftbridge_testkit.kube.cluster import Kubernetes
    from liftbridge_testkit.kube.release import OperatorRelease

MANIFEST: Final = ROOT / "tests" / "e2e" / "manifests" / "story.yaml"
LISTENER: Final = "outside"
KINDS: Final = "lbc,lbs,lbp,sts,deploy,cronjobs,jobs,pods,pvc,pdb,svc,cm"
PIPELINE: Final = "liftbridge-pipeline"
GONE_SECONDS_MAX: Final = 180
FIRST_ACKS_SECONDS_MAX: Final = 60.0
CALM_SECONDS_MAX: Final = 120.0
GAP_SECONDS_MAX: Final = 10.0
"""Maximum time without an ack of a partition at one restart in a roll."""

KEY_VARIABLE: Final = "LIFTBRIDGE_STORIES_KEY"
SEED_VARIABLE: Final = "LIFTBRIDGE_SEED"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Cluster on which stories run.

    Attributes:
        kubernetes: The cluster.
        operator: The operator in it.
        image: Image of the brokers.
        next_image: The same image under another name, to roll to.
        operator_image: Image of the operator.
        folder: Directory of results.
    """

    kubernetes: Kubernetes
    operator: OperatorRelease
    image: str
    next_image: str
    operator_image: str
    folder: Path = results.FOLDER


def merged(base: Any, change: Any) -> Any:
    """Merge changes into a value: mappings are merged, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    found = dict(base)
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found[key], value) if key in found else value
    return found


def objects(
    namespace: str,
    image: str,
    spec: Mapping[str, Any],
    stream: Mapping[str, Any],
    path: Path = MANIFEST,
) -> list[Object]:
    """Return the objects of the manifest in a namespace, with changes.

    Args:
        namespace: Name of the namespace.
        image: Image of the brokers.
        spec: Merged into the spec of the cluster; None removes a field.
        stream: Merged into the spec of each stream.
        path: Path of the manifest.
    """
    found: list[Object] = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for one in found:
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = namespace
            continue
        one["metadata"]["namespace"] = namespace
        if one["kind"] == "LiftbridgeCluster":
            one["spec"] = merged(one["spec"] | {"image": image}, dict(spec))
        elif one["kind"] == "Stream":
            one["spec"] = merged(one["spec"], dict(stream))
    return found


@cache
def key() -> str:
    """Return the commit under test at the first call of this process."""
    return os.environ.get(KEY_VARIABLE) or results.commit_key()


class Story(Acts):
    """A running story; created by `story`.

    Attributes:
        name: Name of the story and of its namespace.
        stage: Stage of the story.
        rng: Random source, from the seed of the story.
        result: Result of the story.
        timeline: Observed events.
        since: When it began.
        withheld: Rights that the story took from the operator, which still requests them.
    """

    def __init__(self, stage: Stage, name: str, seed: int) -> None:
        """Configure the story."""
        super().__init__(stage.kubernetes, f"story-{name}", threading.Event().wait)
        self.name = name
        self.stage = stage
        self.rng = Random(seed)
        self.result = results.Result(name, key(), seed=seed)
        self.timeline = Timeline(CLUSTER)
        self.withheld: frozenset[str] = frozenset()
        self.folder = stage.folder / self.result.commit / name
        self.streams: dict[str, int] = {}
        self.servers = ""
        self.tls: TlsFiles | None = None
        self.load: Load | None = None
        self._objects: list[Object] = []
        self._watches: Watches | None = None
        self._killer: Killer | None = None
        self.since = datetime.now(UTC)
        self._checks: list[_RollCheck] = []
        self._is_judged = True
        self._began = monotonic()
        self._loaded_at = float("inf")

    # Beginning.

    def make(
        self,
        spec: Mapping[str, Any],
        stream: Mapping[str, Any],
        prepare: Callable[[], object],
    ) -> None:
        """Create all objects of the manifest, and watch them; see `story`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.remove()
        self._objects = objects(self.namespace, self.stage.image, spec, stream)
        self.kubernetes.kubectl("apply", "-f", "-", text=yaml.safe_dump(self._objects[0]))
        prepare()
        self._watches = Watches(self.timeline, self.kubernetes, self.namespace, self.folder)
        self.apply()

    def apply(self) -> None:
        """Write the objects of the story, also again after a deletion."""
        text = yaml.safe_dump_all(self._objects)
        self.kubernetes.kubectl("apply", "--validate=strict", "-f", "-", text=text)

    def start_load(self) -> None:
        """Begin to publish to and read from the streams, which must be ready."""
        self.streams = {
            one["spec"].get("streamName", one["metadata"]["name"]): one["spec"]["partitions"]
            for one in self._objects
            if one["kind"] == "Stream"
        }
        self.await_streams(*[n["metadata"]["name"] for n in self._objects if n["kind"] == "Stream"])
        self.servers = self.bootstrap()
        assert self._watches is not None
        self.trust()
        self._watches.watch_isr(self.servers, self.streams, self.tls)
        self.load = Load(self.folder, self.servers, self.streams, tls=self.tls)
        self.load.start()
        self._loaded_at = wall_seconds()
        self.load.wait_for_all(FIRST_ACKS_SECONDS_MAX, more=3)

    def bootstrap(self) -> str:
        """Return the addresses of brokers that this machine reaches, from the status."""

        def told() -> str:
            for one in self.cluster["status"].get("listeners", ()):
                if one["name"] == LISTENER:
                    return ",".join(filter(None, one.get("brokers") or [one["address"]]))
            return ""

        found: str = self.until(told, f"addresses of listener {LISTENER}", 60)
        return found

    def trust(self) -> None:
        """Read the CAs for clients from the object that the operator publishes."""
        if self.cluster["spec"].get("tls", {}).get("mode") != "Generated":
            return
        found = self.get("configmap", f"{CLUSTER}-ca")["data"]["ca.crt"]
        path = self.folder / "ca.crt"
        path.write_text(found, encoding="utf-8")
        self.tls = TlsFiles(ca=path)

    def kill_operator_at_a_write(self) -> None:
        """Kill the operator at one of its next writes, chosen at random."""
        self._killer = Killer(self.kubernetes, self.stage.operator, self.rng)
        self.result.notes["kill at write"] = self._killer.write
        self._killer.start()

    # During the story.

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Name an interval; gaps between acknowledgements are reported for it."""
        began = wall_seconds()
        started = monotonic()
        try:
            yield
        finally:
            span = Span(name, began, wall_seconds())
            self.timeline.marks.append(span)
            self.result.marks[name] = round(monotonic() - started, 1)
            sys.stdout.write(f"e2e: {self.result.marks[name]:7.1f} s  {self.name}: {name}\n")
            sys.stdout.flush()

    def await_acks(self, seconds_max: float = CALM_SECONDS_MAX, more: int = 3) -> None:
        """Wait until every partition has a further ack."""
        assert self.load is not None
        self.load.wait_for_all(seconds_max, more=more)

    def check_roll(
        self, mark: str, *, brokers: int, gap_seconds_max: float = GAP_SECONDS_MAX
    ) -> None:
        """Check at the end that an interval was a correct roll.

        Each of the brokers was restarted once, as announced in a plan, and never two at the same
        time. No partition lost more than one in-sync replica or had no acks for too long.
        """
        self._checks.append(_RollCheck(mark, brokers, gap_seconds_max))

    def lose_data(self) -> None:
        """Note that the stored data cannot be read at the end, because the story loses it."""
        self._is_judged = False

    # End.

    def finish(self) -> None:
        """End load and watches, and run all checks."""
        if self.load is not None:
            self.load.stop()
        if self._killer is not None:
            self._killer.stop()
            self.result.killed = self._killer.killed
        self._stop_watches()
        verdict = Verdict()
        if self.load is not None and self._is_judged:
            self.trust()
            verdict = asyncio.run(judge(self.folder, self.servers, self.streams, tls=self.tls))
        self.result.failures += verdict.violations
        self.result.counts, self.result.errors = verdict.counts, verdict.errors
        self._measure(verdict.acks)
        self._check_timeline()
        self._check_operator()

    def _stop_watches(self) -> None:
        if self._watches is not None:
            self._watches.stop()
            self._watches = None

    def _measure(self, acks: Mapping[str, list[float]]) -> None:
        found = downs(self.timeline)
        for mark in self.timeline.marks:
            if mark.begin < self._loaded_at:
                continue  # no message was published yet
            gaps = [longest_gap(times, mark.begin, mark.end) for times in acks.values()]
            self.result.gaps[mark.name] = round(max(gaps, default=0.0), 3)
            for span in restart_spans(found, mark.begin, mark.end):
                each = {
                    name: round(longest_gap(times, span.begin, span.end), 3)
                    for name, times in acks.items()
                }
                restart = results.Restart(mark.name, span.name, span.begin, span.end, each)
                self.result.restarts.append(restart)
        self.result.notes["container restarts"] = container_restarts(self.timeline)

    def _check_timeline(self) -> None:
        failures = self.result.failures
        failures += stale_statuses(self.timeline)
        failures += untrue_statuses(self.timeline)
        failures += unexplained_waits(self.timeline)
        for check in self._checks:
            failures += check.failures(self.timeline, self.result.restarts)

    def _check_operator(self) -> None:
        log = self.stage.operator.logs(monotonic() - self._began)
        (self.folder / "operator.log").write_text(log, encoding="utf-8")
        if "Traceback (most recent call last)" in log:
            self.result.failures.append("the log of the operator has a traceback")
        if self.kubernetes.kind is Cluster.OWN:
            self._check_rights()

    def _check_rights(self) -> None:
        """Check the rights in the audit log, which only the project's own cluster provides."""
        requests = read(Machines(self.kubernetes).audit_log)
        roles = self.stage.operator.roles()
        found = rights(roles, requests, USER, self.since, self.api_server_starts)
        denied = sorted(found.denied - self.withheld)
        self.result.failures += [f"the operator was denied: {one}" for one in denied]
        self.result.unused_rights = found.unused

    # Removal.

    def collect(self) -> None:
        """Keep data that may explain a failure: objects, events, logs."""
        for name, command in {
            "objects.yaml": ("get", KINDS, "--output=yaml"),
            "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
            "brokers.log": (
                *("logs", f"--selector=liftbridge.io/cluster={CLUSTER}", "--container=broker"),
                *("--prefix", "--tail=-1", "--max-log-requests=10"),
            ),
            "pipelines.log": (
                *("logs", f"--selector=app.kubernetes.io/name={PIPELINE}", "--tail=-1"),
                *("--prefix", "--max-log-requests=20"),
            ),
        }.items():
            with suppress(CommandError):
                (self.folder / name).write_text(self.kubectl(*command), encoding="utf-8")
        with suppress(CommandError):
            text = self.stage.operator.logs(monotonic() - self._began)
            (self.folder / "operator.log").write_text(text, encoding="utf-8")

    def remove(self) -> None:
        """Remove all objects of a story of this name, including volumes.

        Brokers are removed first: the deletion of a namespace with pods takes as long as their
        grace period, however soon they are gone.
        """
        self.kubectl("delete", "lbc,lbp,sts,deploy,cronjobs,jobs", "--all", "--wait=false")
        pods = ("delete", "pods", "--all", "--grace-period=1")
        self.kubectl(*pods, f"--timeout={GONE_SECONDS_MAX}s")
        self.kubernetes.kubectl(
            *("delete", "namespace", self.namespace, "--ignore-not-found"),
            f"--timeout={GONE_SECONDS_MAX}s",
        )

    def abandon(self) -> None:
        """End threads that still run after a failure."""
        for one in (self.load, self._killer):
            if one is not None:
                with suppress(Exception):  # failures are reported already
                    one.stop()
        self._stop_watches()


@dataclass(frozen=True, slots=True)
class _RollCheck:
    """Check of `Story.check_roll`."""

    mark: str
    brokers: int
    gap_seconds_max: float

    def failures(self, timeline: Timeline, restarts: list[results.Restart]) -> list[str]:
        """Return the unexpected events."""
        (span,) = [one for one in timeline.marks if one.name == self.mark]
        found = []
        pods = sorted(restart.pod for restart in restarts if restart.mark == self.mark)
        wanted = sorted(f"{timeline.cluster}-{number}" for number in range(self.brokers))
        if pods != wanted:
            found.append(f"{self.mark}: restarted {pods}, not {wanted}")
        plan = planned(timeline, self.mark)
        if plan.steps != {("Restart", pod) for pod in pods}:
            found.append(f"{self.mark}: planned {sorted(plan.steps)}, restarted {pods}")
        first = min((one.begin for one in downs(timeline) if one.begin >= span.begin), default=0.0)
        if plan.at > first:
            found.append(f"{self.mark}: no plan was published before the first restart")
        together = most_down(downs(timeline), span.begin, span.end)
        if len(together) > 1:
            found.append(f"{self.mark}: {together} were down at once")
        full = max((max(one.sizes.values(), default=0) for one in timeline.isr), default=0)
        found += isr_below(timeline, full - 1, [span])
        for restart in restarts:
            for name, gap in restart.gaps.items():
                if restart.mark == self.mark and gap >= self.gap_seconds_max:
                    found.append(
                        f"{self.mark}: {name} without acks for {gap:.1f} s at {restart.pod}"
                    )
        return found


@contextmanager
def story(
    stage: Stage,
    name: str,
    *,
    spec: Mapping[str, Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    kills_operator: bool = False,
    is_ready: bool = True,
    prepare: Callable[[], object] = bool,
) -> Iterator[Story]:
    """Play a story; see the module.

    Args:
        stage: Stage of the story.
        name: Name of the story; `a-z`, `0-9` and `-`.
        spec: Merged into the spec of the cluster; None removes a field.
        stream: Merged into the spec of each stream.
        kills_operator: Whether the operator is killed at a random write after the cluster was first
            ready.
        is_ready: Whether the cluster is ready, and under load, when the context begins; otherwise
            the story calls `start_load`.
        prepare: Called with an empty namespace.

    Raises:
        AssertionError: A check failed; the message has all failures.
    """
    seed = int(os.environ.get(SEED_VARIABLE) or 0) or _seed_of(name)
    played = Story(stage, name, seed)
    result = played.result
    began = monotonic()
    try:
        played.make(spec or {}, stream or {}, prepare)
        if is_ready:
            with played.marked("ready from nothing"):
                played.await_ready(READY_SECONDS_MAX)
            played.start_load()
        if kills_operator:
            played.kill_operator_at_a_write()
        yield played
        if played.load is not None and not played.load.is_stopped:
            played.await_acks()
        played.finish()
    except BaseException as error:
        result.failures.append("".join(traceback.format_exception_only(error)).strip())
        raise
    finally:
        played.abandon()
        if result.failures:
            played.collect()
        try:
            played.remove()
        except CommandError as error:
            result.failures.append(f"not removed: {error}")
        result.seconds = round(monotonic() - began, 1)
        result.passed = not result.failures
        results.write(result, stage.folder)
    assert result.passed, f"{name} (seed {seed}):\n" + "\n".join(result.failures)


def _seed_of(name: str) -> int:
    """Return a seed for each story and commit, so that each commit gets other random choices."""
    return int.from_bytes(blake2b(f"{key()} {name}".encode(), digest_size=4).digest())
