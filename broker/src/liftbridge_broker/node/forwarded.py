"""What has to be proven by messages that another broker passed on, and by their acks."""

from collections.abc import Callable

from liftbridge_broker.wire.peer_keys import OPEN_KEYRING, Keyring
from liftbridge_broker.wire.signed_message import Purpose, signer_of
from liftbridge_broker.wire.subjects import reserved_subjects


class AckInboxes:
    """Inboxes that messages on NATS name for their acks: of clients, and of brokers.

    Args:
        namespace: Prefix of the subjects of this cluster.
        keyring: Gives the keys in force.
    """

    def __init__(
        self, namespace: str, keyring: Callable[[], Keyring] = lambda: OPEN_KEYRING
    ) -> None:
        self.reserved = reserved_subjects(namespace)
        self._keyring = keyring

    def allows(self, inbox: str, payload: bytes) -> bool:
        """Whether a message may have its ack sent to an inbox.

        Args:
            inbox: The inbox that it names.
            payload: The whole message, which for the inbox of a broker has to be signed by one.
        """
        if self.reserved.is_broker_inbox(inbox):
            return self.is_proven(payload)  # guard Ack.asked
        return self.reserved.allows_ack_inbox(inbox)

    def is_proven(self, payload: bytes) -> bool:
        """Whether a message was passed on by a broker, or need not prove that it was.

        Only such a message speaks for an idempotent publisher: anybody else could take its next
        number, and its own message would count as one that is stored already.
        """
        return signer_of(self._keyring()).is_believed(payload, Purpose.PUBLISH)

    def is_signed(self, inbox: str) -> bool:
        """Whether acks to an inbox are signed."""
        return self.reserved.is_broker_inbox(inbox) and signer_of(self._keyring()).is_signing

    def signed(self, ack: bytes) -> bytes:
        """A serialised ack with its signature."""
        return signer_of(self._keyring()).signed(ack, Purpose.ACK)
