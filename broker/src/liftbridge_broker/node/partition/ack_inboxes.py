"""Rules for subjects of acks over NATS, and proofs of messages that another broker forwarded."""

from collections.abc import Callable

from liftbridge_broker.node.partition.stream_subjects import StreamSubjects
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring
from liftbridge_broker.wire.signed_message import Purpose, signer_of
from liftbridge_broker.wire.subjects import reserved_subjects


class AckInboxes:
    """Rules for the ack inboxes, of clients and of brokers, that NATS messages name.

    Args:
        namespace: Prefix of the subjects of this cluster.
        keyring: Returns the keys in force.
        subjects: Subjects of all streams; `None` where no reply subject gets acks.
    """

    def __init__(
        self,
        namespace: str,
        keyring: Callable[[], Keyring] = lambda: OPEN_KEYRING,
        subjects: StreamSubjects | None = None,
    ) -> None:
        self.reserved = reserved_subjects(namespace)
        self._keyring = keyring
        self._subjects = subjects

    def prepare_replies(self) -> None:
        """Prepare for `allows_reply`, in steps."""
        if self._subjects is not None:
            self._subjects.prepare()

    def allows(self, inbox: str, payload: bytes) -> bool:
        """Return whether a message may have its ack sent to an inbox.

        Args:
            inbox: The inbox that the message names.
            payload: The whole message; for a broker's inbox a broker must have signed it.
        """
        if self.reserved.is_broker_inbox(inbox):
            return self.is_proven(payload)  # guard Ack.asked
        return self.reserved.allows_ack_inbox(inbox)

    def allows_reply(self, reply: str) -> bool:
        """Return whether acks may be sent to a NATS reply subject.

        The rules of a client's inbox apply. It must also not be the subject of a stream: that is
        not meant as an inbox, and the stream would store the acks. No stream stores messages of
        reserved subjects, `_INBOX.` among them.
        """
        if not self.reserved.allows_ack_inbox(reply):
            return False
        if self.reserved.is_reserved(reply):
            return True
        return self._subjects is not None and not self._subjects.are_stored(reply)

    def is_proven(self, payload: bytes) -> bool:
        """Return whether a broker provably forwarded a message, or no proof is required.

        Only such a message may carry an idempotent publisher's stamp: otherwise any client could
        use the publisher's next number, and its own message would count as stored already.
        """
        return signer_of(self._keyring()).is_believed(payload, Purpose.PUBLISH)

    def is_signed(self, inbox: str) -> bool:
        """Return whether acks to an inbox are signed."""
        return self.reserved.is_broker_inbox(inbox) and signer_of(self._keyring()).is_signing

    def signed(self, ack: bytes) -> bytes:
        """Return a serialised ack with its signature."""
        return signer_of(self._keyring()).signed(ack, Purpose.ACK)
