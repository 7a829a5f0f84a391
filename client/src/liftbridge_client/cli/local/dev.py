"""`liftbridge dev`: brokers with a NATS server inside, in one command, with a live view."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import platformdirs
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from liftbridge_client.aio.client import Client
from liftbridge_client.cli import exits, profiles
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.local.broker import HOST, LocalBroker, free_port, is_free
from liftbridge_client.cli.local.cluster import LocalCluster, Ports
from liftbridge_client.cli.output import Form, Shape, say, stdout_console
from liftbridge_client.cli.streams import INTERNAL
from liftbridge_client.core.addresses import parse_addresses
from liftbridge_client.errors import LiftbridgeError, ServerError, UsageError
from liftbridge_client.model import BrokerInfo, PartitionBounds

PROFILE: Final = "dev"
PORT: Final = 9292
NATS_PORT: Final = 4222
METRICS_PORT: Final = 9293
ADMIN_PORT: Final = 9294
REFRESH_SECONDS: Final = 1.0
ASK_SECONDS: Final = 3.0
"""Time limit for fetching a view; the client's default retry time is longer."""

STREAMS_MAX: Final = 30
BROKERS_MAX: Final = 9


class DevRow(NamedTuple):
    """Addresses and process ids of the brokers, separated by commas."""

    servers: str
    nats: str
    metrics: str
    processes: str
    data_dir: str
    profile: str


class Seen(NamedTuple):
    """Totals of a stream at one moment."""

    partitions: int
    end: int
    messages: int
    bytes: int


def _port(name: str, help_text: str) -> Any:
    return typer.Option(name, min=1, max=65535, metavar="PORT", help=help_text)


async def dev(
    run: Run[DevRow],
    *,
    port: Annotated[int | None, _port("--port", "Port for gRPC.")] = None,
    nats_port: Annotated[int | None, _port("--nats-port", "Port for NATS.")] = None,
    metrics_port: Annotated[int | None, _port("--metrics-port", "Port for metrics.")] = None,
    admin_port: Annotated[int | None, _port("--admin-port", "Admin port.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, metavar="FOLDER", help="Folder for the data.")
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Delete the data when the command ends.")
    ] = False,
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers", min=1, max=BROKERS_MAX, metavar="COUNT", help="Number of brokers."
        ),
    ] = 1,
) -> None:
    """Run a broker with an embedded NATS server, or a cluster, until Ctrl-C.

    For development. Serves gRPC on port 9292 and NATS on port 4222, or on free ports if these are
    taken; with --brokers, each further broker uses ports 10, 20, … higher. The data is kept in the
    user's state folder, unless --data-dir names another one or --ephemeral is given.
    """
    if ephemeral and data_dir is not None:
        raise UsageError("--ephemeral keeps no data, so it cannot be combined with --data-dir")
    place = _data_dir(data_dir, is_ephemeral=ephemeral)
    ports = Ports(
        port or free_port(PORT),
        nats_port or free_port(NATS_PORT),
        metrics_port or free_port(METRICS_PORT),
        admin_port or free_port(ADMIN_PORT),
    )
    if ports.grpc not in (port, PORT):
        say(f"liftbridge: port {PORT} is taken by {_holder(PORT)}; using port {ports.grpc}")
    cluster = LocalCluster(place, brokers, ports)
    is_kept = False
    try:
        async with cluster:
            run.profile = profiles.Profile(servers=cluster.addresses, admin=cluster.admin_addresses)
            with contextlib.nullcontext() if _is_served(PROFILE) else borrowed(run.profile):
                _announce(run, cluster)
                with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C ends it
                    await _watch(run, cluster)
            say("liftbridge: stopping")
    except ServerError:
        is_kept = True  # with the log that the error points to
        raise
    finally:
        if ephemeral and not is_kept:
            shutil.rmtree(place, ignore_errors=True)


def _data_dir(named: Path | None, *, is_ephemeral: bool) -> Path:
    if is_ephemeral:
        return Path(tempfile.mkdtemp(prefix="liftbridge-dev-"))
    if named is not None:
        return named
    folder = profiles.user_folder(platformdirs.user_state_path)
    if folder is None:
        raise UsageError(profiles.NO_HOME)
    return folder / "dev"


def _is_served(name: str, *ports: int) -> bool:
    """Return whether a port of a profile is in use here; only the given ports count, if any."""
    profile = profiles.load().by_name.get(name)
    if profile is None:
        return False
    addresses = (address.rpartition(":") for address in parse_addresses(profile.servers))
    there = {int(port) for host, _, port in addresses if host == HOST}
    return any(not is_free(port) for port in there if not ports or port in ports)


def _holder(port: int) -> str:
    """Describe the program that uses a port, if known."""
    if _is_served(PROFILE, port):
        return f"the `liftbridge dev` of profile {PROFILE}"
    return "another program"


@contextlib.contextmanager
def borrowed(profile: profiles.Profile) -> Iterator[None]:
    """Set the profile `dev`, as the current one if there is none; restore the former one."""
    before = profiles.load()
    by_name = {**before.by_name, PROFILE: profile}
    profiles.store(profiles.Profiles(before.current or PROFILE, by_name))
    try:
        yield
    finally:
        _give_back(before, profile)


def _give_back(before: profiles.Profiles, ours: profiles.Profile) -> None:
    """Restore the profile `dev`, unless it was changed meanwhile."""
    known = profiles.load()
    if known.by_name.get(PROFILE) != ours:
        return
    by_name = {name: found for name, found in known.by_name.items() if name != PROFILE}
    if PROFILE in before.by_name:
        by_name[PROFILE] = before.by_name[PROFILE]
    current = before.current if known.current == PROFILE else known.current
    profiles.store(profiles.Profiles(current if current in by_name else "", by_name))


def _announce(run: Run[DevRow], cluster: LocalCluster) -> None:
    row = DevRow(
        f"liftbridge://{cluster.addresses}",
        cluster.nats_url,
        cluster.metrics_urls,
        ",".join(str(broker.process_id) for broker in cluster.brokers),
        str(cluster.data_dir),
        PROFILE if profiles.load().by_name.get(PROFILE) == run.profile else "",
    )
    run.emit(row)
    if run.form is Form.TABLE:
        run.printer.end()
    run.printer.flush()
    known = profiles.load()
    if known.by_name.get(PROFILE) != run.profile:
        say(f"liftbridge: profile {PROFILE} is in use; commands need --servers {row.servers}")
    elif known.current != PROFILE:
        say(
            f"liftbridge: the current profile is {known.current}; commands need --profile {PROFILE}"
        )
    say("liftbridge: ready; press Ctrl-C to stop")


async def _watch(run: Run[DevRow], cluster: LocalCluster) -> None:
    """Show the live view until the brokers end.

    A cluster continues without some of its brokers, so that users can kill them and watch.

    Raises:
        ServerError: The broker with the NATS server ended.
    """
    is_live = run.form is Form.TABLE and sys.stdout.isatty()
    missed: set[LocalBroker] = set()
    async with contextlib.AsyncExitStack() as stack:
        view = None
        if is_live:
            client = await stack.enter_async_context(run.client())
            live = stack.enter_context(Live(console=stdout_console(), auto_refresh=False))
            view = View(client, live, cluster, asyncio.get_running_loop().time)
        while True:
            _note_ended(run, cluster, missed)
            if view is not None:
                await view.refresh()
            await asyncio.sleep(REFRESH_SECONDS)


def _note_ended(run: Run[DevRow], cluster: LocalCluster, missed: set[LocalBroker]) -> None:
    """Report brokers that ended; raise if it is the one with the NATS server."""
    for broker in cluster.ended:
        if broker is cluster.brokers[0]:
            run.exit_code = exits.UNHEALTHY
            raise ServerError(f"the broker exited; its log is {broker.log_path}")
        if broker not in missed:
            missed.add(broker)
            say(f"liftbridge: {broker.name} exited; its log is {broker.log_path}")


class View:
    """Brokers and streams with their offsets and rates, fetched for each view."""

    def __init__(
        self, client: Client, live: Live, cluster: LocalCluster, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._clock = clock
        self._cluster = cluster
        self._live = live
        self._seen: Mapping[str, Seen] = {}
        self._seen_at = clock()
        self._shown: RenderableType = Text()

    async def refresh(self) -> None:
        """Fetch and show the figures; on failure show the previous figures and the reason."""
        now = self._clock()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                seen = await self._ask()
                brokers = (await self._client.metadata()).brokers
        except (LiftbridgeError, TimeoutError) as failure:
            silent = ServerError(f"no answer for {ASK_SECONDS:g} s")
            error = failure if isinstance(failure, LiftbridgeError) else silent
            age = self._clock() - self._seen_at
            self._live.update(Group(self._shown, stale(error, age)), refresh=True)
            return
        elapsed = now - self._seen_at if self._seen else 0.0
        shown = table(seen, self._seen, elapsed)
        if len(self._cluster.brokers) > 1:
            shown = Group(broker_table(self._cluster, brokers), shown)
        self._live.update(shown, refresh=True)
        self._seen, self._seen_at, self._shown = seen, now, shown

    async def _ask(self) -> Mapping[str, Seen]:
        seen: dict[str, Seen] = {}
        async for stream in self._client.streams.describe():
            if len(seen) == STREAMS_MAX:
                break
            if stream.name.startswith(INTERNAL):
                continue
            bounds = await self._client.streams.get(stream.name).bounds()
            seen[stream.name] = totals(bounds)
        return seen


def totals(bounds: Sequence[PartitionBounds]) -> Seen:
    """Sum up the partitions of a stream."""
    return Seen(
        len(bounds),
        sum(part.log_end for part in bounds),
        sum(part.log_end - part.log_start for part in bounds),
        sum(part.bytes for part in bounds),
    )


def table(seen: Mapping[str, Seen], before: Mapping[str, Seen], elapsed: float) -> RenderableType:
    """Build the view: totals, and messages per second since the previous view."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("STREAM")
    for name in ("PARTITIONS", "MESSAGES", "MESSAGES/S", "MIB"):
        shown.add_column(name, justify="right")
    for name, now in seen.items():
        came = now.end - before[name].end if name in before else 0
        rate = f"{came / elapsed:,.0f}" if elapsed else "-"
        size = f"{now.bytes / 2**20:,.1f}"
        shown.add_row(Text(name), str(now.partitions), f"{now.messages:,}", rate, size)
    if seen:
        return Group(Text(), shown)
    return Group(Text(), Text("No streams yet: liftbridge create orders", style="dim"))


def stale(error: LiftbridgeError, seconds: float) -> RenderableType:
    """Explain why the figures above are out of date."""
    age = f"These figures are {seconds:.0f} s old: "
    return Group(Text(), Text(f"{age}{error}. {error.advice}", style="yellow"))


def broker_table(cluster: LocalCluster, known: Mapping[str, BrokerInfo]) -> RenderableType:
    """Build the table of brokers: address, state in the cluster, and load."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("BROKER", "ADDRESS", "STATE"):
        shown.add_column(name)
    for name in ("LEADS", "REPLICAS"):
        shown.add_column(name, justify="right")
    for broker in cluster.brokers:
        info = known.get(broker.name)
        state = "live" if info is not None else "away"
        if broker.exit_code is not None:
            state = "ended"
        leads = "-" if info is None else str(info.leader_count)
        replicas = "-" if info is None else str(info.partition_count)
        shown.add_row(broker.name, broker.address, state, leads, replicas)
    return Group(Text(), shown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "dev", Shape(DevRow), has_server=False, panel="Start here")(dev)
