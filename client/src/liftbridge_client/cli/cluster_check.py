"""`liftbridge cluster check`: problems of a cluster, and their remedies."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from liftbridge_client.admin_model import BrokerDescription, BrokerStatus, PartitionStatus
from liftbridge_client.aio.admin.client import AdminClient
from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.errors import LiftbridgeError

OPEN_KEY: Final = "open"
_KEYS_REMEDY: Final = "set clustering.secret.file on every broker"


WARNING: Final = "warning"
ERROR: Final = "error"


class FindingRow(NamedTuple):
    """A problem (a warning or an error) and its remedy."""

    level: str
    subject: str
    finding: str
    remedy: str


def _of_status(one: BrokerStatus) -> Iterator[FindingRow]:
    """Yield problems in the status of a broker."""
    name = f"broker {one.broker}"
    if not one.is_nats_connected:
        yield FindingRow(ERROR, name, "is not connected to NATS", "check its log")
    if not one.are_peers_connected:
        yield FindingRow(ERROR, name, "cannot reach other brokers", "check its log")
    if one.is_disk_full:
        yield FindingRow(ERROR, name, "has a full disk", "free space or enlarge the volume")
    for partition, reason in one.offline.items():
        yield FindingRow(ERROR, name, f"does not serve {partition}: {reason}", "replace it")
    if one.restart_needed:
        waiting = ", ".join(one.restart_needed)
        yield FindingRow(
            WARNING, name, f"has changed settings that need a restart: {waiting}", "restart it"
        )
    if OPEN_KEY in one.peer_keys:
        text = "accepts unsigned messages between brokers"
        remedy = _KEYS_REMEDY if len(one.peer_keys) == 1 else "remove the line open from that file"
        yield FindingRow(WARNING, name, text, remedy)


def _of_keys(statuses: Sequence[BrokerStatus]) -> Iterator[FindingRow]:
    """Yield a problem for each signing key that another broker lacks."""
    for status in statuses:
        signer = status.peer_keys[0] if status.peer_keys else OPEN_KEY
        for other in statuses:
            if signer not in (other.peer_keys or (OPEN_KEY,)):
                text = f"signs with key {signer}, which broker {other.broker} does not have"
                yield FindingRow(
                    ERROR, f"broker {status.broker}", text, "give all brokers the same keys"
                )


def _of_broker(one: BrokerDescription) -> Iterator[FindingRow]:
    if one.is_fenced:
        text = "is fenced: it neither leads nor is in sync"
        yield FindingRow(ERROR, f"broker {one.broker}", text, "check whether it is running")


def _of_partition(one: PartitionStatus) -> Iterator[FindingRow]:
    name = f"partition {one.stream}/{one.partition}"
    if not one.leader:
        yield FindingRow(ERROR, name, "has no leader", "bring its replicas back")
    elif len(one.isr) < one.min_isr:
        text = f"cannot commit: {len(one.isr)} replicas are in sync, {one.min_isr} are required"
        yield FindingRow(ERROR, name, text, "bring its replicas back")
    elif len(one.isr) < len(one.replicas):
        text = f"{len(one.isr)} of {len(one.replicas)} replicas are in sync"
        yield FindingRow(WARNING, name, text, "wait, or bring the other replicas back")


async def _findings(admin: AdminClient) -> list[FindingRow]:
    findings: list[FindingRow] = []
    statuses: list[BrokerStatus] = []
    for broker in await admin.brokers():
        findings += _of_broker(broker)
        try:
            statuses.append(await admin.broker_status(broker.broker))
        except LiftbridgeError as error:
            text = f"does not answer on its admin port: {error}"
            subject = f"broker {broker.broker}"
            findings.append(FindingRow(ERROR, subject, text, "check whether it is running"))
    for status in statuses:
        findings += _of_status(status)
    findings += _of_keys(statuses)
    async for partition in admin.partitions(only_degraded=True):
        findings += _of_partition(partition)
    return findings


async def check(run: Run[FindingRow]) -> None:
    """List problems that need attention; exit code 1 if any is an error."""
    async with run.admin() as admin:
        findings = await _findings(admin)
    for row in findings:
        run.emit(row)
    if any(row.level == ERROR for row in findings):
        run.exit_code = exits.REFUSED
    elif not findings:
        say("liftbridge: nothing needs attention")


SHAPE: Final = Shape(FindingRow, is_many=True)
