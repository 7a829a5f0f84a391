"""`liftbridge cluster`: commands that show its state.

Those that change it are in `cluster_changes`.
"""

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

import typer

from liftbridge_client.admin_model import (
    BrokerDescription,
    BrokerStatus,
    Identity,
    PartitionStatus,
    Reassignment,
    Setting,
)
from liftbridge_client.cli import cluster_changes, cluster_check, exits
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.core.addresses import written
from liftbridge_client.errors import NotFoundError, RetriableError, UsageError

GROUP = "cluster"


class ClusterRow(NamedTuple):
    """The metadata group and the settings of the cluster."""

    cluster_id: str
    metadata_leader: str
    term: int
    applied_index: int
    feature_level: int
    feature_level_available: int
    catch_up_rate: int
    voters: Sequence[str]
    learners: Sequence[str]


class MemberRow(NamedTuple):
    """A member of the metadata group."""

    broker: str
    data_dir_id: str
    role: str
    is_alive: bool
    match_index: int | None


class BrokerRow(NamedTuple):
    """A broker; `state` is alive, fenced, stopping, draining or cordoned.

    `listeners` are its additional ones with their addresses: `outside=broker.example:9293`.
    """

    broker: str
    role: str
    state: str
    address: str
    zone: str
    version: str
    feature_level: int
    broker_epoch: int
    start_id: str
    replicas: int
    leaders: int
    out_of_sync: int
    applied_index: int | None
    listeners: Sequence[str]
    replicas_max: int


class PartitionRow(NamedTuple):
    """A partition; `ends` has the log end offsets that the queried broker knows."""

    stream: str
    partition: int
    leader: str
    leader_epoch: int
    partition_epoch: int
    replicas: Sequence[str]
    isr: Sequence[str]
    elr: Sequence[str]
    target: Sequence[str]
    min_isr: int
    ends: dict[str, int]
    high_watermark: int | None


class RestartRow(NamedTuple):
    """A start of a broker; `is_clean` is true if the stop before it was clean."""

    broker: str
    time: datetime
    is_clean: bool
    version: str
    start_id: str


class CheckRow(NamedTuple):
    """Result of `check-restart`; keep `token` for `verify-restart`."""

    broker: str
    is_allowed: bool
    partitions: int
    leaders: int
    blockers: Sequence[str]
    accepted: Sequence[str]
    expires: datetime | None
    token: str


class VerifyRow(NamedTuple):
    """Result of `verify-restart`."""

    broker: str
    is_complete: bool
    partitions: int
    excluded: int
    blockers: Sequence[str]


Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")]


def _state(one: BrokerDescription) -> str:
    flags = (
        (one.is_fenced, "fenced"),
        (one.is_stopping, "stopping"),
        (one.is_draining, "draining"),
        (one.is_cordoned, "cordoned"),
    )
    return next((name for is_set, name in flags if is_set), "alive")


async def status(run: Run[ClusterRow]) -> None:
    """Show the metadata group, the feature level and the catch-up rate."""
    async with run.admin() as admin:
        view = await admin.cluster(from_leader=False)
    run.emit(
        ClusterRow(
            view.cluster_id,
            view.metadata_leader,
            view.term,
            view.applied_index,
            view.feature_level,
            view.feature_level_available,
            view.catch_up_rate,
            [member.broker for member in view.members if member.is_voter],
            [member.broker for member in view.members if not member.is_voter],
        )
    )


async def members(run: Run[MemberRow]) -> None:
    """List the members of the metadata group with their replication progress."""
    async with run.admin() as admin:
        view = await admin.cluster()
    for member in view.members:
        role = "leader" if member.is_leader else "voter" if member.is_voter else "learner"
        run.emit(
            MemberRow(member.broker, member.data_dir_id, role, member.is_alive, member.match_index)
        )


async def brokers(run: Run[BrokerRow]) -> None:
    """List brokers with their role, session and load."""
    async with run.admin() as admin:
        rows = await admin.brokers()
    for row in rows:
        run.emit(row_of(row))


def row_of(one: BrokerDescription) -> BrokerRow:
    """Convert a broker to its row."""
    return BrokerRow(
        one.broker,
        one.role,
        _state(one),
        written(one.host, one.port),
        one.zone,
        one.version,
        one.feature_level,
        one.broker_epoch,
        one.start_id,
        one.replicas,
        one.leaders,
        one.out_of_sync,
        one.applied_index,
        [f"{each.name}={written(each.host, each.port)}" for each in one.listeners],
        one.replicas_max,
    )


async def broker(run: Run[BrokerStatus], name: Broker) -> None:
    """Show the status of a broker: connections, disk, configuration."""
    async with run.admin() as admin:
        run.emit(await admin.broker_status(name))


async def restarts(run: Run[RestartRow], name: Broker) -> None:
    """List the most recent starts of a broker, the current one last."""
    async with run.admin() as admin:
        by_name = {one.broker: one for one in await admin.brokers()}
    if name not in by_name:
        raise NotFoundError(f"no such broker: {name}")
    for restart in by_name[name].restarts:
        run.emit(
            RestartRow(name, restart.time, restart.is_clean, restart.version, restart.start_id)
        )


async def settings(run: Run[Setting], name: Broker) -> None:
    """List the settings in effect on a broker, with secrets masked."""
    async with run.admin() as admin:
        broker_settings = await admin.settings(name)
    for broker_setting in broker_settings:
        run.emit(broker_setting)


async def identities(run: Run[Identity]) -> None:
    """List the brokers behind the addresses, including those that wait for a cluster."""
    async with run.admin() as admin:
        rows = await admin.identities()
        if not rows:
            await admin.brokers()  # raises the error that explains why no broker answers
            raise RetriableError("no broker answered")
    for row in rows.values():
        run.emit(row)


async def partitions(
    run: Run[PartitionRow],
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM", help="Names of streams; all by default.")
    ] = None,
    *,
    of: Annotated[
        str,
        typer.Option(
            "--broker", metavar="BROKER", help="Only partitions with a replica on this broker."
        ),
    ] = "",
    degraded: Annotated[
        bool,
        typer.Option(
            "--degraded", help="Only partitions without a leader or with replicas out of sync."
        ),
    ] = False,
    seen_by: Annotated[
        str, typer.Option(metavar="BROKER", help="Broker to ask; it knows its own log ends.")
    ] = "",
) -> None:
    """List partitions with their epochs, in-sync replicas and known log end offsets."""
    async with run.admin() as admin:
        statuses = admin.partitions(
            *(streams or ()), broker=of, only_degraded=degraded, seen_by=seen_by
        )
        async for one in statuses:
            run.emit(_partition_row(one))


def _partition_row(one: PartitionStatus) -> PartitionRow:
    known = [replica for replica in one.replicas if replica.high_watermark is not None]
    return PartitionRow(
        one.stream,
        one.partition,
        one.leader,
        one.leader_epoch,
        one.partition_epoch,
        [replica.broker for replica in one.replicas],
        one.isr,
        one.elr,
        one.target,
        one.min_isr,
        {r.broker: r.log_end for r in one.replicas if r.log_end is not None},
        known[0].high_watermark if known else None,
    )


async def reassignments(run: Run[Reassignment]) -> None:
    """List reassignments in progress."""
    async with run.admin() as admin:
        rows = await admin.reassignments()
    for row in rows:
        run.emit(row)


async def check_restart(
    run: Run[CheckRow],
    name: Broker,
    *,
    min_isr: Annotated[
        bool,
        typer.Option(
            "--min-isr", help="Require only the minimum of in-sync replicas elsewhere, not all."
        ),
    ] = False,
    allow_unavailable: Annotated[
        bool,
        typer.Option(
            "--allow-unavailable",
            help="Accept partitions with one replica, and no metadata majority meanwhile.",
        ),
    ] = False,
    valid_seconds: Annotated[
        int,
        typer.Option(
            "--valid", min=1, max=600, metavar="SECONDS", help="How long the token is valid."
        ),
    ] = 60,
) -> None:
    """Check whether a broker may be restarted now; exit code 1 if not."""
    async with run.admin() as admin:
        answer = await admin.check_restart(
            name,
            needs_full_isr=not min_isr,
            allow_unavailable=allow_unavailable,
            valid=timedelta(seconds=valid_seconds),
        )
    is_allowed = bool(answer.token)
    run.emit(
        CheckRow(
            name,
            is_allowed,
            answer.partitions,
            answer.leaders,
            [blocker.text for blocker in answer.blockers],
            [one.text for one in answer.accepted],
            answer.expires,
            base64.urlsafe_b64encode(answer.token).decode(),
        )
    )
    if not is_allowed:
        say(f"liftbridge: broker {name} may not be restarted now")
        run.exit_code = exits.REFUSED


async def verify_restart(
    run: Run[VerifyRow],
    name: Broker,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Token from `check-restart`.")],
) -> None:
    """Check whether a restarted broker has everything back; exit code 1 if not."""
    try:
        data = base64.b64decode(token, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise UsageError(f"token: {error}") from error
    async with run.admin() as admin:
        answer = await admin.verify_restart(name, data)
    texts = [blocker.text for blocker in answer.blockers]
    run.emit(VerifyRow(name, answer.is_complete, answer.partitions, answer.excluded, texts))
    if not answer.is_complete:
        say(f"liftbridge: broker {name} does not have everything back yet")
        run.exit_code = exits.REFUSED


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Inspect and administer a cluster.", cls=CommandGroup)
    for name, shape, body in (
        ("status", Shape(ClusterRow), status),
        ("check", cluster_check.SHAPE, cluster_check.check),
        ("members", Shape(MemberRow, is_many=True), members),
        ("brokers", Shape(BrokerRow, is_many=True), brokers),
        ("broker", Shape(BrokerStatus), broker),
        ("restarts", Shape(RestartRow, is_many=True), restarts),
        ("settings", Shape(Setting, is_many=True), settings),
        ("identities", Shape(Identity, is_many=True), identities),
        ("partitions", Shape(PartitionRow, is_many=True), partitions),
        ("reassignments", Shape(Reassignment, is_many=True), reassignments),
        ("check-restart", Shape(CheckRow), check_restart),
        ("verify-restart", Shape(VerifyRow), verify_restart),
        *cluster_changes.COMMANDS,
    ):
        command(group, name, shape, group=GROUP, is_admin=True)(body)
    app.add_typer(group, name=GROUP, rich_help_panel="Operation")
    _register_keys(app)


def _register_keys(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Show and rotate the master keys of encrypted streams.", cls=CommandGroup
    )
    for name, shape, body in cluster_changes.KEY_COMMANDS:
        command(group, name, shape, group="keys", is_admin=True)(body)
    app.add_typer(group, name="keys", rich_help_panel="Operation")
