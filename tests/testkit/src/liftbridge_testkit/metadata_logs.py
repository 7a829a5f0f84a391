"""A metadata log on files in memory, driven by hand."""

from collections.abc import Sequence

from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.metadata import (
    Committed,
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Urgency,
)
from liftbridge_broker.storage.metadata_log import MetadataLog
from liftbridge_testkit.memory_files import MemoryFiles

SYNC_TOKEN = Token(7)
FIRST_LOG = "metadata/00000000000000000001.log"


def opened(files: MemoryFiles, index_min: int = 0) -> tuple[MetadataLog, RecoveredMetadata]:
    """Open the log of a data directory."""
    return MetadataLog.open(files, sync_token=SYNC_TOKEN, index_min=MetadataIndex(index_min))


def restarted(files: MemoryFiles) -> tuple[MetadataLog, RecoveredMetadata]:
    """Cut the power, lose everything unsynced, and open again."""
    files.crash(None)
    return opened(files)


def propose(log: MetadataLog, token: int, urgency: Urgency = Urgency.ORDINARY) -> None:
    """Propose `command <token>`."""
    log.propose(ProposalToken(token), b"command %d" % token, urgency)


def pump(files: MemoryFiles, log: MetadataLog) -> list[MetadataEvent]:
    """Run syncs until none is left, and take all events."""
    events = [*log.take_events()]
    while files.submitted_count:
        for event in files.pump():
            log.on_file_event(event)
        events += log.take_events()
    return events


def commit(files: MemoryFiles, log: MetadataLog, *tokens: int) -> None:
    """Propose commands and see all of them committed."""
    for token in tokens:
        propose(log, token)
    assert tokens_of(pump(files, log)) == list(tokens)


def tokens_of(events: Sequence[MetadataEvent]) -> list[int]:
    """Tokens of events that all tell a commit."""
    assert all(isinstance(event, Committed) for event in events), events
    return [event.token for event in events if isinstance(event, Committed)]


def commands_of(recovered: RecoveredMetadata) -> list[bytes]:
    """Commands a log held behind its snapshot."""
    return [entry.command for entry in recovered.entries]
