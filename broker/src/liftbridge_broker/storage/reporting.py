"""Transitions of the store for the observer, with their names and fields."""

from liftbridge_broker.model.ids import number_of
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.storage.log.types import RecoveryReport
from liftbridge_broker.storage.stored_log import StoredLog


class Reporter:
    """Reports transitions of a store and of its logs."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def report(self, kind: str, **values: object) -> None:
        """Report a transition of the data directory."""
        self._observer.transition(kind, values)

    def report_log(self, stored: StoredLog, kind: str, **values: object) -> None:
        """Report a transition of one log; its stream and partition are added."""
        place = {"stream": stored.stream, "partition": number_of(stored.partition_id)}
        self._observer.transition(kind, place | values)

    def report_recovery(self, stored: StoredLog, report: RecoveryReport) -> None:
        """Report what opening a log found, if an operator should know."""
        for path in report.quarantined:
            self.report_log(stored, "segment_quarantined", path=path, position=0)
        if report.cut_bytes:
            self.report_log(
                stored,
                "log_recovered",
                scanned_bytes=report.scanned_bytes,
                cut_bytes=report.cut_bytes,
                cut_copy=", ".join(report.cut_copies),
                rebuilt_indexes=report.rebuilt_indexes,
            )
        elif report.rebuilt_indexes:
            self.report_log(stored, "index_rebuilt", path=stored.log.directory)
