"""`inspect` and `verify` of a data directory on a file system, as lines of text or JSON.

Nothing is written, and a directory that a running broker holds is refused: files that change while
they are read would look damaged.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from liftbridge_broker.adapters.disk.files import LocalFiles
from liftbridge_broker.adapters.disk.lock import SharedLock
from liftbridge_broker.adapters.disk.offline_metadata import (
    METADATA_DIRECTORY,
    MetadataReport,
    read_metadata,
)
from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.storage.directory import IDENTITY, JOURNAL, STREAMS
from liftbridge_broker.storage.offline import (
    DirectoryReport,
    Finding,
    LogReport,
    Severity,
    Verification,
    inspect,
    proven_index,
)

METADATA_NAMES: Final = (METADATA_DIRECTORY,)
"""Names in a data directory that belong to the metadata log."""
_COLUMNS: Final = (
    "STREAM",
    "PARTITION",
    "START",
    "END",
    "COMMITTED",
    "SYNCED",
    "SEGMENTS",
    "RECORDS",
    "BYTES",
    "EPOCH",
    "NEWEST",
    "NOTES",
)


@contextmanager
def reading(root: Path) -> Iterator[LocalFiles]:
    """A data directory to read while no broker runs on it.

    Raises:
        FilesError: The directory is missing, no broker ever used it, or a broker uses it now.
    """
    if not root.is_dir():
        raise FilesError(f"{root} is not a directory")
    if not any((root / name).exists() for name in (IDENTITY, JOURNAL, STREAMS)):
        raise FilesError(f"{root} is not the data directory of a broker")
    lock = SharedLock(root)
    files = ReadOnlyFiles(root, post=_unused, deliver=_unused_events)
    try:
        yield files
    finally:
        files.shut_down()
        lock.release()


class ReadOnlyFiles(LocalFiles):
    """A directory whose files are opened read-only, as read-only volumes require."""

    open_flags: ClassVar[int] = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def inspect_lines(root: Path, *, output: str, known: Sequence[str] = METADATA_NAMES) -> list[str]:
    """Describe a data directory.

    Args:
        root: The directory.
        output: `table` or `json`.
        known: Names in its root that belong to other parts than the store.

    Raises:
        FilesError: The directory cannot be read, or a broker runs on it.
    """
    with reading(root) as files:
        report = inspect(files, known)
        metadata = read_metadata(files, proven_index(files))
    if output == "json":
        shown = {**report_json(root, report), "metadata": metadata._asdict()}
        return json.dumps(shown, indent=2).splitlines()
    head = [*_head_lines(root, report), *_metadata_lines(metadata)]
    return [*head, "", *_table(_rows(report.logs))]


class VerifyRun:
    """One run of `verify`; `is_whole` is valid only after `lines` was read to the end."""

    def __init__(self, root: Path, *, output: str, known: Sequence[str] = METADATA_NAMES) -> None:
        """Start; see `inspect_lines` for the arguments."""
        self._root = root
        self._output = output
        self._known = known
        self.is_whole = True

    def lines(self) -> Iterator[str]:
        """Yield findings as they occur, then a summary; with `json` one object a line.

        Raises:
            FilesError: The directory cannot be read, or a broker runs on it.
        """
        with reading(self._root) as files:
            verification = Verification(files, self._known)
            for finding in verification.findings():
                yield self._finding(finding)
            metadata = read_metadata(files, proven_index(files))
            for finding in _metadata_findings(metadata):
                yield self._finding(finding)
            errors = verification.errors + bool(metadata.damage)
            self.is_whole = not errors
            yield self._summary(verification, metadata, errors)

    def _finding(self, finding: Finding) -> str:
        if self._output == "json":
            return json.dumps({"kind": "finding", **finding._asdict()})
        where = f"{finding.path} at byte {finding.position}" if finding.position else finding.path
        return f"{finding.severity}: {where}: {finding.message}"

    def _summary(self, found: Verification, metadata: MetadataReport, errors: int) -> str:
        if self._output == "json":
            return json.dumps(
                {
                    "kind": "summary",
                    "logs": found.logs,
                    "segments": found.segments,
                    "records": found.records,
                    "bytes": found.bytes,
                    "metadata_entries": _entry_count(metadata),
                    "errors": errors,
                }
            )
        verdict = "whole" if self.is_whole else f"{errors} errors"
        return (
            f"{verdict}: {found.logs} logs, {found.segments} segments, {found.records} records, "
            f"{found.bytes} bytes, {_entry_count(metadata)} metadata entries"
        )


def report_json(root: Path, report: DirectoryReport) -> dict[str, object]:
    """Convert the report to a JSON object."""
    return {
        "directory": str(root),
        "data_dir_id": report.identity.data_dir_id,
        "broker_id": report.identity.broker_id,
        "is_clean": report.clean is not None,
        "journal": {
            "bytes": report.journal_bytes,
            "damaged_count": report.journal_damaged_count,
            "torn_bytes": report.journal_torn_bytes,
        },
        "logs": [_log_json(log) for log in report.logs],
        "trash": list(report.trash),
        "unknown": list(report.unknown),
    }


def _log_json(log: LogReport) -> dict[str, object]:
    state = log.state
    return {
        "stream_id": log.stream_id,
        "stream": log.stream,
        "partition": log.partition,
        "path": log.path,
        "is_journaled": log.is_journaled,
        "log_start_offset": state.log_start,
        "log_end_offset": _end(log),
        "recovery_point": state.recovery_point,
        "high_watermark": state.high_watermark,
        "leader_epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in state.epochs],
        "segments": [segment._asdict() for segment in log.segments],
        "copies": list(log.copies),
    }


def _end(log: LogReport) -> int:
    return log.segments[-1].end if log.segments else log.state.log_start


def _head_lines(root: Path, report: DirectoryReport) -> list[str]:
    clean = report.clean
    stop = "not clean" if clean is None else f"clean, broker epoch {clean.broker_epoch}"
    journal = f"{report.journal_bytes} bytes"
    if report.journal_damaged_count or report.journal_torn_bytes:
        journal += f", {report.journal_damaged_count} damaged places"
        journal += f", {report.journal_torn_bytes} torn bytes"
    lines = [
        f"directory  {root}",
        f"identity   {report.identity.data_dir_id or 'unreadable'}",
        f"broker     {report.identity.broker_id or 'unreadable'}",
        f"last stop  {stop}",
        f"journal    {journal}",
    ]
    lines += [f"trash      {path}" for path in report.trash]
    lines += [f"unknown    {path}" for path in report.unknown]
    return lines


def _entry_count(metadata: MetadataReport) -> int:
    return 0 if metadata.damage else metadata.last_index - metadata.first_index + 1


def _metadata_lines(metadata: MetadataReport) -> list[str]:
    if metadata.damage:
        return [f"metadata   {metadata.damage}"]
    entries = f"{_entry_count(metadata)} entries"
    if _entry_count(metadata):
        entries += f" from {metadata.first_index} to {metadata.last_index}"
    covered = metadata.snapshot_index
    return [
        f"metadata   {entries}, {metadata.bytes} bytes",
        f"snapshot   {f'of index {covered}' if covered else 'none'}",
        f"streams    {metadata.streams} with {metadata.partitions} partitions",
        *(f"next start {finding}" for finding in metadata.findings),
    ]


def _metadata_findings(metadata: MetadataReport) -> Iterator[Finding]:
    if metadata.damage:
        yield Finding(Severity.ERROR, metadata.path, metadata.position, metadata.damage)
    for text in metadata.findings:
        yield Finding(Severity.NOTE, METADATA_DIRECTORY, 0, text)


def _rows(logs: Sequence[LogReport]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for log in logs:
        state = log.state
        newest = max((segment.largest_timestamp for segment in log.segments), default=0)
        rows.append(
            (
                log.stream,
                str(log.partition),
                str(state.log_start),
                str(_end(log)),
                str(state.high_watermark),
                str(state.recovery_point),
                str(len(log.segments)),
                str(sum(segment.records for segment in log.segments)),
                str(sum(segment.bytes for segment in log.segments)),
                str(state.epochs[-1][0]) if state.epochs else "-",
                _time(newest),
                "; ".join(_notes(log)) or "-",
            )
        )
    return rows


def _notes(log: LogReport) -> Iterator[str]:
    if not log.is_journaled:
        yield "not in the journal"
    for segment in log.segments:
        if segment.damage:
            yield segment.damage
    if log.copies:
        yield f"{len(log.copies)} copies of truncated data"


def _time(timestamp: int) -> str:
    if not timestamp:
        return "-"
    return datetime.fromtimestamp(timestamp // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _unused(call: object) -> None:
    """No-op: blocking calls post nothing."""
    del call


def _unused_events(events: Sequence[FileEvent]) -> None:
    """No-op: blocking calls have no events."""
    del events
