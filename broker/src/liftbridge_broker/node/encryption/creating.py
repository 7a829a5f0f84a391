"""Creates encrypted streams: makes a data key, has it wrapped, and proposes both together."""

from collections.abc import Callable
from functools import partial
from typing import Final

from liftbridge_broker.controller.checks import check_names
from liftbridge_broker.controller.commands import CreateEncryptedStream, CreateStream
from liftbridge_broker.controller.keys import HANDLER_TEXT
from liftbridge_broker.errors import FailedPreconditionError, LiftbridgeError, LimitError
from liftbridge_broker.logformat.cipher import KEY_SIZE
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.keys import DataKey, check_value
from liftbridge_broker.node.context import NodeContext

Reply = Callable[[object], None]

WAITING_MAX: Final = 1_000
"""Streams whose data keys are being wrapped, perhaps by a slow service."""


class EncryptedStreams:
    """Creations of encrypted streams on one broker."""

    def __init__(self, context: NodeContext) -> None:
        """Start without creations."""
        self._context = context
        self._waiting_count = 0

    def create(self, command: CreateStream, now: Instant, reply: Reply) -> None:
        """Create an encrypted stream; `reply` gets the answer or a `LiftbridgeError`."""
        try:
            # In the original too, names are checked before keys.
            check_names(command, command.partitions)
        except LiftbridgeError as refusal:
            reply(refusal)
            return
        masters = self._context.data_keys.masters
        key_id = self._context.state.master_key or next((k.key_id for k in masters.known), "")
        if not key_id:
            reply(
                FailedPreconditionError(
                    f"{HANDLER_TEXT}broker {self._context.broker} has no master key; configure "
                    "encryption.keys.file, encryption.keys.command or LIFTBRIDGE_ENCRYPTION_KEY"
                )
            )
            return
        if self._waiting_count >= WAITING_MAX:
            reply(LimitError(f"{WAITING_MAX} streams wait for their data keys already"))
            return
        self._waiting_count += 1
        data_key = masters.random(KEY_SIZE)
        check = check_value(data_key)
        wrapped = partial(self._wrapped, command, key_id, check, now, reply)
        masters.wrap(key_id, data_key, command.name, wrapped)

    def _wrapped(
        self,
        command: CreateStream,
        key_id: str,
        check: bytes,
        now: Instant,
        reply: Reply,
        outcome: bytes | LiftbridgeError,
    ) -> None:
        self._waiting_count -= 1
        if isinstance(outcome, LiftbridgeError):
            reply(FailedPreconditionError(f"{HANDLER_TEXT}{outcome.text}"))
            return
        key = DataKey(key_id, outcome, check)
        encrypted = CreateEncryptedStream(stream=command, key=key)
        self._context.propose(encrypted, max(now, self._context.now), reply)
