"""`liftbridge cluster`: commands that change the cluster."""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.admin_model import (
    Member,
    PartitionName,
    PartitionOutcome,
)
from liftbridge_client.cli import exits, values
from liftbridge_client.cli.command import Run
from liftbridge_client.cli.output import Shape
from liftbridge_client.cli.streams import Name, Yes
from liftbridge_client.errors import UsageError


class DoneRow(NamedTuple):
    """A change of a broker."""

    broker: str
    done: str
    replicas: int | None


class EpochRow(NamedTuple):
    """A change of a partition, and its partition epoch afterwards."""

    stream: str
    partition: int
    done: str
    leader: str
    partition_epoch: int


class FoundedRow(NamedTuple):
    """A cluster that was founded."""

    cluster_id: str
    members: Sequence[str]


class LevelRow(NamedTuple):
    """The feature level in effect."""

    feature_level: int


class RateRow(NamedTuple):
    """Bytes a second that a leader sends to replicas of reassignments; 0 is no limit."""

    catch_up_rate: int


class OwnerRow(NamedTuple):
    """The current owner of a stream."""

    stream: str
    owner: str


class ReloadRow(NamedTuple):
    """Changed settings: those in effect now, and those that take effect at a restart."""

    broker: str
    applied: Sequence[str]
    restart_needed: Sequence[str]


Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")]
Directory = Annotated[
    str, typer.Argument(metavar="DIRECTORY", help="Id of its data directory; see `identities`.")
]
Number = Annotated[
    int,
    typer.Argument(
        metavar="PARTITION", min=0, max=values.COUNT_MAX, help="Number of the partition."
    ),
]
Listed = Annotated[
    list[str] | None,
    typer.Argument(metavar="STREAM/PARTITION", help="Partitions to act on."),
]
Epoch = Annotated[
    int,
    typer.Option(
        "--epoch",
        min=0,
        max=values.OFFSET_MAX,
        metavar="EPOCH",
        help="Expected partition epoch; 0 for any.",
    ),
]


def partition_name(text: str) -> PartitionName:
    """Parse a partition, `STREAM/NUMBER`.

    Raises:
        UsageError: The text has another form.
    """
    stream, slash, number = text.rpartition("/")
    if not slash or not stream or not (number.isascii() and number.isdigit()):
        raise UsageError(f"partition {text!r}: must be STREAM/NUMBER")
    return PartitionName(stream, int(number))


def member_of(text: str) -> Member:
    """Parse a member, `BROKER=DIRECTORY`.

    Raises:
        UsageError: The text has another form.
    """
    broker, equals, directory = text.partition("=")
    if not (broker and equals and directory):
        raise UsageError(f"member {text!r}: must be BROKER=DIRECTORY")
    return Member(broker, directory)


# -- brokers ------------------------------------------------------------------------------------


async def cordon(run: Run[DoneRow], name: Broker) -> None:
    """Stop placing new replicas on a broker."""
    async with run.admin() as admin:
        held = await admin.cordon(name)
    run.emit(DoneRow(name, "cordoned", held))


async def drain(run: Run[DoneRow], name: Broker) -> None:
    """Move all replicas off a broker; `brokers` shows how many it still has."""
    async with run.admin() as admin:
        held = await admin.cordon(name, drain=True)
    run.emit(DoneRow(name, "draining", held))


async def uncordon(run: Run[DoneRow], name: Broker) -> None:
    """End the cordon and the drain of a broker."""
    async with run.admin() as admin:
        await admin.uncordon(name)
    run.emit(DoneRow(name, "uncordoned", None))


async def remove_broker(run: Run[DoneRow], name: Broker, *, yes: Yes = False) -> None:
    """Remove a stopped broker without replicas; its data directory can never rejoin."""
    run.confirm(f"Permanently remove broker {name}?", is_confirmed=yes)
    async with run.admin() as admin:
        await admin.remove_broker(name)
    run.emit(DoneRow(name, "removed", None))


async def retire(
    run: Run[DoneRow], name: Broker, directory: Directory, *, yes: Yes = False
) -> None:
    """Bar a broker's data directory from voting ever again, before it stops permanently."""
    run.confirm(f"Retire directory {directory} of broker {name}?", is_confirmed=yes)
    async with run.admin() as admin:
        await admin.retire(name, directory)
    run.emit(DoneRow(name, "retired", None))


async def feature_level(
    run: Run[LevelRow],
    level: Annotated[
        int,
        typer.Argument(metavar="LEVEL", min=0, max=values.COUNT_MAX, help="Level to activate."),
    ],
    *,
    yes: Yes = False,
) -> None:
    """Raise the feature level of the cluster, permanently."""
    run.confirm(f"Permanently raise the feature level to {level}?", is_confirmed=yes)
    async with run.admin() as admin:
        await admin.set_feature_level(level)
    run.emit(LevelRow(level))


async def catch_up_rate(
    run: Run[RateRow],
    rate: Annotated[
        int,
        typer.Argument(
            parser=values.size,
            metavar="SIZE",
            help="Bytes per second, such as 20MB; 0 for no limit.",
        ),
    ],
) -> None:
    """Limit the rate at which each leader sends data to replicas added by reassignments."""
    async with run.admin() as admin:
        await admin.set_catch_up_rate(rate)
    run.emit(RateRow(rate))


async def owner(
    run: Run[OwnerRow],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    mark: Annotated[str, typer.Argument(metavar="OWNER", help="New owner; '' for none.")],
    *,
    stream_id: Annotated[
        int,
        typer.Option(
            "--id",
            metavar="ID",
            min=1,
            max=values.OFFSET_MAX,
            help="Expected id of the stream.",
        ),
    ],
    expected: Annotated[
        str, typer.Option("--expected", metavar="OWNER", help="Current owner; none by default.")
    ] = "",
) -> None:
    """Set the owner of a stream, if its current owner is the expected one."""
    async with run.admin() as admin:
        await admin.set_stream_owner(stream, mark, stream_id=stream_id, expected=expected)
    run.emit(OwnerRow(stream, mark))


async def reload(run: Run[ReloadRow], name: Broker) -> None:
    """Reload the configuration of a broker."""
    async with run.admin() as admin:
        changed = await admin.reload(name)
    run.emit(ReloadRow(name, changed.applied, changed.restart_needed))


# -- partitions ---------------------------------------------------------------------------------


def _emit(run: Run[PartitionOutcome], outcomes: Sequence[PartitionOutcome]) -> None:
    for outcome in outcomes:
        run.emit(outcome)
        if outcome.code:
            run.exit_code = exits.REFUSED


async def transfer(
    run: Run[PartitionOutcome],
    partitions: Listed = None,
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="BROKER", help="All partitions that this broker leads.")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="BROKER", help="New leader; by default any that can.")
    ] = "",
) -> None:
    """Transfer leadership to in-sync replicas; exit code 1 if a transfer fails."""
    if bool(partitions) == bool(source):
        raise UsageError("give either partitions or --from")
    names = [partition_name(partition) for partition in partitions or ()]
    async with run.admin() as admin:
        _emit(run, await admin.transfer_leadership(*names, from_broker=source, to=to))


async def elect(run: Run[PartitionOutcome], partitions: Listed = None) -> None:
    """Elect the preferred leader (first replica) of partitions; by default where another leads."""
    names = [partition_name(partition) for partition in partitions or ()]
    async with run.admin() as admin:
        _emit(run, await admin.elect_preferred(*names))


async def elect_unclean(
    run: Run[EpochRow],
    stream: Name,
    partition: Number,
    broker: Broker,
    *,
    epoch: Annotated[
        int,
        typer.Option(
            "--epoch",
            min=1,
            max=values.OFFSET_MAX,
            metavar="EPOCH",
            help="Expected partition epoch.",
        ),
    ],
    yes: Yes = False,
) -> None:
    """Elect a replica that may lack acknowledged records, if no other can lead."""
    question = f"Elect {broker} for {stream}/{partition}? Acknowledged records may be lost."
    run.confirm(question, is_confirmed=yes)
    name = PartitionName(stream, partition)
    async with run.admin() as admin:
        done = await admin.elect_unclean(name, broker, partition_epoch=epoch)
    run.emit(EpochRow(stream, partition, "elected", done.leader, done.partition_epoch))


async def reassign(
    run: Run[EpochRow],
    stream: Name,
    partition: Number,
    brokers: Annotated[
        list[str], typer.Argument(metavar="BROKER", help="New replicas, preferred leader first.")
    ],
    *,
    epoch: Epoch = 0,
) -> None:
    """Move a partition to other brokers; `reassignments` shows the progress."""
    name = PartitionName(stream, partition)
    async with run.admin() as admin:
        now = await admin.start_reassignment(name, brokers, partition_epoch=epoch)
    run.emit(EpochRow(stream, partition, "reassigning", "", now))


async def cancel_reassign(
    run: Run[EpochRow],
    stream: Name,
    partition: Number,
    *,
    epoch: Epoch = 0,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Cancel even if acknowledged records may be lost.")
    ] = False,
) -> None:
    """Cancel the reassignment of a partition."""
    name = PartitionName(stream, partition)
    async with run.admin() as admin:
        now = await admin.cancel_reassignment(name, partition_epoch=epoch, is_unclean=unclean)
    run.emit(EpochRow(stream, partition, "cancelled", "", now))


# -- the metadata group -------------------------------------------------------------------------


async def bootstrap(
    run: Run[FoundedRow],
    cluster_id: Annotated[str, typer.Argument(metavar="CLUSTER", help="Id of the cluster.")],
    members: Annotated[
        list[str],
        typer.Argument(metavar="BROKER=DIRECTORY", help="Founding members; see `identities`."),
    ],
) -> None:
    """Form a cluster of brokers that wait for one; safe to repeat."""
    founders = [member_of(member) for member in members]
    async with run.admin() as admin:
        await admin.bootstrap(cluster_id, founders)
    run.emit(FoundedRow(cluster_id, [founder.broker for founder in founders]))


async def transfer_metadata(
    run: Run[DoneRow],
    to: Annotated[
        str, typer.Option("--to", metavar="BROKER", help="New leader; by default any that can.")
    ] = "",
) -> None:
    """Transfer the leadership of the metadata group to another voter."""
    async with run.admin() as admin:
        asked = await admin.transfer_metadata_leadership(to)
    run.emit(DoneRow(asked, "asked to lead the metadata group", None))


async def add_learner(run: Run[DoneRow], name: Broker, directory: Directory) -> None:
    """Add a learner (a member without a vote) to the metadata group."""
    async with run.admin() as admin:
        await admin.add_learner(Member(name, directory))
    run.emit(DoneRow(name, "added as learner", None))


async def promote(run: Run[DoneRow], name: Broker, directory: Directory) -> None:
    """Promote a learner that has caught up to voter."""
    async with run.admin() as admin:
        await admin.promote_learner(Member(name, directory))
    run.emit(DoneRow(name, "promoted", None))


async def remove_member(
    run: Run[DoneRow], name: Broker, directory: Directory, *, yes: Yes = False
) -> None:
    """Remove a member from the metadata group."""
    run.confirm(f"Remove {name} from the metadata group?", is_confirmed=yes)
    async with run.admin() as admin:
        await admin.remove_member(Member(name, directory))
    run.emit(DoneRow(name, "removed from the metadata group", None))


COMMANDS: Final = (
    ("cordon", Shape(DoneRow), cordon),
    ("drain", Shape(DoneRow), drain),
    ("uncordon", Shape(DoneRow), uncordon),
    ("retire", Shape(DoneRow), retire),
    ("remove-broker", Shape(DoneRow), remove_broker),
    ("feature-level", Shape(LevelRow), feature_level),
    ("catch-up-rate", Shape(RateRow), catch_up_rate),
    ("owner", Shape(OwnerRow), owner),
    ("reload", Shape(ReloadRow), reload),
    ("transfer", Shape(PartitionOutcome, is_many=True), transfer),
    ("elect", Shape(PartitionOutcome, is_many=True), elect),
    ("elect-unclean", Shape(EpochRow), elect_unclean),
    ("reassign", Shape(EpochRow), reassign),
    ("cancel-reassign", Shape(EpochRow), cancel_reassign),
    ("bootstrap", Shape(FoundedRow), bootstrap),
    ("transfer-metadata", Shape(DoneRow), transfer_metadata),
    ("add-learner", Shape(DoneRow), add_learner),
    ("promote", Shape(DoneRow), promote),
    ("remove-member", Shape(DoneRow), remove_member),
)
"""Name, row type and function of each command."""
