"""Reporting of transitions: each call yields one log event and one metric."""

from collections.abc import Mapping
from typing import Protocol


class Observer(Protocol):
    """Receives every transition of the node, its storage and its adapters."""

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Report a transition.

        Args:
            kind: Name from the catalogue (`adapters/observe/catalogue.yaml`), such as
                `stream_created`.
            fields: Values for the log event; never record contents or secrets.
        """
        ...
